"""Envoy's and Kuadrant's messages in protobuf, by its encoding guide.

So few messages need no generated code and no library. Fields that are not known are skipped.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from ratelimit_client.errors import BadRequestError
from ratelimit_client.model import (
    TOO_LARGE,
    Call,
    Decision,
    Descriptor,
    Limit,
    Reason,
    Request,
    Status,
    Unit,
)

__all__ = ["METHODS", "decode", "encode", "reason_of"]

METHODS: Final = {
    Call.DECIDE: "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
    Call.RESERVE: "/kuadrant.service.ratelimit.v1.RateLimitService/Reserve",
    Call.SETTLE: "/kuadrant.service.ratelimit.v1.RateLimitService/Commit",
}

_MAX_BYTES: Final = 65_536
"""What the service reads of a request."""

_UNITS: Final = {
    1: Unit.SECOND,
    2: Unit.MINUTE,
    3: Unit.HOUR,
    4: Unit.DAY,
    5: Unit.MONTH,
    6: Unit.YEAR,
    7: Unit.WEEK,
}
_NUMBERS: Final = {unit: number for number, unit in _UNITS.items()}
_OK: Final = 1
_OVER_LIMIT: Final = 2

_VARINT: Final = 0
_FIXED64: Final = 1
_BYTES: Final = 2
_FIXED32: Final = 5
_DEEPEST: Final = 32
_MILLION: Final = 1_000_000


def encode(request: Request) -> bytes:
    """A serialized message of its call. Raises BadRequestError for one that is too large."""
    parts = [_field(1, request.domain.encode())]
    parts += [
        _field(2, _descriptor(descriptor, request.cost)) for descriptor in request.descriptors
    ]
    if request.call is Call.SETTLE:
        parts.append(_field(3, request.reservation.encode()) + b"\x20" + _varint(request.cost))
    elif request.cost > 1 or request.call is Call.RESERVE:
        parts.append(b"\x18" + _varint(request.cost))
    if request.call is Call.RESERVE:
        if request.ttl:
            seconds, micros = divmod(round(request.ttl * _MILLION), _MILLION)
            duration = b"\x08" + _varint(seconds) + b"\x10" + _varint(micros * 1_000)
            parts.append(_field(4, duration))
        if request.reservation:
            parts.append(_field(5, request.reservation.encode()))
    body = b"".join(parts)
    if len(body) > _MAX_BYTES:
        raise BadRequestError(
            f"the request has {len(body)} bytes: the service reads at most {_MAX_BYTES}"
        )
    return body


def _descriptor(descriptor: Descriptor, cost: int) -> bytes:
    parts = []
    for key, value in descriptor.entries:
        entry = _field(1, key.encode()) + (_field(2, value.encode()) if value else b"")
        parts.append(_field(1, entry))
    if limit := descriptor.limit:
        content = b"\x08" + _varint(limit.requests) + b"\x10" + _varint(_NUMBERS[limit.unit])
        if limit.multiplier != 1:
            content += _field(3, b"\x08" + _varint(limit.multiplier))
        parts.append(_field(2, content))
    # A request's 0 means 1; a descriptor's own 0 is a look.
    own = 0 if descriptor.cost is None and not cost else descriptor.cost
    if own is not None:
        parts.append(_field(3, b"\x08" + _varint(own) if own else b""))
    if descriptor.refund:
        parts.append(b"\x20\x01")
    return b"".join(parts)


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | _BYTES]) + _varint(len(content)) + content


def decode(body: bytes, call: Call = Call.DECIDE) -> Decision:
    """Reads the serialized answer to a call. Raises ValueError if it is none."""
    if call is Call.RESERVE:
        return _reserved(body)
    if call is Call.SETTLE:
        list(_fields(body))
        return Decision(True, Reason.WITHIN_LIMIT)
    return _decided(body)


def _reserved(body: bytes) -> Decision:
    fields = dict(_fields(body))
    code, reservation = fields.get(1, 0), fields.get(2, b"")
    if code not in {_OK, _OVER_LIMIT}:
        raise ValueError(f"the answer's code is {code!r}")
    if code == _OVER_LIMIT:
        return Decision(False, Reason.OVER_LIMIT, detail=TOO_LARGE if fields.get(4) else "")
    held = _expect_bytes(reservation).decode() if fields.get(3) else ""
    return Decision(True, Reason.WITHIN_LIMIT, reservation=held)


def _decided(body: bytes) -> Decision:
    code = 0
    statuses: list[Status] = []
    headers: list[tuple[str, str]] = []
    request_headers: list[tuple[str, str]] = []
    raw_body = b""
    metadata: dict[str, object] = {}
    denied_until: float | None = None
    for number, value in _fields(body):
        match number, value:
            case 1, int():
                code = value
            case 2, bytes():
                statuses.append(_status(value))
            case 3, bytes():
                headers.append(_header(value))
            case 4, bytes():
                request_headers.append(_header(value))
            case 5, bytes():
                raw_body = value
            case 6, bytes():
                metadata |= _struct(value)
            case 7, bytes():
                denied_until = _used_up_until(value)
    if code not in {_OK, _OVER_LIMIT}:
        raise ValueError(f"the answer's code is {code}")
    allowed = code == _OK
    return Decision(
        allowed,
        reason_of(allowed, statuses, metadata),
        tuple(statuses),
        tuple(headers),
        tuple(request_headers),
        raw_body,
        metadata,
        denied_until=None if allowed else denied_until,
    )


def reason_of(allowed: bool, statuses: Sequence[Status], metadata: Mapping[str, object]) -> Reason:
    """Why an answer came to this."""
    if metadata.get("by_policy"):
        return Reason.FAILURE_POLICY
    if not allowed:
        return Reason.OVER_LIMIT
    if any(status.limit for status in statuses):
        return Reason.WITHIN_LIMIT
    return Reason.NO_LIMIT


def _status(body: bytes) -> Status:
    code, remaining = 0, 0
    limit: Limit | None = None
    reset: float | None = None
    for number, value in _fields(body):
        match number, value:
            case 1, int():
                code = value
            case 2, bytes():
                limit = _limit(value)
            case 3, int():
                remaining = value
            case 4, bytes():
                reset = _duration(value)
    return Status(code != _OVER_LIMIT, limit, remaining, reset)


def _limit(body: bytes) -> Limit:
    requests, unit, name, multiplier = 0, 0, "", 1
    for number, value in _fields(body):
        match number, value:
            case 1, int():
                requests = value
            case 2, int():
                unit = value
            case 3, bytes():
                name = value.decode()
            case 4, bytes():
                multiplier = _wrapped(value)
    if unit not in _UNITS:
        raise ValueError(f"the limit's unit is {unit}")
    return Limit(requests, _UNITS[unit], multiplier, name)


def _duration(body: bytes) -> float:
    parts = {number: value for number, value in _fields(body) if isinstance(value, int)}
    return parts.get(1, 0) + parts.get(2, 0) / 1_000_000_000


def _used_up_until(body: bytes) -> float | None:
    """When a quota expires of which nothing is left: it had one request, which was this one."""
    requests, until = 0, None
    for number, value in _fields(body):
        match number, value:
            case 1, int():
                requests = value
            case 2, bytes():
                parts = {field: part for field, part in _fields(value) if isinstance(part, int)}
                until = (parts.get(1, 0) * _MILLION + parts.get(2, 0) // 1_000) / _MILLION
    return until if requests == 1 else None


def _wrapped(body: bytes) -> int:
    """The number in a `google.protobuf.UInt32Value`."""
    wrapped = 0
    for number, value in _fields(body):
        if number == 1 and isinstance(value, int):
            wrapped = value
    return wrapped


def _header(body: bytes) -> tuple[str, str]:
    key, text = "", ""
    for number, value in _fields(body):
        match number, value:
            case 1, bytes():
                key = value.decode()
            case 2 | 3, bytes():
                text = value.decode()
    return key, text


def _struct(body: bytes, depth: int = 0) -> dict[str, object]:
    """The members of a `google.protobuf.Struct`."""
    members: dict[str, object] = {}
    for _, member in _fields(body):
        key, item = "", None
        for number, value in _fields(_expect_bytes(member)):
            if number == 1:
                key = _expect_bytes(value).decode()
            elif number == 2:
                item = _value(_expect_bytes(value), depth + 1)
        members[key] = item
    return members


def _value(body: bytes, depth: int) -> object:
    """A `google.protobuf.Value`, as JSON has it."""
    if depth > _DEEPEST:
        raise ValueError("the metadata are nested too deep")
    result: object = None
    for number, value in _fields(body):
        match number, value:
            case 1, _:
                result = None
            case 2, float():
                result = value
            case 3, bytes():
                result = value.decode()
            case 4, int():
                result = bool(value)
            case 5, bytes():
                result = _struct(value, depth + 1)
            case 6, bytes():
                items = [_value(_expect_bytes(element), depth + 1) for _, element in _fields(value)]
                result = items
    return result


def _expect_bytes(value: int | float | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a field has another type than it should have")  # noqa: TRY004
    return value


def _fields(body: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    """Number and value of each field. Raises ValueError where it is no protobuf."""
    at, size = 0, len(body)
    while at < size:
        tag, at = _read_varint(body, at)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, at = _read_varint(body, at)
            yield number, value
            continue
        if kind == _BYTES:
            length, at = _read_varint(body, at)
        elif kind in {_FIXED64, _FIXED32}:
            length = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"the wire type is {kind}")
        content, at = body[at : at + length], at + length
        if at > size:
            raise ValueError("a field is longer than the message")
        if kind == _FIXED64:
            yield number, float(struct.unpack("<d", content)[0])
        else:
            yield number, content


def _read_varint(body: bytes, at: int) -> tuple[int, int]:
    number, shift = 0, 0
    while at < len(body) and shift < 70:
        byte = body[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number & (2**64 - 1), at
        shift += 7
    raise ValueError("a number does not end")
