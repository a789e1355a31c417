"""What a decision adds to the counts that operators see."""

from __future__ import annotations

from collections.abc import Sequence

from ratelimit_service.algorithms import denies
from ratelimit_service.limiter.plan import Kind, Plan
from ratelimit_service.model import Code, Decision, Outcome
from ratelimit_service.observer import Counters, Tally
from ratelimit_service.settings import Settings

__all__ = ["tally", "tally_within"]


def tally_within(plans: Sequence[Plan], outcomes: Sequence[Outcome]) -> None:
    """Adds the hits of a request none of which was over, and none given back."""
    for (terms, addend, _), (_, left, _, _) in zip(plans, outcomes, strict=True):
        tally = terms.tally
        if tally is not None:
            tally.hits += addend
            tally.within += addend
            if left < terms.near_left:
                tally.near += min(addend, terms.near_left - left)


def tally(
    plans: Sequence[Plan],
    outcomes: Sequence[Outcome | None],
    decision: Decision,
    counters: Counters,
    settings: Settings,
) -> None:
    """Adds one decision to the rules' tallies and the process's counters."""
    counters.decisions["over_limit" if decision.code is Code.OVER_LIMIT else "ok"] += 1
    for planned, outcome in zip(plans, outcomes, strict=True):
        terms = planned.terms
        if terms.kind is Kind.NO_RULE:
            continue
        if terms.tally is not None:
            _add(planned, outcome, terms.tally)
        if outcome is None and terms.kind is not Kind.UNLIMITED:
            counters.policy_decisions[terms.policy] += 1
    if settings.shadow_mode and denies(
        (planned.terms.mode, outcome.over)
        for planned, outcome in zip(plans, outcomes, strict=True)
        if outcome and planned.hit and not planned.hit.refund
    ):
        counters.global_shadow_mode += 1


def _add(planned: Plan, outcome: Outcome | None, tally: Tally) -> None:
    terms, hits, hit = planned
    if hit is None:  # unlimited
        tally.hits += hits
        tally.within += hits
        return
    if outcome is not None and hit.refund:
        tally.refunded += outcome.charged
        return
    tally.hits += hits
    if outcome is None:
        tally.by_policy += hits
    elif outcome.over:
        # Only hits that are counted although denied can be partly below the limit.
        room = min(hits, outcome.left) if hit.count_denied else 0
        tally.over += hits - room
        before = hit.limit - outcome.left
        tally.near += room and hit.limit - max(terms.near_limit, before)
        if terms.rule and terms.rule.shadow_mode:
            tally.shadow += hits - room
    elif outcome.charged < hits:
        tally.uncharged += hits
    else:
        tally.within += hits
        above = hit.limit - outcome.left - terms.near_limit
        tally.near += max(0, min(hits, above))
