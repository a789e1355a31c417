"""The protobuf classes of `proto/`, built in a descriptor pool of their own.

Envoy's names are used as they are, so in protobuf's default pool a process that also imports
Envoy's own protos could not load both.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

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
    "is_method",
    "message_class",
    "parsed",
]

_M = TypeVar("_M", bound=Message)

SERVICE = "envoy.service.ratelimit.v3.RateLimitService"
METHOD = "ShouldRateLimit"


def _files(described: bytes) -> Iterator[bytes]:
    """The files of a serialized FileDescriptorSet, which has nothing but these: field 1, each.

    protobuf's own class for it would take 0.6 MiB in each worker, for this alone.
    """
    at = 0
    while at < len(described):
        length = shift = 0
        more = True
        while more:
            at += 1
            length |= (described[at] & 0x7F) << shift
            shift += 7
            more = described[at] >= 0x80
        at += 1
        yield described[at : at + length]
        at += length


def _pool() -> DescriptorPool:
    pool = DescriptorPool()
    descriptors = Path(__file__).parent / "generated" / "descriptors.binpb"
    for file in _files(descriptors.read_bytes()):
        pool.AddSerializedFile(file)
    return pool


POOL = _pool()
"""Our messages, what they import, and nothing of anybody else's."""


def message_class(name: str) -> type[Message]:
    """The class of a message, by its full name. Raises KeyError if there is none."""
    return GetMessageClass(POOL.FindMessageTypeByName(name))


def parsed(kind: type[_M], message: bytes) -> _M:
    """A serialized message, of any protocol. Raises BadRequestError if it is none."""
    try:
        return kind.FromString(message)
    except DecodeError as error:
        raise BadRequestError("malformed", f"the request is no {kind.DESCRIPTOR.name}") from error


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
    RateLimitRequest = message_class(f"{_PACKAGE}.RateLimitRequest")
    RateLimitResponse = message_class(f"{_PACKAGE}.RateLimitResponse")
    RateLimitDescriptor = message_class("envoy.extensions.common.ratelimit.v3.RateLimitDescriptor")
