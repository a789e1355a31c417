"""What a decision adds to the counts that operators see."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache

from ratelimit_service.algorithms import denies
from ratelimit_service.limiter.plan import Kind, Plan
from ratelimit_service.model import Code, Decision, Outcome
from ratelimit_service.observer import Counters, Tally
from ratelimit_service.settings import Settings

__all__ = ["near_threshold", "tally"]


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
        if planned.kind is Kind.NO_RULE:
            continue
        if planned.tally is not None:
            _add(planned, outcome, planned.tally, settings.near_limit_ratio)
        if outcome is None and planned.kind is not Kind.UNLIMITED:
            counters.policy_decisions[planned.policy] += 1
    if settings.shadow_mode and denies(
        (planned.mode, outcome.over)
        for planned, outcome in zip(plans, outcomes, strict=True)
        if outcome and planned.hit and not planned.hit.refund
    ):
        counters.global_shadow_mode += 1


def _add(planned: Plan, outcome: Outcome | None, tally: Tally, near_ratio: float) -> None:
    hits, hit = planned.addend, planned.hit
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
        tally.near += room and hit.limit - max(near_threshold(hit.limit, near_ratio), before)
        if planned.rule and planned.rule.shadow_mode:
            tally.shadow += hits - room
    elif outcome.charged < hits:
        tally.uncharged += hits
    else:
        tally.within += hits
        above = hit.limit - outcome.left - near_threshold(hit.limit, near_ratio)
        tally.near += max(0, min(hits, above))


@lru_cache(maxsize=4096)
def near_threshold(limit: int, ratio: float) -> int:
    """The count above which hits are near the limit; in float32, as envoyproxy/ratelimit has it."""
    return int(_float32(_float32(limit) * _float32(ratio)))


def _float32(number: float) -> float:
    (rounded,) = struct.unpack("f", struct.pack("f", number))
    return float(rounded)
