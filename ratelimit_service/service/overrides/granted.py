"""What a request with grants came to: one outcome for each of its limits.

A store is asked for grants and limits in a row, and tells of each by itself. Grants that are spent
are left out for a minute, since they would cost each request of their caller. What must not live
here: which grants there are (`limiter.apply_overrides`), and how they are charged (`algorithms`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ratelimit_service.eventloop.clock import elapsed_us
from ratelimit_service.model import MAX_ADDEND, SECOND_US, Hit, Mode
from ratelimit_service.stores import Granted, Outcomes, Settled

__all__ = ["SpentGrants", "granted"]

_MOST_SPENT: Final = 10_000

_SPENT_US: Final = 60 * SECOND_US
"""For so long, so that nothing is lost if hits are given back."""


class SpentGrants:
    """Grants' counters of which nothing is left, and until when that is remembered."""

    def __init__(self) -> None:
        self._until_us: dict[bytes, int] = {}
        """The oldest first."""

    def without(self, hits: Sequence[Hit]) -> Sequence[Hit]:
        """Those of these hits that are on no spent grant."""
        if not self._until_us:
            return hits
        until_us, now_us = self._until_us, elapsed_us()
        return [hit for hit in hits if until_us.get(hit.key, 0) <= now_us]

    def learn(self, hits: Sequence[Hit], settled: Settled) -> None:
        """Takes in the grants of a request that has left nothing of them."""
        spent = [
            hit.key
            for hit, outcome in zip(hits, settled.outcomes, strict=False)
            if hit.mode is Mode.GRANT and outcome and not (outcome.remaining or outcome.local)
        ]
        for key in spent:
            self._until_us.pop(key, None)
            self._until_us[key] = elapsed_us() + _SPENT_US
        while len(self._until_us) > _MOST_SPENT:
            del self._until_us[next(iter(self._until_us))]


def granted(hits: Sequence[Hit], settled: Settled) -> Settled:
    """The result for the limits alone of a request that was charged with these hits.

    What remains of a limit with room is what remains of it and of its grants.
    """
    if not settled.outcomes:
        return settled
    outcomes: Outcomes = []
    charged: list[Hit] = []
    by, more, taken, count = -1, 0, None, 0
    for index, (hit, told) in enumerate(zip(hits, settled.outcomes, strict=True)):
        if index == settled.by:
            by = len(outcomes)
        if hit.mode is Mode.GRANT:
            if told is not None:
                more += told.remaining
                if told.charged:
                    taken, count = hit, told.charged
            continue
        outcome = told
        if told is not None and not told.over and not hit.refund:
            remaining = min(MAX_ADDEND, told.remaining + more)
            outcome = told.replaced(remaining=remaining, charged=told.charged + count)
        outcomes.append(outcome)
        charged.append(taken or hit)
        more, taken, count = 0, None, 0
    return Granted(outcomes, settled.verdict, by, settled.cached, charged)
