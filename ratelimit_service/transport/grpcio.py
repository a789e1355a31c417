"""The transport over grpcio: complete, and the oracle for any other.

It moves bytes between sockets and the service; it decides nothing. grpcio parses and
frames, its companion packages answer health checks and reflection.
"""

from __future__ import annotations

from typing import Never

import grpc
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from ratelimit_service.errors import TransportError
from ratelimit_service.health import Health
from ratelimit_service.service import Refusal, Service
from ratelimit_service.transport.health import HEALTH_SERVICE, HealthService
from ratelimit_service.wire import METHOD, POOL, SERVICE

__all__ = ["GrpcioServer"]

_CODES = {code.value[0]: code for code in grpc.StatusCode}


class GrpcioServer:
    """Serves `ShouldRateLimit`, health and reflection on one port."""

    def __init__(self, address: str, service: Service, health: Health) -> None:
        """`address` is `HOST:PORT`; port 0 takes a free one."""
        self._address = address
        self._service = service
        self._health = health
        self._server: grpc.aio.Server | None = None

    async def start(self) -> int:
        """Opens the port and returns its number. Raises TransportError if it cannot be opened."""
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(
            self._should_rate_limit
        )
        server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),
                HealthService(self._health).handler(),
            )
        )
        for described in (health_pb2, reflection_pb2):
            POOL.AddSerializedFile(described.DESCRIPTOR.serialized_pb)
        names = (SERVICE, HEALTH_SERVICE, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server, POOL)
        try:
            port = server.add_insecure_port(self._address)
        except RuntimeError as error:
            raise TransportError(
                f"cannot open the gRPC port {self._address}: it is in use or not this machine's; "
                "choose another with --grpc HOST:PORT"
            ) from error
        await server.start()
        self._server = server
        return port

    async def stop(self, grace_us: int) -> None:
        """Takes no new calls, and lets those in flight finish for at most `grace_us`."""
        if self._server is not None:
            await self._server.stop(grace_us / 1_000_000)

    async def _should_rate_limit(
        self, body: bytes, context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> bytes:
        (answer,) = await self._service.decide([body])
        if isinstance(answer, Refusal):
            await _abort(context, answer)
        return answer


async def _abort(context: grpc.aio.ServicerContext[bytes, bytes], refusal: Refusal) -> Never:
    await context.abort(_CODES[refusal.code], refusal.message)
