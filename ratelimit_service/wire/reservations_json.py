"""Reservations as proto3 JSON, for `/json/reserve` and `/json/settle`."""

from __future__ import annotations

from collections.abc import Generator

from google.protobuf.json_format import MessageToDict

from ratelimit_service.wire.json import message_from_json
from ratelimit_service.wire.messages import RateLimitResponse
from ratelimit_service.wire.reservations import (
    CommitRequest,
    CommitResponse,
    ReserveRequest,
    ReserveResponse,
)

__all__ = ["commit_from_json", "committed_to_dict", "reserve_from_json", "reserved_to_dict"]


def reserve_from_json(text: bytes) -> Generator[None, None, bytes]:
    """A serialized ReserveRequest. Raises BadRequestError if the text is none."""
    return message_from_json(text, ReserveRequest())


def commit_from_json(text: bytes) -> Generator[None, None, bytes]:
    """A serialized CommitRequest. Raises BadRequestError if the text is none."""
    return message_from_json(text, CommitRequest())


def reserved_to_dict(answer: bytes) -> tuple[bool, dict[str, object]]:
    """Whether a ReserveResponse says that there is room, and its fields in JSON."""
    response = ReserveResponse.FromString(answer)
    return response.code == RateLimitResponse.OK, MessageToDict(response)


def committed_to_dict(answer: bytes) -> dict[str, object]:
    """The fields of a CommitResponse in JSON."""
    released = CommitResponse.FromString(answer).reservation_released
    return {"reservationReleased": released}
