"""Kuadrant's messages: reserve and commit, as requests of ours, and what is answered.

What must not live here: what is held, and for how long (`service.reserving`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from ratelimit_service.errors import BadRequestError
from ratelimit_service.model import MAX_ADDEND
from ratelimit_service.wire.messages import (
    RateLimitRequest,
    RateLimitResponse,
    message_class,
    parsed,
)

if TYPE_CHECKING:
    from ratelimit_service.wire.generated.kuadrant.service.ratelimit.v1.ratelimit_pb2 import (
        CommitRequest,
        CommitResponse,
        ReserveRequest,
        ReserveResponse,
    )
else:
    _PACKAGE: Final = "kuadrant.service.ratelimit.v1"
    ReserveRequest = message_class(f"{_PACKAGE}.ReserveRequest")
    ReserveResponse = message_class(f"{_PACKAGE}.ReserveResponse")
    CommitRequest = message_class(f"{_PACKAGE}.CommitRequest")
    CommitResponse = message_class(f"{_PACKAGE}.CommitResponse")

__all__ = [
    "RESERVING_METHODS",
    "RESERVING_SERVICE",
    "CommitRequest",
    "CommitResponse",
    "ReserveRequest",
    "ReserveResponse",
    "Reserving",
    "encode_code",
    "encode_committed",
    "encode_reserved",
    "logged",
    "marked",
    "read_asked",
    "read_commit",
    "read_reserve",
    "unmarked",
]

RESERVING_SERVICE: Final = "kuadrant.service.ratelimit.v1.RateLimitService"
RESERVING_METHODS: Final = ("CheckRateLimit", "Report", "Reserve", "Commit")

_MARK: Final = b"\0"
"""No RateLimitRequest begins with it."""


def marked(method: str, message: bytes) -> bytes:
    """A message to one of these methods, for where requests to decide go."""
    return _MARK + bytes([RESERVING_METHODS.index(method)]) + message


def unmarked(body: bytes) -> tuple[str, bytes] | None:
    """The method and the message of a body that `marked` has made; None of a RateLimitRequest."""
    if body[:1] != _MARK or len(body) < len(_MARK) + 1:
        return None
    return RESERVING_METHODS[body[1]], body[2:]


class Reserving(NamedTuple):
    """What is to be held or settled: hits for each descriptor of a serialized RateLimitRequest.

    Without `hits` they are what the request says. Without an id it is a new reservation, or settles
    none. A time to live of 0 is the longest.
    """

    body: bytes
    hits: int | None = None
    id: str = ""
    ttl_us: int = 0


def read_reserve(message: bytes) -> Reserving:
    """Reads a ReserveRequest. Raises BadRequestError if it is none, or holds too much."""
    request = parsed(ReserveRequest, message)
    ttl_us = request.ttl.seconds * 1_000_000 + request.ttl.nanos // 1_000
    if request.HasField("ttl") and ttl_us <= 0:
        raise BadRequestError("ttl", "ttl is none: leave it out, or send more than 0 seconds")
    hits, its_id = _amount("amount", request.amount), request.reservation_id
    for name in ("amount", "ttl", "reservation_id"):
        request.ClearField(name)
    return Reserving(_body(request), hits, its_id, ttl_us)


def read_commit(message: bytes) -> Reserving:
    """Reads a CommitRequest. Raises BadRequestError if it is none, or counts too much."""
    request = parsed(CommitRequest, message)
    hits, its_id = _amount("actual_amount", request.actual_amount), request.reservation_id
    for name in ("reservation_id", "actual_amount"):
        request.ClearField(name)
    return Reserving(_body(request), hits, its_id)


def read_asked(message: bytes) -> Reserving:
    """Reads a RateLimitRequest that asks or reports: without a number it is of one hit."""
    request = parsed(RateLimitRequest, message)
    for descriptor in request.descriptors:
        descriptor.is_negative_hits = False
    return Reserving(request.SerializeToString())


def logged(asked: Reserving) -> bytes:
    """The request with its hits, as a RateLimitRequest."""
    # One message behind another is both in one.
    return asked.body + RateLimitRequest(hits_addend=asked.hits or 0).SerializeToString()


def encode_reserved(
    passes: bool, reservation_id: str = "", *, held: bool = False, too_large: bool = False
) -> bytes:
    """A ReserveResponse."""
    code = RateLimitResponse.OK if passes else RateLimitResponse.OVER_LIMIT
    response = ReserveResponse(
        code=code, reservation_id=reservation_id, held=held, too_large=too_large
    )
    return response.SerializeToString()


def encode_committed(released: bool) -> bytes:
    """A CommitResponse."""
    return CommitResponse(reservation_released=released).SerializeToString()


def encode_code(passes: bool) -> bytes:
    """A RateLimitResponse that says nothing but whether there is room."""
    code = RateLimitResponse.OK if passes else RateLimitResponse.OVER_LIMIT
    return RateLimitResponse(overall_code=code).SerializeToString()


def _amount(name: str, hits: int) -> int:
    if hits > MAX_ADDEND:
        raise BadRequestError(
            "amount", f"{name} is {hits}: at most {MAX_ADDEND} hits are counted at once"
        )
    return hits


def _body(request: ReserveRequest | CommitRequest) -> bytes:
    """The request of which nothing else is left, as a RateLimitRequest: both begin alike.

    It is the same for all numbers of hits, so that its plan is remembered.
    """
    for descriptor in request.descriptors:
        descriptor.ClearField("hits_addend")
        descriptor.is_negative_hits = False
    request.DiscardUnknownFields()  # which could be others of a RateLimitRequest
    return request.SerializeToString()
