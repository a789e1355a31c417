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
    denies goes nowhere: not even a later try may pass. Nor does a peek: nobody wanted more than to
    look.
    """
    outcomes, by = settled.outcomes, settled.by
    if settled.verdict is not Verdict.DENIED or by < 0:
        return None
    deciding: Rule | None = None
    enforced: list[Plan] = []
    quotas: list[Plan] = []
    room = by_policy = False
    start = 0
    for plan in plans:
        hits = plan.hits
        if plan.rule.kind is Kind.BANNED:
            return None
        if not hits:
            continue
        over = _over(plan.rule, outcomes[start : start + len(hits)])
        if start <= by < start + len(hits):
            deciding = plan.declared
        start += len(hits)
        mode = hits[0].mode
        if hits[0].refund or mode is Mode.SHADOW:
            continue
        if mode is Mode.QUOTA:
            quotas.append(plan)
            room = room or over is False
            by_policy = by_policy or over is None
        elif over is None:
            return None
        elif over:
            enforced.append(plan)
    if by_policy and not room:
        return None
    denying = enforced if room else enforced + quotas
    return deciding if _all_enqueue(denying) else None


def _all_enqueue(denying: Sequence[Plan]) -> bool:
    """Whether all of these rules have a queue, and more than a look was asked of one of them."""
    asked_for = 0
    for plan in denying:
        if plan.declared is None or not plan.declared.enqueue:
            return False
        asked_for += plan.addend
    return asked_for > 0


def _over(rule: CompiledRule, outcomes: Outcomes) -> bool | None:
    """Whether a limit of a descriptor is over in the store; None if a failure policy denies it.

    `local` is such a policy: what this process counts alone is no count of the store.
    """
    denied = False
    for outcome in outcomes:
        if outcome is None:
            denied = denied or rule.policy is FailurePolicy.CLOSED
        elif outcome.over:
            if not outcome.local:
                return True
            denied = True
    return None if denied else False
