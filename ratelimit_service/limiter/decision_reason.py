"""What a decision rests on: the limit that denied, else the one with the fewest hits left."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from ratelimit_service.limiter.compiled import Kind, Plan
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
    if index < 0:
        index = _tightest([hit for planned in plans for hit in planned.hits], settled)
    outcome = outcomes[index]
    by = DecidedBy.LOCAL_CACHE if settled.cached else DecidedBy.COUNT
    if outcome is None or outcome.local:
        by = DecidedBy.POLICY
    for descriptor, planned in enumerate(plans):
        hits = planned.hits
        if index < len(hits):
            limit = planned.rule.limits[index].limit
            return DecisionReason(by, descriptor, planned, limit, hits[index], outcome)
        index -= len(hits)
    raise IndexError(index)


def _tightest(hits: Sequence[Hit], settled: Settled) -> int:
    """The place of the hit that leaves the fewest others; one without an outcome comes first."""
    remaining = [
        -1 if outcome is None else outcome.remaining if not hit.refund else hit.spec.limit
        for hit, outcome in zip(hits, settled.outcomes, strict=True)
    ]
    return remaining.index(min(remaining))
