"""What a decision adds to the counts that operators see."""

from __future__ import annotations

from collections.abc import Sequence

from ratelimit_service.algorithms import denying
from ratelimit_service.limiter.callers import TopCallers
from ratelimit_service.limiter.compiled import CompiledLimit, Kind, Plan
from ratelimit_service.limiter.statuses import Shown, by_policy, shown
from ratelimit_service.model import Mode, Outcome
from ratelimit_service.observability.stats import Stats, Tally
from ratelimit_service.settings import Settings
from ratelimit_service.stores import Settled, Verdict

__all__ = ["look_at_kept", "tally", "tally_plain", "tally_within"]


def tally_within(
    plans: list[Plan], outcomes: list[Outcome], callers: TopCallers | None = None
) -> None:
    """The short way for usual descriptors of which none was over."""
    for place, (rule, addend, _, met) in enumerate(plans):
        tally = met.tally
        if tally is not None:
            tally.hits += addend
            tally.within += addend
            remaining = outcomes[place].remaining
            if remaining < rule.near_remaining:
                near = min(addend, rule.near_remaining - remaining)
                tally.near += near
                if callers is not None:
                    limit = rule.limits[0]
                    callers.near(plans[place], limit.limit, limit.spec.limit, near, remaining)


def tally_plain(
    plans: Sequence[Plan],
    settled: Settled,
    stats: Stats,
    callers: TopCallers | None = None,
) -> None:
    """The short way of `tally`, for usual descriptors."""
    outcomes, verdict = settled.outcomes, settled.verdict
    stats.decisions["ok" if verdict.passes else "over_limit"] += 1
    for place, planned in enumerate(plans):
        rule, _, _, met = planned
        outcome = outcomes[place]
        if outcome is None or outcome.local:
            stats.policy_decisions[rule.policy] += 1
        if met.tally is not None:
            spoken = Shown(rule.limits[0], outcome) if outcome is not None else None
            _add(planned, spoken, met.tally, callers)


def tally(
    plans: Sequence[Plan],
    outcomes: Sequence[Sequence[Outcome | None]],
    verdict: Verdict,
    stats: Stats,
    settings: Settings,
    callers: TopCallers | None = None,
) -> None:
    """Adds an answered request to its rules' tallies and the process's stats."""
    stats.decisions["ok" if verdict.passes else "over_limit"] += 1
    declared = []  # what the rules alone say, without the global shadow mode
    for planned, each in zip(plans, outcomes, strict=True):
        rule = planned.rule
        for override in rule.overrides:
            stats.override_decisions[override.kind] += 1
        if rule.kind is Kind.NO_RULE:
            if planned.met.tally is not None:
                planned.met.tally.hits += 1
            continue
        if rule.stray:
            stats.not_addresses += 1
        spoken = shown(planned, each)
        if planned.met.tally is not None:
            _add(planned, spoken, planned.met.tally, callers)
        if by_policy(planned, spoken):
            stats.policy_decisions[rule.policy] += 1
        if spoken is not None and not planned.refund:
            declared.append((rule.mode, spoken.outcome.over))
    if settings.shadow_mode and denying(declared) >= 0:
        stats.global_shadow_mode += 1


def _look(
    plans: Sequence[Plan], outcomes: Sequence[Outcome | None], callers: TopCallers, weight: int
) -> None:
    """Adds the descriptors of a request that were over or near to the callers of their rules.

    The request stands for `weight` requests. It was tallied before, without callers.
    """
    start = 0
    for planned in plans:
        rule, _, hits, met = planned
        stop = start + len(hits)
        if hits and met.tally is not None and not hits[0].refund:
            outcome = outcomes[start]
            if stop > start + 1:
                spoken = shown(planned, outcomes[start:stop])
                if spoken is not None:
                    _tell(planned, *spoken, callers, weight)
            elif outcome is not None:
                _tell(planned, rule.limits[0], outcome, callers, weight)
        start = stop


def look_at_kept(callers: TopCallers) -> None:
    """Adds the requests of the sample that are kept to their rules' callers."""
    kept, callers.kept = callers.kept, []
    for body, plans, outcomes, weight in kept:
        if outcomes:
            _look(plans, outcomes, callers, weight)
        callers.busy(plans, weight)
        if callers.unnamed:
            callers.name(body, plans)


def _tell(
    planned: Plan, compiled: CompiledLimit, outcome: Outcome, callers: TopCallers, weight: int
) -> None:
    """Adds a descriptor to its rule's callers if it was over or near; it counts `weight` times."""
    if outcome.local:
        return
    hits, limit = planned.addend, compiled.spec.limit
    if outcome.over:
        if outcome.charged:
            hits -= min(hits, outcome.remaining)
        if hits:
            callers.over(planned, compiled.limit, limit, weight * hits)
    elif outcome.charged >= hits:
        near = min(hits, limit - outcome.remaining - compiled.near_limit)
        if near > 0:
            callers.near(planned, compiled.limit, limit, weight * near, outcome.remaining)


def _add(planned: Plan, spoken: Shown | None, tally: Tally, callers: TopCallers | None) -> None:
    """Adds one descriptor to a tally, and to its rule's callers if it was over or near.

    Several limits count as the one that speaks for them.
    """
    rule, hits, _, _ = planned
    if rule.kind is Kind.UNLIMITED or rule.kind is Kind.BANNED:
        tally.hits += hits
        tally.within += hits if rule.kind is Kind.UNLIMITED else 0
        tally.over += hits if rule.kind is Kind.BANNED else 0
        return
    if spoken is not None and planned.refund:
        tally.refunded += spoken.outcome.charged
        return
    tally.hits += hits
    if spoken is None or spoken.outcome.local:
        tally.by_policy += hits
        return
    compiled, outcome = spoken
    limit = compiled.spec.limit
    if callers is not None:
        _tell(planned, compiled, outcome, callers, 1)
    if outcome.over:
        # Only where denied hits are counted can some of them lie below the limit.
        room = min(hits, outcome.remaining) if outcome.charged else 0
        tally.over += hits - room
        before = limit - outcome.remaining
        tally.near += room and limit - max(compiled.near_limit, before)
        if rule.mode is Mode.SHADOW:
            tally.shadow += hits - room
    elif outcome.charged < hits:
        tally.uncharged += hits
    else:
        tally.within += hits
        near = min(hits, limit - outcome.remaining - compiled.near_limit)
        if near > 0:
            tally.near += near
