"""What a decision adds to the counts that operators see."""

from __future__ import annotations

from collections.abc import Sequence

from ratelimit_service.algorithms import denying
from ratelimit_service.limiter.callers import TopCallers
from ratelimit_service.limiter.compiled import CompiledLimit, Kind, Plan
from ratelimit_service.limiter.statuses import ReportedLimit, by_policy, reported_limit
from ratelimit_service.model import Mode, Outcome
from ratelimit_service.observability.stats import Stats, Tally
from ratelimit_service.settings import Settings
from ratelimit_service.stores import Settled, Verdict

__all__ = ["tally", "tally_plain", "tally_sample", "tally_within"]


def tally_within(plans: list[Plan], outcomes: list[Outcome], callers: TopCallers | None) -> None:
    """The fast path for usual descriptors of which none was over."""
    for index, (rule, addend, _, node) in enumerate(plans):
        tally = node.tally
        if tally is not None:
            tally.hits += addend
            tally.within += addend
            remaining = outcomes[index].remaining
            if remaining < rule.near_remaining:
                near = min(addend, rule.near_remaining - remaining)
                tally.near += near
                if callers is not None:
                    limit = rule.limits[0]
                    callers.near(plans[index], limit.limit, limit.spec.limit, near, remaining)


def tally_plain(
    plans: Sequence[Plan],
    settled: Settled,
    stats: Stats,
    callers: TopCallers | None,
) -> None:
    """The fast path of `tally`, for usual descriptors."""
    outcomes, verdict = settled.outcomes, settled.verdict
    stats.decisions["over_limit" if verdict is Verdict.DENIED else "ok"] += 1
    for index, planned in enumerate(plans):
        rule, _, _, node = planned
        outcome = outcomes[index]
        if outcome is None or outcome.local:
            stats.policy_decisions[rule.policy] += 1
        if node.tally is not None:
            reported = ReportedLimit(rule.limits[0], outcome) if outcome is not None else None
            _add(planned, reported, node.tally, callers)


def tally(
    plans: Sequence[Plan],
    outcomes: Sequence[Sequence[Outcome | None]],
    verdict: Verdict,
    stats: Stats,
    settings: Settings,
    callers: TopCallers | None = None,
) -> None:
    """Adds an answered request to its rules' tallies and the process's stats."""
    stats.decisions["over_limit" if verdict is Verdict.DENIED else "ok"] += 1
    declared = []  # what the rules alone say, without the global shadow mode
    for planned, several in zip(plans, outcomes, strict=True):
        rule = planned.rule
        for override in rule.overrides:
            stats.override_decisions[override.kind] += 1
        if rule.kind is Kind.NO_RULE:
            if planned.node.tally is not None:
                planned.node.tally.hits += 1
            continue
        if rule.stray:
            stats.not_addresses += 1
        reported = reported_limit(planned, several)
        if planned.node.tally is not None:
            _add(planned, reported, planned.node.tally, callers)
        if by_policy(planned, reported):
            stats.policy_decisions[rule.policy] += 1
        if reported is not None and not planned.refund:
            declared.append((rule.mode, reported.outcome.over))
    if settings.shadow_mode and denying(declared) >= 0:
        stats.global_shadow_mode += 1


def _tally_callers(
    plans: Sequence[Plan], outcomes: Sequence[Outcome | None], callers: TopCallers, weight: int
) -> None:
    """Adds the descriptors of a request that were over or near to the callers of their rules.

    The request stands for `weight` requests. It was tallied before, without callers.
    """
    start = 0
    for planned in plans:
        rule, _, hits, node = planned
        stop = start + len(hits)
        if hits and node.tally is not None and not hits[0].refund:
            outcome = outcomes[start]
            if stop > start + 1:
                reported = reported_limit(planned, outcomes[start:stop])
                if reported is not None:
                    _add_to_callers(planned, *reported, callers, weight)
            elif outcome is not None:
                _add_to_callers(planned, rule.limits[0], outcome, callers, weight)
        start = stop


def tally_sample(callers: TopCallers) -> None:
    """Adds the requests of the sample that are kept to their rules' callers."""
    sample, callers.sample = callers.sample, []
    for body, plans, outcomes, weight in sample:
        if outcomes:
            _tally_callers(plans, outcomes, callers, weight)
        callers.busy(plans, weight)
        if callers.unnamed:
            callers.name(body, plans)


def _add_to_callers(
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


def _add(
    planned: Plan, reported: ReportedLimit | None, tally: Tally, callers: TopCallers | None
) -> None:
    """Adds one descriptor to a tally, and to its rule's callers if it was over or near.

    Several limits count as the one that speaks for them.
    """
    rule, hits, charged, _ = planned
    if rule.kind is Kind.UNLIMITED or rule.kind is Kind.BANNED:
        tally.hits += hits
        tally.within += hits if rule.kind is Kind.UNLIMITED else 0
        tally.over += hits if rule.kind is Kind.BANNED else 0
        return
    if reported is not None and charged[0].refund:
        tally.refunded += reported.outcome.charged
        return
    tally.hits += hits
    if reported is None or reported.outcome.local:
        tally.by_policy += hits
        return
    compiled, outcome = reported
    limit = compiled.spec.limit
    if callers is not None:
        _add_to_callers(planned, compiled, outcome, callers, 1)
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
