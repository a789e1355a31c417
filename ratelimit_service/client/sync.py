"""A synchronous client over grpcio. It knows the protocol and nothing of rules or stores."""

from __future__ import annotations

from types import TracebackType
from typing import Self

import grpc

from ratelimit_service.errors import TransportError
from ratelimit_service.model import Decision, Request
from ratelimit_service.wire import METHOD, SERVICE, decode_decision, encode_request

__all__ = ["Client"]


class Client:
    """A connection to one service; use it as a context manager."""

    def __init__(self, address: str) -> None:
        """`address` is `HOST:PORT`; nothing is connected before the first call."""
        self._address = address
        self._channel = grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)])
        self._call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(
            f"/{SERVICE}/{METHOD}"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._channel.close()

    def should_rate_limit(self, request: Request, timeout_us: int) -> Decision:
        """Asks for one decision. Raises TransportError if there is none within the timeout."""
        try:
            answer = self._call(encode_request(request), timeout=timeout_us / 1_000_000)
        except grpc.RpcError as error:
            # grpcio's errors of calls are calls themselves, which its types do not say.
            reason = self._reason(error) if isinstance(error, grpc.Call) else str(error)
            raise TransportError(reason) from error
        try:
            return decode_decision(answer)
        except ValueError as error:
            raise TransportError(
                f"what answers at {self._address} is no rate limit service: {error}"
            ) from error

    def _reason(self, error: grpc.Call) -> str:
        code, details = error.code(), error.details()
        if code is grpc.StatusCode.UNAVAILABLE and "failed to connect" in (details or ""):
            return (
                f"no service answers at {self._address}: start one with `ratelimit serve`, "
                "or name another with --address HOST:PORT"
            )
        return f"the service at {self._address} answers {code.name}: {details}"
