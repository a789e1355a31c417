"""RateLimitResponse: model to bytes, and back for a client."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError, Message

from ratelimit_service.model import (
    HEADER_NAME,
    MAX_ADDEND,
    SECOND_US,
    Code,
    Decision,
    Header,
    Limit,
    Outcome,
    Status,
)
from ratelimit_service.wire.messages import RateLimitResponse
from ratelimit_service.wire.request import NUMBERS, UNITS

__all__ = [
    "EncodedLimit",
    "decode_decision",
    "encode_additions",
    "encode_decision",
    "encode_limit",
    "encode_plain",
    "encode_quota",
    "encode_within",
]

_UNSAFE: Final = re.compile(r"[^\t\x20-\x7e]")


def encode_decision(decision: Decision) -> bytes:
    """Serializes a decision. Deterministic.

    It is written here by protobuf's encoding guide, since nothing is written as often.

    This is the last guard before Envoy, which passes on what it gets: characters that are
    not printable ASCII become `?` in header values; ValueError is raised for a header name
    that is no token (RFC 9110, section 5.6.2).
    """
    parts = [_CODES[decision.code]]
    for status in decision.statuses:
        encoded = _CODES[status.code]
        if status.limit is not None:
            encoded += _limit(status.limit)
        if status.remaining:
            encoded += b"\x18" + _varint(min(status.remaining, MAX_ADDEND))
        if status.reset_us is not None:
            encoded += _reset(status.reset_us)
        parts.append(b"\x12" + _varint(len(encoded)) + encoded)
    parts += [_header(b"\x1a", header) for header in decision.response_headers]
    parts += [_header(b"\x22", header) for header in decision.request_headers]
    if decision.raw_body:
        parts.append(_field(b"\x2a", decision.raw_body))
    if decision.metadata is not None:
        parts.append(_field(b"\x32", _struct(decision.metadata)))
    return b"".join(parts)


class EncodedLimit:
    """What statuses of descriptors that meet a limit have in common, and said last."""

    __slots__ = ("begun", "limit", "status")

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.status = _OK + _limit(limit)
        """What does not change in the status of a descriptor within the limit."""
        self.begun = [b""] * _MOST_CHANGES
        """The same with the field's tag and size in front, by the size of what changes."""

    def begin(self, changes: int) -> bytes:
        """The beginning of a status, up to so many bytes that change."""
        begun = b"\x12" + _varint(len(self.status) + changes) + self.status
        self.begun[changes] = begun
        return begun


_MOST_CHANGES: Final = 20
"""More bytes than the hits that remain and a reset take together."""


