"""Answers at hand, for requests that come again and again while there is no time to count them.

There is no time to plan them either. So the last answer to the same bytes is given again: that of a
failure policy or of the local cache, and a denial that a store has given and that still holds.
After a moment they are asked again. An answer for which something was counted is never at hand.
What must not live here: when there is no time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from ratelimit_service import limiter
from ratelimit_service.limiter import Plan
from ratelimit_service.observability.stats import Stats
from ratelimit_service.rules.tree import Rule
from ratelimit_service.service.asked import Asked
from ratelimit_service.service.callers import CallOrigin
from ratelimit_service.service.records import DecisionRecord
from ratelimit_service.stores import Settled, Verdict

__all__ = ["AtHand", "Ready", "known_denial", "uncounted"]

_LIFE_US: Final = 50_000
_MOST: Final = 4_096
"""For how long, and how many, answers are at hand."""

_HOLDS_US: Final = 2 * _LIFE_US
"""A store's denial is at hand if it holds for so long: also if the store's answer took a while."""


def uncounted(asked: Asked, settled: Settled) -> Settled | None:
    """What comes of the same request, if nothing was counted for this one; None if something was.

    Then failure policies have decided it, or the local cache knows who is over.
    """
    if asked.limits is None or not settled.outcomes:
        return None
    for outcome in settled.outcomes:
        if outcome is not None and (outcome.local or outcome.remaining or not outcome.over):
            return None
    return settled


def known_denial(asked: Asked, settled: Settled) -> Settled | None:
    """What comes of the same request, if a store has denied this one; None if that may not hold.

    It holds for a while, and counted nothing. So who asks the same again is over then, too.
    """
    if settled.verdict is not Verdict.DENIED:
        return None
    if asked.limits is None or asked.leasing or settled.by < 0:
        return None
    for hit in asked.hits:
        if hit.count_denied:
            return None
    outcome = settled.outcomes[settled.by]
    if outcome is None or outcome.local or outcome.reset_us < _HOLDS_US:
        return None
    if not asked.hits[settled.by].spec.algorithm.cached:
        return None
    return Settled(settled.outcomes, settled.verdict, settled.by, cached=True)


class Ready:
    """An answer, and how often it was given."""

    __slots__ = ("denied", "message", "origins", "plans", "queue", "record", "settled", "times")

    def __init__(self, message: bytes, plans: Sequence[Plan], settled: Settled) -> None:
        self.message = message
        self.plans = plans
        self.settled = settled
        self.denied = settled.verdict is Verdict.DENIED
        """Whether the caller is known to be over, or a failure policy denies it."""
        self.times = 0
        self.record: DecisionRecord | None = None
        """What listeners and tracers hear of it."""
        self.queue: Rule | None = None
        """The rule into whose queue these requests go."""
        self.origins: list[CallOrigin] = []
        """Some of the callers that got it, if somebody asks who they are."""


class AtHand:
    """Answers by the bytes of their requests."""

    def __init__(
        self,
        stats: Stats,
        tell: Callable[[DecisionRecord, int, Sequence[CallOrigin]], None] | None = None,
        callers: limiter.TopCallers | None = None,
        enqueue: Callable[[Rule, bytes, int], None] | None = None,
    ) -> None:
        """`tell` hears how often an answer with a record was given, and some of the callers.

        Callers who were over are added to `callers`, which has those of all rules. `enqueue` hears
        how often a request was denied that goes into a queue.
        """
        self._enqueue = enqueue
        self._tell = tell
        self._callers = callers
        self._stats = stats
        self._answers: dict[bytes, Ready] = {}
        self._since_us = 0
        self._given = 0
        self.watching = False
        """Whether denials of stores are kept, since there was no time for some calls just now."""
        self.denials = 0
        """How many of the answers deny."""

    def answers(self, now_us: int) -> dict[bytes, Ready]:
        """The answers that may be given at this moment. Whoever gives one adds to its `times`."""
        if now_us - self._since_us >= _LIFE_US:
            self._since_us = now_us
            self._tally()
        return self._answers

    def put(self, body: bytes, ready: Ready) -> None:
        """Keeps an answer for which nothing was counted."""
        if len(self._answers) < _MOST and body not in self._answers:
            self._answers[body] = ready
            self.denials += ready.denied

    def settle(self) -> int:
        """Forgets all answers; returns how many were given since the last time."""
        self.watching = False
        self._tally()
        given, self._given = self._given, 0
        return given

    def _tally(self) -> None:
        callers = self._callers
        answers, self._answers = self._answers, {}  # before anything fails: none is told twice
        self.denials = 0
        for body, ready in answers.items():
            if ready.times:
                limiter.tally_plain(ready.plans, ready.settled, self._stats, ready.times)
                if callers is not None and (stands_for := callers.chance()):
                    weight = ready.times * stands_for
                    limiter.look(ready.plans, ready.settled.outcomes, callers, weight)
                    if callers.unnamed:
                        callers.name(body, ready.plans)
                self._stats.latency.add(0, ready.times)
                self._given += ready.times
                if ready.queue is not None and self._enqueue is not None:
                    self._enqueue(ready.queue, body, ready.times)
                if ready.record is not None and self._tell is not None:
                    self._tell(ready.record, ready.times, ready.origins)
