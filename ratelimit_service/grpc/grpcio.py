"""The transport over grpcio: complete, and the oracle for any other.

It moves bytes between sockets and the service; it decides nothing. grpcio parses and
frames; health checks and reflection are answered as over any other transport.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from functools import partial
from typing import Any
from urllib.parse import unquote

import grpc

from ratelimit_service.errors import BadRequestError, TransportError
from ratelimit_service.eventloop.clock import elapsed_us
from ratelimit_service.grpc.health import HEALTH_SERVICE, HealthService
from ratelimit_service.grpc.reflection import (
    REFLECTION_METHOD,
    REFLECTION_SERVICES,
    reflect,
)
from ratelimit_service.grpc.tls import TLS
from ratelimit_service.net.accepting import ConnectionLimiter, unmapped
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.service import (
    CALLER_HEADERS,
    NEVER,
    Answer,
    CallOrigin,
    Refusal,
    Service,
    counted_until,
)
from ratelimit_service.wire import METHOD, SERVICE
from ratelimit_service.wire.reservations import RESERVING_METHODS, RESERVING_SERVICE

__all__ = ["GrpcioServer"]

log = logging.getLogger(__name__)

_Context = grpc.aio.ServicerContext[bytes, bytes]

_CODES = {code.value[0]: code for code in grpc.StatusCode}


class GrpcioServer:
    """Serves `ShouldRateLimit`, health and reflection on one port."""

    def __init__(
        self,
        address: str,
        service: Service,
        health: Health,
        max_connection_age_us: int = 0,
        tls: TLS | None = None,
        *,
        stats: Stats | None = None,  # noqa: ARG002 -- grpcio does not say what it refuses
        limiter: ConnectionLimiter | None = None,  # noqa: ARG002 -- nor does it let anybody refuse
        reflection: bool = True,
    ) -> None:
        """`address` is `HOST:PORT` or `unix:PATH`; port 0 takes a free one.

        An age of 0 is no bound. Only grpcio itself bounds how many connections there are.
        """
        self._address = address
        self._certificate_required = tls is not None and tls.client_ca is not None
        self._reflected = REFLECTION_SERVICES if reflection else ()
        self._options: list[tuple[str, object]] = [("grpc.so_reuseport", 0)]
        if max_connection_age_us:
            age_ms = max(1, max_connection_age_us // 1_000)
            self._options.append(("grpc.max_connection_age_ms", age_ms))
        self._service = service
        self._health = HealthService(health)
        self._server: grpc.aio.Server | None = None
        self._certificate = _configuration(tls) if tls else None

    async def renew(self, tls: TLS) -> None:
        """Greets clients with another certificate from now on; who is connected stays."""
        self._certificate = _configuration(tls)

    async def start(self) -> int:
        """Opens the port and returns its number, which for a socket says nothing.

        Raises TransportError if it cannot be opened.
        """
        server = grpc.aio.server(options=self._options)
        decide: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(
            self._should_rate_limit
        )
        check: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(
            self._check
        )
        watch: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_stream_rpc_method_handler(
            self._watch
        )
        reflection: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(
            self._reflect
        )
        server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(SERVICE, {METHOD: decide}),
                grpc.method_handlers_generic_handler(
                    RESERVING_SERVICE,
                    {
                        method: grpc.unary_unary_rpc_method_handler(partial(self._reserve, method))
                        for method in RESERVING_METHODS
                    },
                ),
                grpc.method_handlers_generic_handler(
                    HEALTH_SERVICE, {"Check": check, "Watch": watch}
                ),
                *(
                    grpc.method_handlers_generic_handler(each, {REFLECTION_METHOD: reflection})
                    for each in self._reflected
                ),
            )
        )
        try:
            if self._certificate is None:
                port = server.add_insecure_port(self._address)
            else:
                credentials = grpc.dynamic_ssl_server_credentials(
                    self._certificate, self._current, self._certificate_required
                )
                port = server.add_secure_port(self._address, credentials)
        except RuntimeError as error:
            raise TransportError(
                f"cannot open the gRPC port {self._address}: it is in use or not this machine's; "
                "choose another with --grpc HOST:PORT"
            ) from error
        asyncio.get_running_loop().set_exception_handler(_heard)
        await server.start()
        self._server = server
        return port

    async def stop(self, grace_us: int) -> None:
        """Takes no new calls, and lets those in flight finish for at most `grace_us`."""
        if self._server is not None:
            await self._server.stop(grace_us / 1_000_000)

    def _current(self) -> grpc.ServerCertificateConfiguration:
        """What grpcio asks for at every handshake."""
        assert self._certificate is not None  # noqa: S101 -- else nobody asks
        return self._certificate

    async def _should_rate_limit(self, body: bytes, context: _Context) -> bytes:
        seconds = context.time_remaining()
        deadline_us = NEVER
        if seconds is not None:
            deadline_us = counted_until(elapsed_us(), int(seconds * 1_000_000))
        origins = [_caller(context)] if self._service.events.wants_origins else None
        (answer,) = await self._service.decide([body], deadline_us, origins)
        return await _answered(answer, context)

    async def _reserve(self, method: str, message: bytes, context: _Context) -> bytes:
        seconds = context.time_remaining()
        deadline_us = NEVER
        if seconds is not None:
            deadline_us = counted_until(elapsed_us(), int(seconds * 1_000_000))
        origin = _caller(context) if self._service.events.wants_origins else None
        answer = await self._service.reservations.call(method, message, deadline_us, origin)
        return await _answered(answer, context)

    async def _check(self, message: bytes, context: _Context) -> bytes:
        return await _answered(self._health.check(message), context)

    async def _watch(self, message: bytes, context: _Context) -> None:
        try:
            async for status in self._health.watch(message):
                await context.write(status)
        except BadRequestError as error:
            await context.abort(_CODES[error.code], str(error))

    async def _reflect(self, messages: AsyncIterator[bytes], context: _Context) -> None:
        async for message in messages:
            try:
                await context.write(reflect(message))
            except BadRequestError as error:
                await context.abort(_CODES[error.code], str(error))


def _caller(context: _Context) -> CallOrigin:
    """Who made a call. grpcio writes addresses as `ipv4:HOST:PORT` and `ipv6:%5BHOST%5D:PORT`."""
    kind, _, address = unquote(context.peer()).partition(":")
    peer = address.rpartition(":")[0].strip("[]") if kind in {"ipv4", "ipv6"} else ""
    pairs = (
        (name.encode(), value if isinstance(value, bytes) else value.encode())
        for name, value in context.invocation_metadata() or ()
    )
    return CallOrigin(unmapped(peer), [pair for pair in pairs if pair[0] in CALLER_HEADERS])


def _heard(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Logs errors of grpcio's tasks for which nobody waits.

    If a client goes while it is being answered, grpcio may hear first that it cannot send. Then it
    raises an error as if the fault were its own. There is nobody to tell.
    """
    error = context.get("exception")
    if type(error).__name__ == "ExecuteBatchError":  # grpcio does not export this class
        log.debug("a client has gone while it was answered: %s", error)
    else:
        loop.default_exception_handler(context)


async def _answered(answer: Answer, context: _Context) -> bytes:
    """The answer; or aborts the call with the refusal's status."""
    if isinstance(answer, Refusal):
        await context.abort(_CODES[answer.code], answer.message)
    return answer


def _configuration(tls: TLS) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(tls.key, tls.cert)], root_certificates=tls.client_ca
    )
