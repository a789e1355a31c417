"""The same messages as proto3 JSON, for `/json`: read and written a little at a time.

protobuf takes some seven microseconds a field in JSON, so that a large request or answer would
hold the process for tens of milliseconds. These are generators: each step is a millisecond's work
or less, and what they return is the result (`slices.stepwise`).
"""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Final, NamedTuple

from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.message import Message

from ratelimit_service.errors import BadRequestError
from ratelimit_service.model.limit import MAX_ADDEND
from ratelimit_service.text.json_slips import json_slip
from ratelimit_service.wire.json_steps import read_json
from ratelimit_service.wire.messages import (
    POOL,
    RateLimitRequest,
    RateLimitResponse,
)
from ratelimit_service.wire.request import MAX_DESCRIPTORS, MAX_ENTRIES
from ratelimit_service.wire.reservations import CommitRequest, ReserveRequest

__all__ = [
    "MAX_BATCH",
    "JsonRequests",
    "decision_to_json",
    "message_from_json",
    "requests_from_json",
]

_ITEMS = 32
"""Entries or statuses in one step."""

MAX_BATCH: Final = 100
"""Requests in one list."""

_REQUEST: Final = RateLimitRequest.DESCRIPTOR.name

_MAX_DIGITS: Final = 20
"""Of a number: no field takes more, and Python's time for one grows with their square."""

_ZEROS: Final = bytes.maketrans(b"123456789", b"000000000")
_MANY_DIGITS: Final = b"0" * (_MAX_DIGITS + 1)
_SHOWN: Final = 64
"""Characters of a text that protobuf sees if its object cannot be read anyhow."""

_HITS: Final = f"a whole number from 0 to {MAX_ADDEND}"

_TAKES: Final = {
    "hits_addend": _HITS,
    "amount": _HITS,
    "actual_amount": _HITS,
    "ttl": 'a number of seconds with an s in double quotes, as "60s"',
    "reservation_id": "the text that Reserve has answered",
    "is_negative_hits": "true or false",
    "limit": 'as {"requestsPerUnit": 10, "unit": "MINUTE"}, with a whole number from 0 to '
    f"{MAX_ADDEND}, a unit from SECOND to YEAR, and perhaps a unitMultiplier",
}
"""What fields take, by their names."""

_MARKS: Final = b"{[:,"
_MAX_MARKS: Final = 10_000
"""Objects, lists, names and values of one body: the largest request with limits of its own has some
8,500."""

_MARKS_AT_ONCE: Final = 1_000
"""A body with more is read in steps. In one go, which is quicker, each takes up to a microsecond.
"""


class JsonRequests(NamedTuple):
    """The serialized requests of one body, which are decided each by itself.

    `listed` tells a list of one request from a request.
    """

    requests: list[bytes]
    listed: bool


def requests_from_json(text: bytes, *, refunds: bool) -> Generator[None, None, JsonRequests]:
    """One RateLimitRequest in proto3 JSON, or a list of them, serialized.

    Raises BadRequestError for anything else, for fields that the message does not have, for
    refunds unless these are allowed, and for a list that has more than one request may have.
    """
    try:
        parsed = yield from _value(text, _REQUEST)
        yield
        if not isinstance(parsed, list):
            return JsonRequests([(yield from _serialized(parsed, refunds))], False)
    except _WRONG as error:
        raise _refusal(error, _REQUEST) from error
    _check_batch(parsed)
    requests = []
    for index, item in enumerate(parsed):
        try:
            requests.append((yield from _serialized(item, refunds)))
        except _WRONG as error:
            raise _refusal(error, _REQUEST, f"[{index}]: ") from error
    return JsonRequests(requests, True)


def message_from_json(
    text: bytes, message: ReserveRequest | CommitRequest
) -> Generator[None, None, bytes]:
    """The message of this kind that a text in proto3 JSON is, serialized.

    Raises BadRequestError for anything else, and for fields that the message does not have.
    """
    name = message.DESCRIPTOR.name
    try:
        parsed = yield from _value(text, name)
        yield
        yield from _request(parsed, message)
    except _WRONG as error:
        raise _refusal(error, name) from error
    return message.SerializeToString()


_WRONG: Final = (BadRequestError, ParseError, ValueError, RecursionError)


def _value(text: bytes, name: str) -> Generator[None, None, object]:
    """What a body says that should be a message of this name. Raises one of what is wrong."""
    if not text.strip():
        raise BadRequestError("json", f"the body is empty: send a {name} in JSON")
    marks = _marks(text)
    if marks > _MAX_MARKS:
        raise ParseError(f"it has more than {_MAX_MARKS:,} objects, lists, names and values")
    whole = _whole if _MANY_DIGITS in text.translate(_ZEROS) else None
    decoder = json.JSONDecoder(object_pairs_hook=_object, parse_int=whole, parse_float=_fraction)
    if marks > _MARKS_AT_ONCE:
        return (yield from read_json(text.decode(), decoder))
    return decoder.decode(text.decode())


def _refusal(
    error: BadRequestError | ParseError | ValueError | RecursionError, name: str, where: str = ""
) -> BadRequestError:
    """What a caller is told of what is wrong in a body, or in the request of a list."""
    if isinstance(error, BadRequestError):
        return BadRequestError(error.reason, f"{where}{error}", error.code)
    reason = str(error) if isinstance(error, ParseError) else json_slip(error)
    return BadRequestError("json", f"the body is no {name} in JSON: {where}{reason}")


def _marks(text: bytes) -> int:
    """How many objects, lists, names and values a body has; more, if it is no JSON."""
    marks = _counted(text)
    if marks > _MAX_MARKS:  # most of them may be in texts, and cost nothing there
        plain = text.replace(b"\\\\", b"").replace(b'\\"', b"")
        if plain.count(b'"') <= 2 * _MAX_MARKS:  # not more texts than there may be values
            marks = _counted(b"".join(plain.split(b'"')[::2]))
    return marks


