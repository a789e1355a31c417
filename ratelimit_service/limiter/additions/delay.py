"""How long a request that a queue has admitted is to wait."""

from __future__ import annotations

from typing import Final

from ratelimit_service.limiter.additions.addition import (
    CountedAddition,
    DecisionContext,
    ResponseExtras,
)
from ratelimit_service.model import Header, Hit, Limit

__all__ = ["Delay"]

_HEADER: Final = "x-ratelimit-delay-ms"
_MILLISECOND_US: Final = 1_000


class Delay(CountedAddition):
    """The longest delay of the request's queues, in whole milliseconds, rounded up."""

    def applies_to_limit(self, limit: Limit) -> bool:
        """Of queues."""
        return limit.max_wait_us > 0

    def add(self, context: DecisionContext, extras: ResponseExtras) -> None:
        """Says nothing of what is counted here alone: a share says nothing of the limit."""
        delays_us = []
        for limit, hit, outcome in context.passed():
            queued = limit.limit.max_wait_us and not outcome.local
            if queued and (outcome.charged or not hit.addend):
                delays_us.append(outcome.reset_us - _own_us(hit))
        if delays_us:
            delay_ms = -(-max(0, *delays_us) // _MILLISECOND_US)
            extras.request_headers.append(Header(_HEADER, str(delay_ms)))
            extras.metadata["delay_ms"] = delay_ms


def _own_us(hit: Hit) -> int:
    """How long the bucket takes for the hits themselves, after what was in it before them.

    That is nothing for who only looks, also at a queue without a rate, and on a grant.
    """
    if not hit.addend or not hit.spec.form.queue:
        return 0
    return -(-hit.addend * hit.spec.window_us // hit.spec.rate)