def encode_within(limits: list[EncodedLimit], outcomes: list[Outcome]) -> bytes:
    """The same bytes for the most frequent decision: every descriptor counted, none over."""
    parts = [_OK]
    for index, limit in enumerate(limits):
        outcome = outcomes[index]
        seconds = -(-outcome.reset_us // SECOND_US)
        room = _room(outcome.remaining)
        reset = _resets.get(seconds) or _say_reset(seconds)
        changes = len(room) + len(reset)
        parts += (limit.begun[changes] or limit.begin(changes), room, reset)
    return b"".join(parts)


def encode_plain(
    passes: bool,
    statuses: Sequence[int],
    limits: Sequence[EncodedLimit],
    outcomes: Sequence[Outcome | None],
    by_policy: tuple[tuple[int, str], ...],
    additions: bytes,
) -> bytes:
    """The same bytes for any request of usual descriptors.

    `statuses` says for each descriptor: 0 allowed, 1 over its limit; 2 and 3 the same without a
    count. `by_policy` lists the descriptors of the latter with their policies. `additions`
    are as `encode_additions` gives them.
    """
    parts = [_OK if passes else _OVER]
    for index, status in enumerate(statuses):
        outcome = outcomes[index]
        if status >= _UNCOUNTED or outcome is None:
            parts.append(_WITHOUT_COUNT[status & 1])
            continue
        limit, remaining = limits[index].status, b""
        if status:
            limit = _OVER + limit[len(_OK) :]
        else:
            remaining = _room(outcome.remaining)
        reset = _reset(outcome.reset_us)
        parts.append(b"\x12" + _varint(len(limit) + len(remaining) + len(reset)))
        parts.append(limit + remaining + reset)
    if by_policy:
        additions += _policies(by_policy)
    return b"".join(parts) + additions


@lru_cache(maxsize=1024)
@lru_cache(maxsize=1024)
def _policies(by_policy: tuple[tuple[int, str], ...]) -> bytes:
    """The metadata that says which descriptors were decided by policy, tag and all."""
    listed = [{"descriptor": index, "policy": policy} for index, policy in by_policy]
    return _field(b"\x32", _struct({"by_policy": listed}))


_MAX_ENCODED: Final = 4_096
_encoded: Final[dict[int, EncodedLimit]] = {}
"""What `encode_limit` has given, by the limit's id: rules have one limit for all requests, and
hashing it costs more than all else here. The limit is kept with it, so that no other can get
its id."""


def encode_limit(limit: Limit) -> EncodedLimit:
    """What statuses of descriptors that meet this limit have in common."""
    known = _encoded.get(id(limit))
    if known is None:
        if len(_encoded) >= _MAX_ENCODED:
            _encoded.clear()  # rules have come and gone, or callers bring limits of their own
        known = _encoded[id(limit)] = EncodedLimit(limit)
    return known


_CODES: Final = {code: b"\x08%c" % code for code in Code}
"""A code as field 1, which it is in the response and in a status."""

_OK: Final = _CODES[Code.OK]
_OVER: Final = _CODES[Code.OVER_LIMIT]
_UNCOUNTED: Final = 2
_WITHOUT_COUNT: Final = [b"\x12%c%b" % (len(code), code) for code in (_OK, _OVER)]
"""Statuses that say nothing but their code."""


@lru_cache(maxsize=4096)
def _limit(limit: Limit) -> bytes:
    """A status's `current_limit`, tag and all."""
    message = RateLimitResponse.DescriptorStatus()
    current = message.current_limit
    current.requests_per_unit = limit.requests_per_unit
    # The stubs type enums as their classes, which exist for the type checker only.
    current.unit = NUMBERS[limit.unit]  # type: ignore[assignment]
    current.name = limit.name
    if limit.multiplier != 1:
        current.unit_multiplier.value = limit.multiplier
    return message.SerializeToString(deterministic=True)


def _varint(number: int) -> bytes:
    """Groups of seven bits, one or two at a time from tables."""
    if number < 0x80:
        return _ONES[number : number + 1]
    if number < _PAIR:
        return _PAIRS[2 * number : 2 * number + 2]
    low = 2 * (number & (_PAIR - 1))
    return _FIRST_PAIRS[low : low + 2] + _varint(number >> 14)


def _room(remaining: int) -> bytes:
    """A status's `limit_remaining`, tag and all; nothing for 0."""
    if remaining < 0x80:
        return _ROOMS[2 * remaining : 2 * remaining + 2] if remaining else b""
    if remaining < _PAIR:
        return b"\x18" + _PAIRS[2 * remaining : 2 * remaining + 2]
    low, rest = 3 * (remaining & (_PAIR - 1)), remaining >> 14
    last = _PAIRS[2 * rest : 2 * rest + 2] if 0x80 <= rest < _PAIR else _varint(rest)
    return _FIRST_ROOM_PAIRS[low : low + 3] + last


_PAIR: Final = 1 << 14

_ONES: Final = bytes(range(0x80))
"""The last group, if there is one."""


def _pairs(continued: int) -> bytes:
    pairs = bytearray(2 * _PAIR)
    pairs[0::2] = bytes(range(0x80, 0x100)) * 0x80
    pairs[1::2] = b"".join([bytes((high | continued,)) * 0x80 for high in range(0x80)])
    return bytes(pairs)


_PAIRS: Final = _pairs(0)
"""The last two groups, one number after the other. As objects they would take 700 KiB."""

_FIRST_PAIRS: Final = _pairs(0x80)
"""The same for two groups that more follow."""

_ROOMS: Final = bytes(each for number in range(0x80) for each in (0x18, number))


def _room_pairs() -> bytes:
    pairs = bytearray(3 * _PAIR)
    pairs[0::3] = b"\x18" * _PAIR
    pairs[1::3] = _FIRST_PAIRS[0::2]
    pairs[2::3] = _FIRST_PAIRS[1::2]
    return bytes(pairs)


_FIRST_ROOM_PAIRS: Final = _room_pairs()
"""The same behind the tag of `limit_remaining`."""


_MAX_RESETS: Final = 4_096
_resets: Final[dict[int, bytes]] = {}
"""What `_say_reset` has given, by the seconds. Microseconds differ from call to call; seconds are
the same for all who are answered in one of them."""


def _reset(reset_us: int) -> bytes:
    """A status's `duration_until_reset`, tag and all."""
    seconds = -(-reset_us // SECOND_US)
    return _resets.get(seconds) or _say_reset(seconds)


def _say_reset(seconds: int) -> bytes:
    """The same, of seconds that are rounded up; 0 is told as 1, as `whole_seconds` has it."""
    if len(_resets) >= _MAX_RESETS:
        _resets.clear()
    encoded = _varint(max(1, seconds))
    reset = _resets[seconds] = b"\x22%c\x08%b" % (1 + len(encoded), encoded)
    return reset


def encode_additions(
    response_headers: Sequence[Header],
    request_headers: Sequence[Header],
    body: bytes,
    metadata: Mapping[str, object],
) -> bytes:
    """What follows the statuses of an answer that says more."""
    parts = [_header(b"\x1a", header) for header in response_headers]
    parts += [_header(b"\x22", header) for header in request_headers]
    if body:
        parts.append(_field(b"\x2a", body))
    if metadata:
        parts.append(_field(b"\x32", _struct(metadata)))
    return b"".join(parts)


def encode_quota(until_us: int) -> bytes:
    """The end of a denial's answer: until then the same request is denied.

    It is a quota of one request, which the denied one has used up. `until_us` is in microseconds
    since 1970.
    """
    seconds, rest_us = divmod(until_us, SECOND_US)
    until = b"\x08" + _varint(seconds)
    if rest_us:
        until += b"\x10" + _varint(rest_us * 1_000)
    return _field(b"\x3a", b"\x08\x01" + _field(b"\x12", until))


def _header(tag: bytes, header: Header) -> bytes:
    """A `HeaderValue`, tag and all."""
    if not HEADER_NAME.fullmatch(header.key):
        raise ValueError(f"{header.key!r} is no header name")
    encoded = _field(b"\x0a", header.key.encode())
    if header.value:
        encoded += _field(b"\x12", _UNSAFE.sub("?", header.value).encode())
    return _field(tag, encoded)


def _field(tag: bytes, content: bytes) -> bytes:
    return b"%b%b%b" % (tag, _varint(len(content)), content)


def _struct(mapping: Mapping[str, object]) -> bytes:
    """A `google.protobuf.Struct`, its keys in order."""
    parts = []
    for key in sorted(mapping):
        value = mapping[key]
        if isinstance(value, (int, float)) or (isinstance(value, str) and len(value) <= _SHORT):
            parts.append(_short_member(key, value))
        else:
            parts.append(_member(key, value))
    return b"".join(parts)


def _member(key: str, value: object) -> bytes:
    return _field(b"\x0a", _field(b"\x0a", key.encode()) + _field(b"\x12", _value(value)))


_short_member: Final = lru_cache(maxsize=4096, typed=True)(_member)
"""What answers say of a limit changes rarely, so its bytes are kept."""


def _value(value: object) -> bytes:
    """A `google.protobuf.Value` of what JSON has."""
    if isinstance(value, str):
        return _field(b"\x1a", value.encode())
    if isinstance(value, bool):
        return b"\x20\x01" if value else b"\x20\x00"
    if isinstance(value, int | float):
        return b"\x11" + _DOUBLE.pack(value)
    if isinstance(value, Mapping):
        return _field(b"\x2a", _struct(value))
    if isinstance(value, Sequence):
        return _field(b"\x32", b"".join(_field(b"\x0a", _value(item)) for item in value))
    if value is None:
        return b"\x08\x00"
    raise ValueError(f"{value!r} is nothing that JSON has")


_SHORT: Final = 64
_DOUBLE: Final = struct.Struct("<d")


def decode_decision(body: bytes) -> Decision:
    """Reads a serialized RateLimitResponse. Raises ValueError if it is none that we can read."""
    try:
        message = RateLimitResponse.FromString(body)
        return Decision(
            Code(int(message.overall_code)),
            tuple(map(_status, message.statuses)),
            tuple(Header(header.key, header.value) for header in message.response_headers_to_add),
            tuple(Header(header.key, header.value) for header in message.request_headers_to_add),
            message.raw_body,
            _metadata(message.dynamic_metadata) if message.HasField("dynamic_metadata") else None,
        )
    except (DecodeError, KeyError) as error:
        raise ValueError("this is no RateLimitResponse") from error


def _metadata(message: Message) -> dict[str, object]:
    fields: dict[str, object] = MessageToDict(message)
    return fields


def _status(message: RateLimitResponse.DescriptorStatus) -> Status:
    limit = None
    if message.HasField("current_limit"):
        current = message.current_limit
        multiplier = current.unit_multiplier.value if current.HasField("unit_multiplier") else 1
        limit = Limit(current.requests_per_unit, UNITS[int(current.unit)], multiplier, current.name)
    reset_us = None
    if message.HasField("duration_until_reset"):
        reset_us = message.duration_until_reset.seconds * SECOND_US
    return Status(Code(int(message.code)), limit, message.limit_remaining, reset_us)
