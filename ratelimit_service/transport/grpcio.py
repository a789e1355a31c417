"""The transport over grpcio: complete, and the oracle for any other.

It moves bytes between sockets and the service; it decides nothing. grpcio parses and
frames, its companion packages answer health checks and reflection.
"""

from __future__ import annotations

import asyncio
from typing import Never

import grpc
from grpc_health.v1 import health as grpc_health
from grpc_health.v1 import health_pb2
from grpc_health.v1._async import HealthServicer
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server
from grpc_reflection.v1alpha import reflection

from ratelimit_service.errors import TransportError
from ratelimit_service.health import Health
from ratelimit_service.service import Refusal, Service
from ratelimit_service.wire import METHOD, POOL, SERVICE

__all__ = ["GrpcioServer"]

_HEALTH_NAMES = ("", "ratelimit", SERVICE)
"""The names health checks ask for: everything, the reference's, the service's own."""

_CODES = {code.value[0]: code for code in grpc.StatusCode}


class GrpcioServer:
    """Serves `ShouldRateLimit`, health and reflection on one port."""

    def __init__(self, address: str, service: Service, health: Health) -> None:
        """`address` is `HOST:PORT`; port 0 takes a free one."""
        self._address = address
        self._service = service
        self._health = health
        self._health_service = HealthServicer()
        self._server: grpc.aio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> int:
        """Opens the port and returns its number. Raises TransportError if it cannot be opened."""
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(
            self._should_rate_limit
        )
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),)
        )
        add_HealthServicer_to_server(self._health_service, server)
        names = (SERVICE, grpc_health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server, POOL)
        try:
            port = server.add_insecure_port(self._address)
        except RuntimeError as error:
            raise TransportError(
                f"cannot open the gRPC port {self._address}: it is in use or not this machine's; "
                "choose another with --grpc HOST:PORT"
            ) from error
        await self._publish_health()
        self._health.listen(self._health_changed)
        await server.start()
        self._server = server
        return port

    async def stop(self, grace_us: int) -> None:
        """Takes no new calls, and lets those in flight finish for at most `grace_us`."""
        if self._server is not None:
            await self._publish_health()
            await self._server.stop(grace_us / 1_000_000)

    async def _should_rate_limit(
        self, body: bytes, context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> bytes:
        (answer,) = await self._service.decide([body])
        if isinstance(answer, Refusal):
            await _abort(context, answer)
        return answer

    def _health_changed(self) -> None:
        task = asyncio.get_running_loop().create_task(self._publish_health())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _publish_health(self) -> None:
        statuses = health_pb2.HealthCheckResponse
        for name in _HEALTH_NAMES:
            await self._health_service.set(
                name, statuses.SERVING if self._health.serving else statuses.NOT_SERVING
            )


async def _abort(context: grpc.aio.ServicerContext[bytes, bytes], refusal: Refusal) -> Never:
    await context.abort(_CODES[refusal.code], refusal.message)