def _counted(text: bytes) -> int:
    return sum(text.count(mark) for mark in _MARKS)


def _check_batch(requests: list[object]) -> None:
    """What is decided in one go is no more than what one request may have."""
    if not 0 < len(requests) <= MAX_BATCH:
        raise BadRequestError(
            "batch", f"the list has {len(requests)} requests: 1 to {MAX_BATCH} are allowed"
        )
    descriptors = entries = 0
    for request in requests:
        listed = request.get("descriptors") if isinstance(request, dict) else None
        for descriptor in listed if isinstance(listed, list) else ():
            descriptors += 1
            own = descriptor.get("entries") if isinstance(descriptor, dict) else None
            entries += len(own) if isinstance(own, list) else 0
    for name, number, most in (
        ("descriptors", descriptors, MAX_DESCRIPTORS),
        ("entries", entries, MAX_ENTRIES),
    ):
        if number > most:
            raise BadRequestError(
                "batch", f"the requests have {number} {name} together: at most {most} are allowed"
            )


def _serialized(parsed: object, refunds: bool) -> Generator[None, None, bytes]:
    message = RateLimitRequest()
    yield from _request(parsed, message)
    if not refunds and any(descriptor.is_negative_hits for descriptor in message.descriptors):
        raise BadRequestError(
            "refund",
            "refunds (isNegativeHits) are taken over gRPC: --json-refunds allows them here",
        )
    yield
    return message.SerializeToString()


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ParseError("a name stands twice in one object")
    return fields


def _whole(digits: str) -> int:
    return int(_short(digits))


def _fraction(digits: str) -> float:
    return float(_short(digits))


def _short(digits: str) -> str:
    if len(digits) > _MAX_DIGITS:
        raise ParseError(f"a number has {len(digits)} digits: at most {_MAX_DIGITS} are allowed")
    return digits


def _request(
    fields: object, message: RateLimitRequest | ReserveRequest | CommitRequest
) -> Generator[None, None, None]:
    if not isinstance(fields, dict):
        raise ParseError("it must be an object")
    descriptors = fields.pop("descriptors", None) or []
    domain = fields.pop("domain", None)
    if not isinstance(domain, str | None):
        raise ParseError("domain must be a text")
    message.domain = domain or ""
    _parse(fields, message)
    if not isinstance(descriptors, list):
        raise ParseError("descriptors must be a list")
    if len(descriptors) > MAX_DESCRIPTORS:
        raise BadRequestError(
            "too_many_descriptors",
            f"descriptors has {len(descriptors)}: at most {MAX_DESCRIPTORS} are allowed",
        )
    for descriptor in descriptors:
        if not isinstance(descriptor, dict):
            raise ParseError("each of descriptors must be an object")
        entries = descriptor.pop("entries", None) or []
        if not isinstance(entries, list):
            raise ParseError("entries must be a list")
        added = message.descriptors.add()
        _parse(descriptor, added)
        for index, entry in enumerate(entries):
            added.entries.add(**_texts(entry))
            if index % _ITEMS == 0:
                yield
        yield


def _texts(entry: object) -> dict[str, str]:
    """The key and the value of an entry; raises ParseError if it has anything else."""
    if not isinstance(entry, dict):
        raise ParseError("each of entries must be an object")
    texts = {name: text for name, text in entry.items() if text is not None}
    for name, text in texts.items():
        if name not in ("key", "value"):
            raise ParseError(f"an entry has key and value, and no {name[:_SHOWN]!r}")
        if not isinstance(text, str):
            raise ParseError(f"the {name} of an entry must be a text")
    return texts


def _parse(fields: dict[str, object], message: Message) -> None:
    """Reads what has no long texts: protobuf takes ten milliseconds for 128 KiB of them."""
    short = {name[:_SHOWN]: _cut(value) for name, value in fields.items()}
    try:
        ParseDict(short, message, descriptor_pool=POOL)
    except ParseError as error:
        raise ParseError(_wrong_field(short, message)) from error


def _wrong_field(values: dict[str, object], message: Message) -> str:
    """What is wrong with values that protobuf does not take; it says so in Python's words."""
    described = message.DESCRIPTOR
    fields = {field.name: field for field in described.fields}
    fields |= {field.json_name: field for field in described.fields}
    for name, value in values.items():
        known = fields.get(name)
        if known is None:
            names = ", ".join(field.json_name for field in described.fields)
            return f"{described.name} has no field {name!r}: allowed are {names}"
        try:
            ParseDict({name: value}, type(message)(), descriptor_pool=POOL)
        except ParseError:
            return f"{name} must be {_TAKES.get(known.name, 'another value')}"
    return f"a field of {described.name} is not as it should be"


def _cut(value: object) -> object:
    """The same with short texts. A text that would be cut is none that any field takes."""
    if isinstance(value, str):
        return value[:_SHOWN]
    if isinstance(value, dict):
        return {name[:_SHOWN]: _cut(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_cut(item) for item in value]
    return value


def decision_to_json(body: bytes) -> Generator[None, None, bytes]:
    """A serialized RateLimitResponse in proto3 JSON: lowerCamelCase, zero fields left out."""
    message = RateLimitResponse.FromString(body)
    statuses = []
    for number, status in enumerate(message.statuses, 1):
        statuses.append(MessageToDict(status, descriptor_pool=POOL))
        if number % _ITEMS == 0:
            yield
    del message.statuses[:]
    shown = MessageToDict(message, descriptor_pool=POOL)
    if statuses:
        shown["statuses"] = statuses
    yield
    return json.dumps(shown).encode()
