"""The same two messages as proto3 JSON, for `/json`: read and written a little at a time.

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
from ratelimit_service.wire.messages import (
    POOL,
    RateLimitDescriptor,
    RateLimitRequest,
    RateLimitResponse,
)
from ratelimit_service.wire.request import MAX_DESCRIPTORS, MAX_ENTRIES

__all__ = ["MAX_BATCH", "JsonRequests", "decision_to_json", "requests_from_json"]

_ITEMS = 32
"""Entries or statuses in one step."""

MAX_BATCH: Final = 100
"""Requests in one list."""


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
    if not text.strip():
        raise BadRequestError("json", "the body is empty: send a RateLimitRequest in JSON")
    where = ""
    try:
        found = json.loads(text.decode(), object_pairs_hook=_object)
        yield
        if not isinstance(found, list):
            return JsonRequests([(yield from _serialized(found, refunds))], False)
        _check_batch(found)
        requests = []
        for place, each in enumerate(found):
            where = f"[{place}]: "
            requests.append((yield from _serialized(each, refunds)))
    except BadRequestError as error:
        if not where:
            raise
        raise BadRequestError(error.reason, f"{where}{error}", error.code) from error
    except (ParseError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise BadRequestError(
            "json", f"the body is no RateLimitRequest in JSON: {where}{reason}"
        ) from error
    return JsonRequests(requests, True)


def _check_batch(found: list[object]) -> None:
    """What is decided in one go is no more than what one request may have."""
    if not 0 < len(found) <= MAX_BATCH:
        raise BadRequestError(
            "batch", f"the list has {len(found)} requests: 1 to {MAX_BATCH} are allowed"
        )
    descriptors = entries = 0
    for request in found:
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


def _serialized(found: object, refunds: bool) -> Generator[None, None, bytes]:
    message = RateLimitRequest()
    yield from _request(found, message)
    if not refunds and any(each.is_negative_hits for each in message.descriptors):
        raise BadRequestError(
            "refund",
            "refunds (isNegativeHits) are taken over gRPC: --json-refunds allows them here",
        )
    yield
    return message.SerializeToString()


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ParseError("a name stands twice in one object")
    return found


def _request(found: object, message: RateLimitRequest) -> Generator[None, None, None]:
    if not isinstance(found, dict):
        raise ParseError("it must be an object")
    descriptors = found.pop("descriptors", None) or []
    _parse(found, message)
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
        for start in range(0, len(entries), _ITEMS):
            some = (
                RateLimitDescriptor()
            )  # a new message, because parsing replaces the list of an old one
            _parse({"entries": entries[start : start + _ITEMS]}, some)
            added.MergeFrom(some)
            yield
        yield


def _parse(found: dict[str, object], message: Message) -> None:
    ParseDict(found, message, descriptor_pool=POOL)


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
