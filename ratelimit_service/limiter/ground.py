"""What a decision rests on: the limit that denied, else the one with the fewest hits left."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from ratelimit_service.limiter.compiled import Kind, Plan
from ratelimit_service.model import Hit, Limit, Outcome
from ratelimit_service.stores import Settled, Verdict

__all__ = ["DecidedBy", "Ground", "ground_of"]


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


class Ground(NamedTuple):
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


def ground_of(plans: Sequence[Plan], settled: Settled) -> Ground:
    """What decided a request with these plans."""
    outcomes, verdict, place = settled.outcomes, settled.verdict, settled.by
    for descriptor, planned in enumerate(plans):
        if planned.rule.kind is Kind.BANNED and not verdict.passes:
            return Ground(DecidedBy.OVERRIDE, descriptor, planned)
    if not outcomes:
        for descriptor, planned in enumerate(plans):
            if planned.rule.overrides and verdict is Verdict.ADMITTED:
                return Ground(DecidedBy.OVERRIDE, descriptor, planned)
        by_policy = verdict in (Verdict.DENIED, Verdict.FAILED)
        return Ground(DecidedBy.POLICY if by_policy else DecidedBy.NOTHING)
    if place < 0:
        place = _tightest([hit for planned in plans for hit in planned.hits], settled)
    outcome = outcomes[place]
    by = DecidedBy.LOCAL_CACHE if settled.cached else DecidedBy.COUNT
    if outcome is None or outcome.local:
        by = DecidedBy.POLICY
    for descriptor, planned in enumerate(plans):
        hits = planned.hits
        if place < len(hits):
            limit = planned.rule.limits[place].limit
            return Ground(by, descriptor, planned, limit, hits[place], outcome)
        place -= len(hits)
    raise IndexError(place)


def _tightest(hits: Sequence[Hit], settled: Settled) -> int:
    """The place of the hit that leaves the fewest others; one without an outcome comes first."""
    remaining = [
        -1 if outcome is None else outcome.remaining if not hit.refund else hit.spec.limit
        for hit, outcome in zip(hits, settled.outcomes, strict=True)
    ]
    return remaining.index(min(remaining))
