"""Which rule's queue a denied request goes into."""

from __future__ import annotations

from collections.abc import Sequence

from ratelimit_service.limiter.compiled import CompiledRule, Kind, Plan
from ratelimit_service.model import FailurePolicy, Mode
from ratelimit_service.rules.tree import Rule
from ratelimit_service.stores import Outcomes, Settled, Verdict

__all__ = ["queue_of"]


def queue_of(plans: Sequence[Plan], settled: Settled) -> Rule | None:
    """The rule that denied a request, if it goes into that rule's queue.

    It does if every rule that denies it says `on_limit: enqueue`. What a ban or a failure policy
    denies goes nowhere: not even a later try may pass.
    """
    outcomes, verdict, by, _ = settled
    if verdict is not Verdict.DENIED or by < 0:
        return None
    deciding: Rule | None = None
    enforced: list[CompiledRule] = []
    quotas: list[CompiledRule] = []
    room = False
    place = 0
    for rule, _, hits in plans:
        if rule.kind is Kind.BANNED:
            return None
        if not hits:
            continue
        after = place + len(hits)
        if place <= by < after:
            deciding = rule.declared
        mode, refund = hits[0].mode, hits[0].refund
        over = _over(rule, outcomes[place:after])
        place = after
        if refund or mode is Mode.SHADOW:
            continue
        if over is None:
            return None
        if mode is Mode.QUOTA:
            quotas.append(rule)
            room = room or not over
        elif over:
            enforced.append(rule)
    denying = enforced if room else enforced + quotas
    for rule in denying:
        if rule.declared is None or not rule.declared.enqueue:
            return None
    return deciding


def _over(rule: CompiledRule, outcomes: Outcomes) -> bool | None:
    """Whether a limit of a descriptor is over; None if a failure policy denies it."""
    missing = False
    for outcome in outcomes:
        if outcome is None:
            missing = True
        elif outcome.over:
            return True
    return None if missing and rule.policy is FailurePolicy.CLOSED else False
