"""gRPC's server reflection (grpc.reflection.v1 and v1alpha): messages in, messages out.

The answers are made by the reflection package's own servicer over our descriptor pool.
"""

from __future__ import annotations

from collections.abc import Iterator

from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from ratelimit_service.transport.health import HEALTH_SERVICE
from ratelimit_service.wire import POOL, SERVICE

__all__ = ["REFLECTION_PATHS", "SERVICES", "reflect"]

SERVICES = (SERVICE, HEALTH_SERVICE, reflection.SERVICE_NAME)
"""What a client is told that there is."""

REFLECTION_PATHS = frozenset({f"/{reflection.SERVICE_NAME}/ServerReflectionInfo".encode()})

for _described in (health_pb2, reflection_pb2):
    POOL.AddSerializedFile(_described.DESCRIPTOR.serialized_pb)

_servicer = reflection.ReflectionServicer(SERVICES, POOL)


def reflect(message: bytes) -> Iterator[bytes]:
    """Answers one serialized request."""
    try:
        request = reflection_pb2.ServerReflectionRequest.FromString(message)
    except ValueError:
        request = reflection_pb2.ServerReflectionRequest()
    # The servicer never looks at its context.
    for answer in _servicer.ServerReflectionInfo(iter([request]), None):  # type: ignore[arg-type]
        yield answer.SerializeToString()
