"""gRPC's server reflection (grpc.reflection.v1 and v1alpha): a message in, a message out.

The answers are made by the reflection package's own servicer over our descriptor pool. It knows
v1alpha; v1 has other names, but the same messages.
"""

from __future__ import annotations

from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from ratelimit_service.transport.health import HEALTH_SERVICE
from ratelimit_service.wire import POOL, SERVICE, describe, is_method, parsed

__all__ = ["REFLECTION_METHOD", "REFLECTION_PATHS", "REFLECTION_SERVICES", "reflect"]

_PACKAGE = "grpc.reflection.v1"

REFLECTION_SERVICES = (f"{_PACKAGE}.ServerReflection", reflection.SERVICE_NAME)
"""What clients ask for: v1 first, most of them v1alpha if they do not get it."""

REFLECTION_METHOD = "ServerReflectionInfo"

REFLECTION_PATHS = frozenset(
    f"/{service}/{REFLECTION_METHOD}".encode() for service in REFLECTION_SERVICES
)

_Request = reflection_pb2.ServerReflectionRequest

describe(health_pb2.DESCRIPTOR.serialized_pb)
describe(reflection_pb2.DESCRIPTOR.serialized_pb)
describe(reflection_pb2.DESCRIPTOR.serialized_pb, _PACKAGE)

_servicer = reflection.ReflectionServicer((SERVICE, HEALTH_SERVICE, *REFLECTION_SERVICES), POOL)


def reflect(message: bytes) -> bytes:
    """Answers one serialized request. Raises BadRequestError if it cannot be read."""
    request = parsed(_Request, message)
    asked = request
    if is_method(request.file_containing_symbol):  # the pool finds services, not their methods
        service = request.file_containing_symbol.rpartition(".")[0]
        asked = _Request(file_containing_symbol=service)
    # The servicer never looks at its context, and gives one answer to each request.
    (answer,) = _servicer.ServerReflectionInfo(iter([asked]), None)  # type: ignore[arg-type]
    answer.original_request.CopyFrom(request)
    serialized: bytes = answer.SerializeToString()
    return serialized
