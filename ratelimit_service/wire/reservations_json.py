"""Reservations as proto3 JSON, for `/json/reserve` and `/json/settle`."""

from __future__ import annotations

from typing import Final

from google.protobuf.json_format import MessageToDict, Parse, ParseError
from google.protobuf.message import Message

from ratelimit_service.errors import BadRequestError
from ratelimit_service.wire.messages import RateLimitResponse
from ratelimit_service.wire.reservations import (
    CommitRequest,
    CommitResponse,
    ReserveRequest,
    ReserveResponse,
)

__all__ = ["commit_from_json", "committed_to_dict", "reserve_from_json", "reserved_to_dict"]

_MOST_BYTES: Final = 16_384
"""It is read in one go, which takes a few milliseconds for so much."""


def reserve_from_json(text: bytes) -> bytes:
    """A serialized ReserveRequest. Raises BadRequestError if the text is none."""
    return _serialized(text, ReserveRequest())


def commit_from_json(text: bytes) -> bytes:
    """A serialized CommitRequest. Raises BadRequestError if the text is none."""
    return _serialized(text, CommitRequest())


def reserved_to_dict(answer: bytes) -> tuple[bool, dict[str, object]]:
    """Whether a ReserveResponse says that there is room, and its fields in JSON."""
    response = ReserveResponse.FromString(answer)
    return response.code == RateLimitResponse.OK, MessageToDict(response)


def committed_to_dict(answer: bytes) -> dict[str, object]:
    """The fields of a CommitResponse in JSON."""
    released = CommitResponse.FromString(answer).reservation_released
    return {"reservationReleased": released}


def _serialized(text: bytes, message: Message) -> bytes:
    if len(text) > _MOST_BYTES:
        raise BadRequestError("too_large", f"the body is too large: at most {_MOST_BYTES} bytes")
    try:
        return Parse(text, message).SerializeToString()
    except (ParseError, ValueError, RecursionError) as error:
        name = message.DESCRIPTOR.name
        raise BadRequestError("json", f"the body is no {name} in JSON: {error}") from error
