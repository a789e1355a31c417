"""RateLimitRequest: bytes to model and back, and every reason to refuse one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from google.protobuf.message import DecodeError

from ratelimit_service.errors import BadRequestError, StatusCode
from ratelimit_service.model import (
    MAX_ADDEND,
    MAX_EXACT,
    Descriptor,
    Entry,
    Limit,
    Request,
    Unit,
    new_tuple,
)
from ratelimit_service.wire.messages import RateLimitDescriptor, RateLimitRequest

__all__ = [
    "MAX_BODY_BYTES",
    "MAX_DESCRIPTORS",
    "NUMBERS",
    "UNITS",
    "Split",
    "decode_request",
    "encode_request",
    "last_value_at",
    "plain_descriptor",
    "plain_entries",
    "split_request",
]

MAX_BODY_BYTES: Final = 65_536
MAX_DESCRIPTORS: Final = 256
MAX_ENTRIES: Final = 1_024
"""Of all descriptors together. A request is planned in one go, while all others wait: so many take
three to four milliseconds if every one of them is matched. Envoy sends a few dozen."""

MAX_DOMAIN: Final = 4_096
"""Characters, as many as rules may have in theirs: each descriptor is looked up with it."""

_ENTRY: Final = b"\x0a"
"""The tag of an entry, and of its key. An entry has five bytes at least."""

_FEW_BYTES: Final = 5 * MAX_ENTRIES
"""So many bytes cannot hold more entries than are allowed."""

UNITS: Final = {
    1: Unit.SECOND,
    2: Unit.MINUTE,
    3: Unit.HOUR,
    4: Unit.DAY,
    5: Unit.MONTH,
    6: Unit.YEAR,
    7: Unit.WEEK,
}
"""Units by their numbers on the wire, the same in overrides and in answers."""

NUMBERS: Final = {unit: number for number, unit in UNITS.items()}


def decode_request(body: bytes) -> Request:
    """Reads a serialized RateLimitRequest.

    Raises BadRequestError, naming the field, for one that cannot be decided.
    """
    if len(body) > MAX_BODY_BYTES:
        raise BadRequestError(
            "too_large",
            f"the request has {len(body)} bytes: at most {MAX_BODY_BYTES} are allowed",
            StatusCode.RESOURCE_EXHAUSTED,
        )
    try:
        message = RateLimitRequest.FromString(body)
    except DecodeError as error:
        raise BadRequestError("malformed", "the request is no RateLimitRequest") from error
    if not message.domain:
        raise BadRequestError("no_domain", "domain is empty: name the domain of the rules to apply")
    if len(message.domain) > MAX_DOMAIN:
        raise BadRequestError(
            "domain_too_long",
            f"domain has {len(message.domain)} characters: at most {MAX_DOMAIN} are allowed",
        )
    if not message.descriptors:
        raise BadRequestError("no_descriptors", "descriptors is empty: at least one is needed")
    if len(message.descriptors) > MAX_DESCRIPTORS:
        raise BadRequestError(
            "too_many_descriptors",
            f"descriptors has {len(message.descriptors)}: at most {MAX_DESCRIPTORS} are allowed",
        )
    entries = sum([len(descriptor.entries) for descriptor in message.descriptors])
    if entries > MAX_ENTRIES:
        raise BadRequestError(
            "too_many_entries",
            f"descriptors have {entries} entries together: at most {MAX_ENTRIES} are allowed",
        )
    descriptors = tuple(
        [_descriptor(descriptor, index) for index, descriptor in enumerate(message.descriptors)]
    )
    return Request(message.domain, descriptors, message.hits_addend)


class Split:
    """A request parted without decoding it: one request for each of its descriptors.

    In each part the descriptor starts at `descriptor_at`.
    """

    __slots__ = ("addend", "descriptor_at", "parts")

    def __init__(self, parts: list[bytes], descriptor_at: int, addend: int) -> None:
        self.parts = parts
        self.descriptor_at = descriptor_at
        self.addend = addend

    @property
    def domain(self) -> str:
        """The domain. Raises UnicodeDecodeError if it is no text."""
        return self.name.decode()

    @property
    def name(self) -> bytes:
        """The domain as it came."""
        start = 2
        while self.parts[0][start - 1] & 0x80:
            start += 1
        return self.parts[0][start : self.descriptor_at]


def split_request(body: bytes) -> Split | None:
    """Parts a request.

    None for anything but a domain, then 1 to 256 descriptors, then perhaps an addend, as Envoy
    writes it: let `decode_request` see.
    """
    size = len(body)
    if size > MAX_BODY_BYTES or body[:1] != b"\x0a":
        return None
    if size > _FEW_BYTES and body.count(_ENTRY) > 2 * MAX_ENTRIES:
        return None  # it may have more entries than are allowed
    try:
        length, at = _varint(body, 1)
        if length > MAX_DOMAIN:
            return None  # it may have more characters than are allowed
        at += length
        domain, tail, addend = body[:at], b"", 0
        spans: list[tuple[int, int]] = []
        while at < size and body[at] == 0x12 and len(spans) <= MAX_DESCRIPTORS:
            start = at
            length = body[at + 1]
            at += 2
            if length & 0x80:
                length, at = _varint(body, start + 1)
            at += length
            spans.append((start, at))
        if at < size and body[at] == 0x18:
            tail = body[at:]
            addend, at = _varint(body, at + 1)
    except IndexError:
        return None
    if (
        at != size
        or not 0 < len(spans) <= MAX_DESCRIPTORS
        or len(domain) < 3
        or addend > MAX_ADDEND
    ):
        return None
    return Split([domain + body[start:stop] + tail for start, stop in spans], len(domain), addend)


def plain_entries(part: bytes, at: int) -> tuple[Entry, ...] | None:
    """The entries of the descriptor at `at`, if these are all that it has.

    None for anything but short keys and values as Envoy writes them: let `decode_request` see.
    """
    entries = []
    try:
        size = part[at + 1]
        stop = at + 2 + size
        if size & 0x80 or stop > len(part):
            return None
        at += 2
        while at < stop:
            tag, size, key_tag, key_size = part[at : at + 4]
            key_at, end = at + 4, at + 2 + size
            value_at = key_at + key_size
            if tag != 0x0A or key_tag != 0x0A or not key_size or value_at > end:
                return None
            value = ""
            if value_at < end:
                if part[value_at] != 0x12 or value_at + 2 + part[value_at + 1] != end:
                    return None
                value = part[value_at + 2 : end].decode()
            entries.append(new_tuple(Entry, (part[key_at:value_at].decode(), value)))
            at = end
    except (IndexError, ValueError):  # it ends too early, or is no UTF-8
        return None
    return tuple(entries) if at == stop else None


def plain_descriptor(entries: Sequence[Entry]) -> bytes:
    """A descriptor of these entries as `plain_entries` reads it: these are its only bytes.

    Nothing if there are other bytes, or none, that it reads as the same entries.
    """
    coded = b""
    try:
        for key, value in entries:
            key_bytes, value_bytes = key.encode(), value.encode()
            pair = b"\x0a%c%b\x12%c%b" % (
                len(key_bytes),
                key_bytes,
                len(value_bytes),
                value_bytes,
            )
            coded += b"\x0a%c%b" % (len(pair), pair)
            if not (key_bytes and value_bytes):
                return b""
    except (OverflowError, UnicodeEncodeError):  # it is long, or can be in no request
        return b""
    return b"\x12%c%b" % (len(coded), coded) if len(coded) < 0x80 else b""


def last_value_at(part: bytes, at: int) -> int:
    """Where the value of the last entry starts, if the descriptor at `at` ends the part; else 0.

    It follows the lengths and checks nothing else. Whether the descriptor is plain depends only on
    the bytes in front of the last value. So that is checked once for each such beginning.
    """
    try:
        stop = at + 2 + part[at + 1]
        if stop != len(part):
            return 0
        at += 2
        end = at + 2 + part[at + 1]
        while end < stop:
            at = end
            end = at + 2 + part[at + 1]
        return at + 6 + part[at + 3]
    except IndexError:
        return 0


def _varint(body: bytes, at: int) -> tuple[int, int]:
    """A varint of at most 35 bits, and where it ends. Raises IndexError if there is none."""
    number = body[at]
    at += 1
    if number < 0x80:
        return number, at
    number &= 0x7F
    for shift in (7, 14, 21, 28):
        byte = body[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise IndexError


def _descriptor(message: RateLimitDescriptor, index: int) -> Descriptor:
    entries = tuple([new_tuple(Entry, (entry.key, entry.value)) for entry in message.entries])
    for key, _ in entries:
        if not key:
            position = [key for key, _ in entries].index("")
            raise BadRequestError(
                "no_key",
                f"descriptors[{index}].entries[{position}].key is empty: every entry needs a key",
            )
    addend = message.hits_addend.value if message.HasField("hits_addend") else None
    if addend is not None and addend > MAX_ADDEND:
        raise BadRequestError(
            "addend_too_large",
            f"descriptors[{index}].hits_addend is {addend}: at most {MAX_ADDEND} is allowed",
        )
    limit = _limit(message.limit, index) if message.HasField("limit") else None
    return Descriptor(entries, limit, addend, message.is_negative_hits)


def _limit(message: RateLimitDescriptor.RateLimitOverride, index: int) -> Limit:
    unit = UNITS.get(message.unit)
    if unit is None:
        raise BadRequestError(
            "unknown_unit",
            f"descriptors[{index}].limit.unit is {message.unit}: allowed are 1 (second), "
            "2 (minute), 3 (hour), 4 (day), 5 (month), 6 (year) and 7 (week)",
        )
    multiplier = message.unit_multiplier.value if message.HasField("unit_multiplier") else 1
    limit = Limit(message.requests_per_unit, unit, multiplier)
    if not 0 < limit.window_us < MAX_EXACT:
        raise BadRequestError(
            "bad_multiplier",
            f"descriptors[{index}].limit.unit_multiplier is {multiplier}: the window must have "
            "at least one unit and at most 285 years",
        )
    return limit


def encode_request(request: Request) -> bytes:
    """Serializes a request, for a client."""
    message = RateLimitRequest(domain=request.domain, hits_addend=request.hits_addend)
    for descriptor in request.descriptors:
        added = message.descriptors.add()
        for key, value in descriptor.entries:
            added.entries.add(key=key, value=value)
        if limit := descriptor.limit:
            added.limit.requests_per_unit = limit.requests_per_unit
            # The enum has no name for a week; its field takes any number.
            added.limit.unit = NUMBERS[limit.unit]  # type: ignore[assignment]
            if limit.multiplier != 1:
                added.limit.unit_multiplier.value = limit.multiplier
        if descriptor.hits_addend is not None:
            added.hits_addend.value = descriptor.hits_addend
            added.hits_addend.SetInParent()
        added.is_negative_hits = descriptor.is_negative_hits
    return message.SerializeToString()
