"""A synchronous client over grpcio. It knows the protocol and nothing of rules or stores."""

from __future__ import annotations

from typing import NamedTuple, Self

import grpc

from ratelimit_service.errors import TransportError
from ratelimit_service.model import Decision, Request
from ratelimit_service.text.display import reason
from ratelimit_service.wire import METHOD, SERVICE, decode_decision, encode_request

__all__ = ["Client", "ClientTLS"]


class ClientTLS(NamedTuple):
    """PEM files: the authorities that vouch for the server, and our own certificate and key."""

    ca: str
    cert: str | None = None
    key: str | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """For grpcio. Raises TransportError for files that cannot be read, or used.

        grpcio itself takes any content, and fails at its first call without a reason.
        """
        from ratelimit_service.net.pem import client_context  # noqa: PLC0415 -- few calls have TLS

        try:
            authorities, key, cert = map(_content, (self.ca, self.key, self.cert))
        except OSError as error:
            raise TransportError(f"{error.filename} cannot be read: {error.strerror}") from error
        try:
            client_context(self.ca, self.cert or "", self.key or "")
        except (OSError, ValueError) as error:
            files = ", ".join(name for name in self if name)
            raise TransportError(
                f"the TLS files cannot be used ({files}): {reason(error)}"
            ) from error
        return grpc.ssl_channel_credentials(authorities, key, cert)


def _content(path: str | None) -> bytes | None:
    from ratelimit_service.files.whole_file import read_whole  # noqa: PLC0415 -- as above

    return read_whole(path) if path else None


class Client:
    """A connection to one service; use it as a context manager."""

    def __init__(self, address: str, tls: ClientTLS | None = None) -> None:
        """`address` is `HOST:PORT` or `unix:PATH`; nothing is connected before the first call."""
        self._address = address
        options = [("grpc.enable_http_proxy", 0)]
        if tls is None:
            self._channel = grpc.insecure_channel(address, options=options)
        else:
            self._channel = grpc.secure_channel(address, tls.credentials(), options=options)
        self._call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(
            f"/{SERVICE}/{METHOD}"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def should_rate_limit(self, request: Request, timeout_us: int) -> Decision:
        """Asks for one decision. Raises TransportError if there is none within the timeout."""
        try:
            answer = self._call(encode_request(request), timeout=timeout_us / 1_000_000)
        except grpc.RpcError as error:
            # grpcio's errors of calls are calls themselves, which its types do not say.
            reason = self._reason(error, timeout_us) if isinstance(error, grpc.Call) else str(error)
            raise TransportError(reason) from error
        try:
            return decode_decision(answer)
        except ValueError as error:
            raise TransportError(
                f"what answers at {self._address} is no rate limit service: {error}"
            ) from error

    def _reason(self, error: grpc.Call, timeout_us: int) -> str:
        code, details = error.code(), error.details() or ""
        if code is grpc.StatusCode.UNAVAILABLE and details.startswith(_NOT_CONNECTED):
            for sign, reason in _REASONS.items():
                if sign in details:
                    return reason.format(address=self._address)
            return (
                f"no service answers at {self._address}: start one with `ratelimit serve`, "
                "or name another with --address HOST:PORT"
            )
        problem = f"{code.name}: {details.strip()}"
        if _is_of_envoy(error):
            return (
                f"the Envoy at {self._address} answers {problem}; name the service's own gRPC port "
                "with --address HOST:PORT"
            )
        if code is grpc.StatusCode.DEADLINE_EXCEEDED and details == _OUR_DEADLINE:
            return (
                f"nothing has answered at {self._address} within {timeout_us / 1_000_000:g}s: look "
                "whether it is the service's gRPC port; --timeout DURATION waits longer"
            )
        return f"the service at {self._address} answers {problem}"


def _is_of_envoy(error: grpc.Call) -> bool:
    """Whether an Envoy has passed on what went wrong, or has said it."""
    metadata = (*(error.initial_metadata() or ()), *(error.trailing_metadata() or ()))
    return ("server", "envoy") in metadata


_OUR_DEADLINE = "Deadline Exceeded"
"""grpcio's own details when a call's time is over: nobody has said them."""

_NOT_CONNECTED = ("failed to connect", "errors resolving")

_REASONS = {
    "http1.x": (
        "{address} speaks HTTP/1, not gRPC: if it is the service's HTTP port, "
        "name its gRPC port with --address HOST:PORT, 8081 if nothing else was said"
    ),
    "Expected SETTINGS": (
        "what answers at {address} speaks no gRPC: name the service's gRPC port "
        "with --address HOST:PORT"
    ),
    "Socket closed": (
        "{address} closed the connection before a word of gRPC: if the service's port has TLS, "
        "name its authorities with --tls-ca FILE; else name its gRPC port with --address HOST:PORT"
    ),
    "WRONG_VERSION_NUMBER": "{address} speaks no TLS: leave out --tls-ca, or name another port",
    "handshake failed": (
        "no TLS with {address}: its certificate must be one of --tls-ca's authorities for this "
        "host, and it may ask for a certificate of ours with --tls-cert and --tls-key"
    ),
    "errors resolving": "{address} has no address that this machine knows: check the host's name",
}
"""What a word in grpcio's reason for no connection means, the more telling first."""
