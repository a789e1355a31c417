"""The protobuf classes of `proto/`, built in a descriptor pool of their own.

Envoy's names are used as they are, so in protobuf's default pool a process that also imports
Envoy's own protos could not load both.
"""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

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
]

SERVICE = "envoy.service.ratelimit.v3.RateLimitService"
METHOD = "ShouldRateLimit"


def _pool() -> DescriptorPool:
    pool = DescriptorPool()
    descriptors = files("ratelimit_service.wire") / "generated" / "descriptors.binpb"
    for file in FileDescriptorSet.FromString(descriptors.read_bytes()).file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


POOL = _pool()
"""Our messages, what they import, and nothing of anybody else's."""

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
