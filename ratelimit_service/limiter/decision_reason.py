"""What a decision rests on: the limit that denied, else the one with the fewest hits left."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from ratelimit_service.limiter.compiled import Kind, Plan
from ratelimit_service.limiter.turns import payer
from ratelimit_service.model import Hit, Limit, Outcome
from ratelimit_service.stores import Settled, Verdict

__all__ = ["DecidedBy", "DecisionReason", "decision_reason"]


class DecidedBy(StrEnum):
    """What a decision rests on."""

    COUNT = "count"
    """What a store has counted."""
    POLICY = "policy"
    """A failure policy; `local` counts in this process alone."""
    LOCAL_CACHE = "local_cache"
    """A limit that is known to be over, without asking the store."""
    OVERRIDE = "override"
    """A ban or an exemption of an operator, without asking the store."""
    NOTHING = "nothing"
    """No limit applied, or the request was refused before it was counted."""


class DecisionReason(NamedTuple):
    """What decided a request. Where no limit did, there is nothing but `by`.

    `descriptor` is the place of the one that this is about. `outcome` is the count there, None
    without one. The `plan` is its, and also says which overrides took part.
    """

    by: DecidedBy
    descriptor: int = -1
    plan: Plan | None = None
    limit: Limit | None = None
    hit: Hit | None = None
    outcome: Outcome | None = None

    @property
    def in_turn(self) -> tuple[str, ...]:
        """The names of the limits that were asked in turn, if they are of such a list."""
        if self.plan is None or not self.plan.rule.in_turn:
            return ()
        return tuple(dict.fromkeys([each.limit.name for each in self.plan.rule.limits]))


def decision_reason(plans: Sequence[Plan], settled: Settled) -> DecisionReason:
    """What decided a request with these plans."""
    outcomes, verdict, index = settled.outcomes, settled.verdict, settled.by
    for descriptor, planned in enumerate(plans):
        if planned.rule.kind is Kind.BANNED and not verdict.passes:
            return DecisionReason(DecidedBy.OVERRIDE, descriptor, planned)
    if not outcomes:
        for descriptor, planned in enumerate(plans):
            if planned.rule.overrides and verdict is Verdict.ADMITTED:
                return DecisionReason(DecidedBy.OVERRIDE, descriptor, planned)
        by_policy = verdict in (Verdict.DENIED, Verdict.FAILED)
        return DecisionReason(DecidedBy.POLICY if by_policy else DecidedBy.NOTHING)
    return _reason(plans, settled, _tightest(plans, settled) if index < 0 else index)


def _reason(plans: Sequence[Plan], settled: Settled, index: int) -> DecisionReason:
    """What is told where the hit at this place decided.

    Of limits that pay in turn it is the one that speaks for all of them.
    """
    start = 0
    for descriptor, planned in enumerate(plans):
        end = start + len(planned.hits)
        if index < end:
            each = settled.outcomes[start:end]
            place = payer(planned, each) if planned.rule.in_turn else index - start
            outcome, limit = each[place], planned.rule.limits[place].limit
            by = DecidedBy.LOCAL_CACHE if settled.cached else DecidedBy.COUNT
            if outcome is None or outcome.local:
                by = DecidedBy.POLICY
            return DecisionReason(by, descriptor, planned, limit, planned.hits[place], outcome)
        start = end
    raise IndexError(index)


def _tightest(plans: Sequence[Plan], settled: Settled) -> int:
    """The place of the hit that leaves the fewest others; one without an outcome comes first.

    Of limits that pay in turn only the one that paid is looked at.
    """
    remaining: list[int] = []
    for planned in plans:
        each = settled.outcomes[len(remaining) : len(remaining) + len(planned.hits)]
        if planned.rule.in_turn:
            each = [each[payer(planned, each)]] * len(each)
        remaining += [
            -1 if outcome is None else hit.spec.limit if hit.refund else outcome.remaining
            for hit, outcome in zip(planned.hits, each, strict=True)
        ]
    return remaining.index(min(remaining))
