"""xDS: what is said to a management server, and what it sends (state of the world, ADS).

Resources become plain values with the names that rule files have, so that who compiles rules
needs no protobuf.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from google.protobuf.message import DecodeError

from ratelimit_service.errors import BadRequestError
from ratelimit_service.wire.messages import POOL, message_class, parsed

if TYPE_CHECKING:
    from google.protobuf.struct_pb2 import Struct, Value

    from ratelimit_service.wire.generated.envoy.service.discovery.v3.discovery_pb2 import (
        DiscoveryRequest,
        DiscoveryResponse,
    )
    from ratelimit_service.wire.generated.ratelimit.config.ratelimit.v3 import rls_conf_pb2
    from ratelimit_service.wire.generated.ratelimit.config.ratelimit.v3.rls_conf_pb2 import (
        RateLimitConfig,
    )
else:
    DiscoveryRequest = message_class("envoy.service.discovery.v3.DiscoveryRequest")
    DiscoveryResponse = message_class("envoy.service.discovery.v3.DiscoveryResponse")
    RateLimitConfig = message_class("ratelimit.config.ratelimit.v3.RateLimitConfig")

__all__ = [
    "METHOD",
    "TYPE_URL",
    "DiscoveryRequest",
    "DiscoveryResponse",
    "RateLimitConfig",
    "Response",
    "decode_resource",
    "decode_response",
    "encode_request",
]

METHOD = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
TYPE_URL = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig"

_UNITS = {
    value.number: value.name.lower()
    for value in POOL.FindEnumTypeByName("ratelimit.config.ratelimit.v3.RateLimitUnit").values
}

_REFUSED = 3
"""gRPC's INVALID_ARGUMENT."""


class Response(NamedTuple):
    """All resources at one moment: type and bytes of each."""

    version: str
    nonce: str
    type_url: str
    resources: tuple[tuple[str, bytes], ...]


def encode_request(
    node: str,
    metadata: Mapping[str, str],
    user_agent: tuple[str, str],
    *,
    version: str = "",
    nonce: str = "",
    refused: str = "",
) -> bytes:
    """What is asked first, or (with a nonce) what became of a response; `refused` says why."""
    request = DiscoveryRequest(version_info=version, type_url=TYPE_URL, response_nonce=nonce)
    request.node.id = node
    request.node.user_agent_name, request.node.user_agent_version = user_agent
    if metadata:
        request.node.metadata.update(metadata)
    if refused:
        request.error_detail.code = _REFUSED
        request.error_detail.message = refused
    return request.SerializeToString()


def decode_response(data: bytes) -> Response:
    """Raises BadRequestError if this is no response."""
    message = parsed(DiscoveryResponse, data)
    resources = tuple((resource.type_url, resource.value) for resource in message.resources)
    return Response(message.version_info, message.nonce, message.type_url, resources)


def decode_resource(type_url: str, data: bytes) -> tuple[str, dict[str, Any]]:
    """The name of a domain's rules, and what a rule file would say. Raises BadRequestError."""
    if type_url != TYPE_URL:
        raise BadRequestError("malformed", f"its type is {type_url[:256]!r}, not {TYPE_URL}")
    try:
        message = RateLimitConfig.FromString(data)
    except DecodeError as error:
        raise BadRequestError("malformed", "its bytes are no RateLimitConfig") from error
    values = {"domain": message.domain, "descriptors": _descriptors(message.descriptors)}
    return message.name, values


def _descriptors(messages: Iterable[rls_conf_pb2.RateLimitDescriptor]) -> list[dict[str, Any]]:
    return [_descriptor(message) for message in messages]


def _descriptor(message: rls_conf_pb2.RateLimitDescriptor) -> dict[str, Any]:
    values: dict[str, Any] = {"key": message.key}
    if message.value:
        values["value"] = message.value
    if message.HasField("rate_limit"):
        values["rate_limit"] = _policy(message.rate_limit)
    if message.descriptors:
        values["descriptors"] = _descriptors(message.descriptors)
    for name in ("shadow_mode", "detailed_metric", "quota_mode"):
        if getattr(message, name):
            values[name] = True
    if message.HasField("metadata"):
        values["metadata"] = _struct(message.metadata)
    return values


def _policy(message: rls_conf_pb2.RateLimitPolicy) -> dict[str, Any]:
    """What is not set is not said, but of a limit without a number: that is 0, as in protobuf."""
    values: dict[str, Any] = {}
    if message.unit:
        values["unit"] = _UNITS.get(message.unit) or str(message.unit)
    if message.requests_per_unit or not message.unlimited:
        values["requests_per_unit"] = message.requests_per_unit
    if message.unlimited:
        values["unlimited"] = True
    if message.name:
        values["name"] = message.name
    if message.replaces:
        values["replaces"] = [{"name": replaced.name} for replaced in message.replaces]
    return values


def _struct(message: Struct) -> dict[str, Any]:
    return {name: _value(value) for name, value in message.fields.items()}


def _value(message: Value) -> Any:
    kind = message.WhichOneof("kind")
    if kind == "struct_value":
        return _struct(message.struct_value)
    if kind == "list_value":
        return [_value(item) for item in message.list_value.values]
    if kind is None or kind == "null_value":
        return None
    return getattr(message, kind)
