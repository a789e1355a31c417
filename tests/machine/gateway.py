"""What a gateway sends that reserves and settles, and what it is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ratelimit_service import wire
from ratelimit_service.errors import StatusCode
from ratelimit_service.model import Hit, Request
from ratelimit_service.service import Refusal
from ratelimit_service.wire.messages import RateLimitRequest, RateLimitResponse
from ratelimit_service.wire.reservations import (
    CommitRequest,
    CommitResponse,
    ReserveRequest,
    ReserveResponse,
)
from tests.machine.answers import Asked
from tests.machine.world import DOMAIN, Process, descriptor


class Spoken(NamedTuple):
    """What came of a call: what the caller is told, and what the store was asked for it."""

    passes: bool
    id: str
    held: bool
    """Of a settle: whether anything was held until then."""
    failed: bool
    hits: Sequence[Hit]


async def reserve(
    process: Process, asked: Sequence[Asked], hits: int, ttl_s: int, hold_id: str, seam: str = ""
) -> Spoken:
    """Reserves hits for so many seconds, 0 for as long as can be."""
    message = ReserveRequest(domain=DOMAIN, amount=hits, reservation_id=hold_id)
    message.descriptors.extend(_message(asked, 0).descriptors)
    if ttl_s:
        message.ttl.seconds = ttl_s
    answer, noted = await process.reserving("Reserve", message.SerializeToString(), seam)
    if isinstance(answer, Refusal):
        return _failed(answer, noted)
    told = ReserveResponse.FromString(answer)
    return Spoken(told.code == RateLimitResponse.OK, told.reservation_id, told.held, False, noted)


async def settle(
    process: Process, asked: Sequence[Asked], hits: int, hold_id: str, seam: str = ""
) -> Spoken:
    """Counts what was used, and ends what the id holds."""
    message = CommitRequest(domain=DOMAIN, actual_amount=hits, reservation_id=hold_id)
    message.descriptors.extend(_message(asked, 0).descriptors)
    answer, noted = await process.reserving("Commit", message.SerializeToString(), seam)
    if isinstance(answer, Refusal):
        return _failed(answer, noted)
    held = CommitResponse.FromString(answer).reservation_released
    return Spoken(True, hold_id, held, False, noted)


async def call(process: Process, method: str, asked: Sequence[Asked], hits: int) -> Spoken:
    """Asks whether hits would fit, or reports them."""
    message = _message(asked, hits).SerializeToString()
    answer, noted = await process.reserving(method, message)
    if isinstance(answer, Refusal):
        return _failed(answer, noted)
    code = RateLimitResponse.FromString(answer).overall_code
    return Spoken(code == RateLimitResponse.OK, "", False, False, noted)


def _failed(answer: Refusal, hits: Sequence[Hit]) -> Spoken:
    assert answer.code in (StatusCode.INTERNAL, StatusCode.UNAVAILABLE), answer
    return Spoken(False, "", False, True, hits)


def _message(asked: Sequence[Asked], hits: int) -> RateLimitRequest:
    request = Request(DOMAIN, tuple(map(descriptor, asked)), hits)
    return RateLimitRequest.FromString(wire.encode_request(request))
