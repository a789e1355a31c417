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
    if any(plan.rule.kind is Kind.BANNED for plan in plans):
        return None
    deciding: Rule | None = None
    enforced: list[tuple[Plan, bool | None]] = []
    quotas: list[tuple[Plan, bool | None]] = []
    start = 0
    for plan in plans:
        hits = plan.hits
        end = start + len(hits)
        if start <= by < end:
            deciding = plan.declared
        if hits and not hits[0].refund and hits[-1].mode is not Mode.SHADOW:
            alike = quotas if hits[-1].mode is Mode.QUOTA else enforced
            alike.append((plan, _over(plan.rule, outcomes[start:end])))
        start = end
    may_deny = enforced
    if all(over is not False for _, over in quotas):
        may_deny = enforced + quotas  # quotas deny only if none of them has room
    if any(over is None for _, over in may_deny):
        return None
    return deciding if _all_enqueue([plan for plan, over in may_deny if over]) else None


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
