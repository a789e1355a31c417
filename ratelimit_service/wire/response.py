"""RateLimitResponse: model to bytes, and back for a client."""

from __future__ import annotations

import re
from collections.abc import Iterable

from google.protobuf.json_format import MessageToDict, ParseDict

from ratelimit_service.model import (
    MAX_ADDEND,
    SECOND_US,
    Code,
    Decision,
    Header,
    Limit,
    Status,
    whole_seconds,
)
from ratelimit_service.wire.messages import RateLimitResponse
from ratelimit_service.wire.request import UNITS

__all__ = ["decode_decision", "encode_decision"]

_NUMBERS = {unit: number for number, unit in UNITS.items()}
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_UNSAFE = re.compile(r"[^\t\x20-\x7e]")


def encode_decision(decision: Decision) -> bytes:
    """Serializes a decision. Deterministic.

    The last guard before Envoy, which writes what it gets onto the wire: characters that are
    not printable ASCII become `?` in header values; ValueError is raised for a header name
    that is no token (RFC 9110, section 5.6.2).
    """
    message = RateLimitResponse(raw_body=decision.raw_body)
    # The stubs type enums as their classes, which exist for the type checker only.
    message.overall_code = int(decision.code)  # type: ignore[assignment]
    for status in decision.statuses:
        added = message.statuses.add(
            code=int(status.code),
            limit_remaining=min(status.remaining, MAX_ADDEND),
        )
        if limit := status.limit:
            current = added.current_limit
            current.requests_per_unit = limit.requests_per_unit
            current.unit = _NUMBERS[limit.unit]  # type: ignore[assignment]
            current.name = limit.name
            if limit.multiplier != 1:
                current.unit_multiplier.value = limit.multiplier
        if status.reset_us is not None:
            added.duration_until_reset.seconds = whole_seconds(status.reset_us)
    for key, value in _checked(decision.response_headers):
        message.response_headers_to_add.add(key=key, value=value)
    for key, value in _checked(decision.request_headers):
        message.request_headers_to_add.add(key=key, value=value)
    if decision.metadata is not None:
        ParseDict(dict(decision.metadata), message.dynamic_metadata)
    return message.SerializeToString(deterministic=True)


def _checked(headers: Iterable[Header]) -> Iterable[Header]:
    for key, value in headers:
        if not _TOKEN.fullmatch(key):
            raise ValueError(f"{key!r} is no header name")
        yield Header(key, _UNSAFE.sub("?", value))


def decode_decision(body: bytes) -> Decision:
    """Reads a serialized RateLimitResponse. Raises ValueError if it is none."""
    message = RateLimitResponse.FromString(body)
    statuses = []
    for status in message.statuses:
        limit = None
        if status.HasField("current_limit"):
            current = status.current_limit
            multiplier = current.unit_multiplier.value if current.HasField("unit_multiplier") else 1
            limit = Limit(
                current.requests_per_unit, UNITS[int(current.unit)], multiplier, current.name
            )
        reset_us = None
        if status.HasField("duration_until_reset"):
            reset_us = status.duration_until_reset.seconds * SECOND_US
        statuses.append(Status(Code(int(status.code)), limit, status.limit_remaining, reset_us))
    return Decision(
        Code(int(message.overall_code)),
        tuple(statuses),
        tuple(Header(header.key, header.value) for header in message.response_headers_to_add),
        tuple(Header(header.key, header.value) for header in message.request_headers_to_add),
        message.raw_body,
        MessageToDict(message.dynamic_metadata) if message.HasField("dynamic_metadata") else None,
    )
