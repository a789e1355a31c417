"""The messages of gRPC's own services beside ours: health and server reflection.

What they are answered stands in `grpc/health.py` and `grpc/reflection.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratelimit_service.wire.messages import message_class

if TYPE_CHECKING:
    from ratelimit_service.wire.generated.grpc.health.v1.health_pb2 import (
        HealthCheckRequest,
        HealthCheckResponse,
    )
    from ratelimit_service.wire.generated.grpc.reflection.v1.reflection_pb2 import (
        ServerReflectionRequest,
        ServerReflectionResponse,
    )
else:
    HealthCheckRequest = message_class("grpc.health.v1.HealthCheckRequest")
    HealthCheckResponse = message_class("grpc.health.v1.HealthCheckResponse")
    ServerReflectionRequest = message_class("grpc.reflection.v1.ServerReflectionRequest")
    ServerReflectionResponse = message_class("grpc.reflection.v1.ServerReflectionResponse")

__all__ = [
    "HealthCheckRequest",
    "HealthCheckResponse",
    "ServerReflectionRequest",
    "ServerReflectionResponse",
]
