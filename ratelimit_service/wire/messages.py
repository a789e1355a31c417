"""The protobuf classes of `proto/`, built in a descriptor pool of their own.

Envoy's names are used as they are, so in protobuf's default pool a process that also imports
Envoy's own protos could not load both.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from ratelimit_service.errors import BadRequestError

if TYPE_CHECKING:
    from ratelimit_service.wire.generated.envoy.extensions.common.ratelimit.v3 import ratelimit_pb2
    from ratelimit_service.wire.generated.envoy.service.ratelimit.v3.rls_pb2 import (
        RateLimitRequest,
        RateLimitResponse,
    )

__all__ = [
    "METHOD",
    "POOL",
    "SERVICE",
    "RateLimitDescriptor",
    "RateLimitRequest",
    "RateLimitResponse",
    "describe",
    "is_method",
    "parsed",
]

_M = TypeVar("_M", bound=Message)

SERVICE = "envoy.service.ratelimit.v3.RateLimitService"
METHOD = "ShouldRateLimit"


def _pool() -> DescriptorPool:
    pool = DescriptorPool()
    descriptors = Path(__file__).parent / "generated" / "descriptors.binpb"
    for file in FileDescriptorSet.FromString(descriptors.read_bytes()).file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


POOL = _pool()
"""Our messages, what they import, and nothing of anybody else's."""


def parsed(kind: type[_M], message: bytes) -> _M:
    """A serialized message, of any protocol. Raises BadRequestError if it is none."""
    try:
        return kind.FromString(message)
    except DecodeError as error:
        raise BadRequestError("malformed", f"the request is no {kind.DESCRIPTOR.name}") from error


def describe(file: bytes, package: str = "") -> None:
    """Adds another protocol's serialized file to the pool, with another package if one is named."""
    described = FileDescriptorProto.FromString(file)
    if package:
        old, new = f".{described.package}.", f".{package}."
        for message in described.message_type:
            for field in message.field:
                if field.type_name:
                    field.type_name = field.type_name.replace(old, new)
        for service in described.service:
            for method in service.method:
                method.input_type = method.input_type.replace(old, new)
                method.output_type = method.output_type.replace(old, new)
        described.name = package.replace(".", "/") + "/" + described.name.rpartition("/")[2]
        described.package = package
    POOL.AddSerializedFile(described.SerializeToString())


def is_method(symbol: str) -> bool:
    """Whether a full name is that of a method of a service in the pool."""
    service, _, method = symbol.rpartition(".")
    try:
        return method in POOL.FindServiceByName(service).methods_by_name
    except KeyError:
        return False


if TYPE_CHECKING:
    RateLimitDescriptor = ratelimit_pb2.RateLimitDescriptor
else:
    _PACKAGE = SERVICE.rpartition(".")[0]
    _COMMON = "envoy.extensions.common.ratelimit.v3"
    RateLimitRequest = GetMessageClass(POOL.FindMessageTypeByName(f"{_PACKAGE}.RateLimitRequest"))
    RateLimitResponse = GetMessageClass(POOL.FindMessageTypeByName(f"{_PACKAGE}.RateLimitResponse"))
    RateLimitDescriptor = GetMessageClass(
        POOL.FindMessageTypeByName(f"{_COMMON}.RateLimitDescriptor")
    )
