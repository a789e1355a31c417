"""The result of one request in a store: the outcomes of its hits, and its verdict.

A store derives the verdict once. Nobody works it out again from the outcomes. What must not live
here: how hits are counted (`algorithms`), and what callers are told (`limiter`).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import Final

from ratelimit_service.algorithms import denying
from ratelimit_service.model import FailurePolicy, Hit, Mode, Outcome

__all__ = ["BROKEN", "DROPPED", "Granted", "Outcomes", "Settled", "Verdict", "judge"]

Outcomes = list[Outcome | None]
"""One for each hit of a request, in order; None where the store gave no answer in time."""


class Verdict(Enum):
    """What becomes of a request."""

    WITHIN = auto()
    """It passes, and the store has counted every hit below its limit, as nearly always."""
    ADMITTED = auto()
    """It passes, though a hit is over its limit, or was not counted by the store."""
    DENIED = auto()
    """It does not pass: a limit is over, or a failure policy denies."""
    FAILED = auto()
    """It gets an error: the store gave no answer, and the failure policy is `error`."""
    DROPPED = auto()
    """It was not charged, since its caller had stopped waiting."""
    BROKEN = auto()
    """It was not charged, and no failure policy applies: a fault of the store's own, which is in
    the log."""

    @property
    def passes(self) -> bool:
        """Whether the request is admitted."""
        return self is Verdict.WITHIN or self is Verdict.ADMITTED


class Settled:
    """One request, settled. It has no outcomes if it was not charged. Nobody changes it.

    `by` is the place of the hit that decided, if one did: it denied the request, or made it fail.
    Else it is -1. `cached`: the local cache knew it, and no store was asked.
    """

    __slots__ = ("by", "cached", "outcomes", "verdict")

    def __init__(
        self, outcomes: Outcomes, verdict: Verdict, by: int = -1, cached: bool = False
    ) -> None:
        self.outcomes = outcomes
        self.verdict = verdict
        self.by = by
        self.cached = cached

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Settled) and (
            (self.outcomes, self.verdict, self.by, self.cached)
            == (other.outcomes, other.verdict, other.by, other.cached)
        )

    def __hash__(self) -> int:
        return hash((tuple(self.outcomes), self.verdict, self.by, self.cached))


class Granted(Settled):
    """One of a request that has grants: `hits` are what was charged, one for each of its own.

    Where a grant stands in for a limit that is the hit on the grant's counter.
    """

    __slots__ = ("hits",)

    def __init__(
        self,
        outcomes: Outcomes,
        verdict: Verdict,
        by: int,
        cached: bool,
        hits: Sequence[Hit],
    ) -> None:
        super().__init__(outcomes, verdict, by, cached)
        self.hits = hits


DROPPED: Final = Settled([], Verdict.DROPPED)
BROKEN: Final = Settled([], Verdict.BROKEN)

_WITHIN: Final = Verdict.WITHIN
_ADMITTED: Final = Verdict.ADMITTED
_GRANT: Final = Mode.GRANT
_CLOSED: Final = FailurePolicy.CLOSED
_ERROR: Final = FailurePolicy.ERROR


def judge(hits: Sequence[Hit], outcomes: Outcomes) -> Settled:
    """The verdict on a request whose hits have these outcomes.

    The limits of one descriptor are over together. One that is known to be over decides for its
    descriptor; else, if one of them has no outcome, the failure policy does. An `error` of the
    policy comes before all denials.
    """
    local = False
    for outcome in outcomes:
        if outcome is None or outcome.over:
            return _judge(hits, outcomes)
        local = local or outcome.local
    return Settled(outcomes, _ADMITTED if local else _WITHIN)


def _judge(hits: Sequence[Hit], outcomes: Outcomes) -> Settled:
    descriptors: list[tuple[Mode, bool]] = []
    deciding: list[int] = []
    index, count = 0, len(hits)
    while index < count:
        over = missing = -1
        while True:  # the limits of one descriptor
            outcome = outcomes[index]
            if outcome is None:
                missing = index if missing < 0 else missing
            elif outcome.over and over < 0:
                over = index
            index += 1
            last = hits[index - 1]
            if index == count or not (hits[index][7] or last[3] is _GRANT):
                break
        mode, refund, policy = last[3], last[5], last[8]
        if refund:
            continue
        if over < 0 <= missing:
            if policy is _ERROR:
                return Settled(outcomes, Verdict.FAILED, missing)
            over = missing if policy is _CLOSED else -1
        descriptors.append((mode, over >= 0))
        deciding.append(over)
    by = denying(descriptors)
    if by < 0:
        return Settled(outcomes, Verdict.ADMITTED)
    return Settled(outcomes, Verdict.DENIED, deciding[by])
