"""gRPC's health protocol (grpc/doc/health-checking.md): what this process says of itself.

Degraded is SERVING: requests are answered, and NOT_SERVING from every instance at once would
empty the load balancer. Watches end when the process drains, so that they do not hold it up.
"""

from __future__ import annotations

import asyncio

import grpc
from grpc_health.v1 import health_pb2

from ratelimit_service.health import Health, Phase
from ratelimit_service.wire import SERVICE

__all__ = ["HEALTH_SERVICE", "HealthService"]

HEALTH_SERVICE = "grpc.health.v1.Health"

_NAMES = frozenset({"", "ratelimit", SERVICE})
"""What callers ask about: everything, the reference's name, the service's own."""

_Request = health_pb2.HealthCheckRequest
_Response = health_pb2.HealthCheckResponse


class HealthService:
    """`Check` and `Watch` over the process's health."""

    def __init__(self, health: Health) -> None:
        self._health = health
        self._changed = asyncio.Event()
        health.listen(self._notice)

    def handler(self) -> grpc.GenericRpcHandler:
        """What grpcio's server needs to serve it."""
        parse, render = _Request.FromString, _Response.SerializeToString
        return grpc.method_handlers_generic_handler(
            HEALTH_SERVICE,
            {
                "Check": grpc.unary_unary_rpc_method_handler(self._check, parse, render),
                "Watch": grpc.unary_stream_rpc_method_handler(self._watch, parse, render),
            },
        )

    def _notice(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _status(self, name: str) -> _Response:
        if name not in _NAMES:
            return _Response(status=_Response.SERVICE_UNKNOWN)
        serving = self._health.serving
        return _Response(status=_Response.SERVING if serving else _Response.NOT_SERVING)

    async def _check(
        self, request: _Request, context: grpc.aio.ServicerContext[_Request, _Response]
    ) -> _Response:
        if request.service not in _NAMES:
            await context.abort(
                grpc.StatusCode.NOT_FOUND, f"no service {request.service!r}: ask for {SERVICE!r}"
            )
        return self._status(request.service)

    async def _watch(
        self, request: _Request, context: grpc.aio.ServicerContext[_Request, _Response]
    ) -> None:
        last: _Response | None = None
        while True:
            changed = self._changed
            status = self._status(request.service)
            if status != last:
                await context.write(status)
                last = status
            if self._health.phase is Phase.DRAINING:
                return
            await changed.wait()
