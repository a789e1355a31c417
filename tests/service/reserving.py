"""A gateway that reserves and commits, in the service's own process."""

from __future__ import annotations

from collections.abc import Sequence

from ratelimit_service.model import Request
from ratelimit_service.wire import encode_request
from ratelimit_service.wire.messages import RateLimitDescriptor, RateLimitRequest
from ratelimit_service.wire.reservations import (
    CommitRequest,
    CommitResponse,
    ReserveRequest,
    ReserveResponse,
)
from tests.service.asking import Asking, descriptor


def descriptors(texts: Sequence[str]) -> Sequence[RateLimitDescriptor]:
    """Descriptors as messages have them."""
    request = Request("llm", tuple(descriptor(text) for text in texts))
    return RateLimitRequest.FromString(encode_request(request)).descriptors


class Gateway:
    """It asks in one domain."""

    def __init__(self, asking: Asking, domain: str = "llm") -> None:
        self.reservations = asking.service.reservations
        self.domain = domain

    async def reserve(self, amount: int, *texts: str, hold_id: str = "", seconds: int = 0) -> str:
        """Returns the id; it is empty if the reservation was denied."""
        request = ReserveRequest(
            domain=self.domain,
            amount=amount,
            reservation_id=hold_id,
            descriptors=descriptors(texts),
        )
        if seconds:
            request.ttl.seconds = seconds
        answer = await self.reservations.call("Reserve", request.SerializeToString())
        assert isinstance(answer, bytes)
        return ReserveResponse.FromString(answer).reservation_id

    async def commit(self, hold_id: str, actual: int, *texts: str) -> bool:
        """Returns whether anything was held until now."""
        request = CommitRequest(
            domain=self.domain,
            reservation_id=hold_id,
            actual_amount=actual,
            descriptors=descriptors(texts),
        )
        answer = await self.reservations.call("Commit", request.SerializeToString())
        assert isinstance(answer, bytes)
        return CommitResponse.FromString(answer).reservation_released
