"""Our messages against those that Envoy and gRPC publish, field by field."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from envoy.service.discovery.v3 import discovery_pb2
from envoy.service.ratelimit.v3 import rls_pb2
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from ratelimit_service.wire import POOL, SERVICE

PUBLISHED = rls_pb2.DESCRIPTOR.pool
assert {module.DESCRIPTOR.pool for module in (discovery_pb2, health_pb2, reflection_pb2)} == {
    PUBLISHED
}


NOT_PUBLISHED = {
    "envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.RateLimitOverride.unit_multiplier",
    "envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.is_negative_hits",
    "envoy.service.ratelimit.v3.RateLimitResponse.RateLimit.unit_multiplier",
}
"""What Envoy 1.40 speaks and xds-protos 1.85.0 lacks."""

FILES = [
    "envoy/service/ratelimit/v3/rls.proto",
    "envoy/extensions/common/ratelimit/v3/ratelimit.proto",
    "envoy/type/v3/ratelimit_unit.proto",
    "envoy/config/core/v3/base.proto",
    "envoy/service/discovery/v3/discovery.proto",
    "google/rpc/status.proto",
    "grpc/health/v1/health.proto",
    "grpc/reflection/v1alpha/reflection.proto",
]

IN_PART = {
    "envoy.config.core.v3.Node",
    "envoy.service.discovery.v3.DiscoveryRequest",
    "envoy.service.discovery.v3.DiscoveryResponse",
    "google.rpc.Status",
}
"""Of these we have only the fields that we use."""


def messages() -> Iterator[Descriptor]:
    """All of our messages, nested ones too."""
    pending = [
        message
        for name in FILES
        for message in POOL.FindFileByName(name).message_types_by_name.values()
    ]
    while pending:
        message = pending.pop()
        yield message
        pending += message.nested_types


def enums() -> Iterator[EnumDescriptor]:
    for name in FILES:
        yield from POOL.FindFileByName(name).enum_types_by_name.values()
    for message in messages():
        yield from message.enum_types


def described(field: FieldDescriptor) -> tuple[object, ...]:
    """All that the wire and JSON can tell of a field."""
    return (
        field.name,
        field.number,
        field.type,
        field.is_repeated,
        field.has_presence,
        field.json_name,
        field.message_type.full_name if field.message_type else None,
        field.enum_type.full_name if field.enum_type else None,
        field.containing_oneof.name if field.containing_oneof else None,
    )


@pytest.mark.parametrize("message", list(messages()), ids=lambda message: message.full_name)
def test_fields_are_as_published(message: Descriptor) -> None:
    """Every field has the published name, number and type, and none but the listed are new."""
    published = PUBLISHED.FindMessageTypeByName(message.full_name)

    ours = {described(field) for field in message.fields if field.full_name not in NOT_PUBLISHED}

    theirs = {described(field) for field in published.fields}
    assert ours <= theirs if message.full_name in IN_PART else ours == theirs


def test_listed_fields_are_still_not_published() -> None:
    """The list of fields that the published package lacks is not out of date."""
    lacking = {
        field.full_name
        for message in messages()
        for field in message.fields
        if field.name not in PUBLISHED.FindMessageTypeByName(message.full_name).fields_by_name
    }

    assert lacking == NOT_PUBLISHED


@pytest.mark.parametrize("enum", list(enums()), ids=lambda enum: enum.full_name)
def test_enums_are_as_published(enum: EnumDescriptor) -> None:
    """Every enum has the published names and numbers."""
    published = PUBLISHED.FindEnumTypeByName(enum.full_name)

    assert [(value.name, value.number) for value in enum.values] == [
        (value.name, value.number) for value in published.values
    ]


def test_service_is_as_published() -> None:
    """The service has the published method, with the published messages."""
    ours, published = (pool.FindServiceByName(SERVICE) for pool in (POOL, PUBLISHED))

    assert [
        (method.name, method.input_type.full_name, method.output_type.full_name)
        for method in ours.methods
    ] == [
        (method.name, method.input_type.full_name, method.output_type.full_name)
        for method in published.methods
    ]


def test_reflection_is_the_same_by_both_names() -> None:
    """Messages of grpc.reflection.v1 are those of v1alpha, so what reads one reads both."""
    v1, v1alpha = (
        FileDescriptorProto.FromString(
            POOL.FindFileByName(f"grpc/reflection/{version}/reflection.proto").serialized_pb
        )
        for version in ("v1", "v1alpha")
    )

    assert str(v1alpha).replace("v1alpha", "v1") == str(v1)


@pytest.mark.parametrize(
    "program",
    [
        "import ratelimit_service.wire; from envoy.service.ratelimit.v3 import rls_pb2",
        "from envoy.service.ratelimit.v3 import rls_pb2; import ratelimit_service.wire",
    ],
)
def test_one_process_may_load_both(program: str) -> None:
    """Our messages and Envoy's published ones live in one process, in either order."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)

    assert done.returncode == 0, done.stderr.decode()
