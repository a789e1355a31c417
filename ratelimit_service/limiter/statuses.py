"""The status of each descriptor: which of its limits speaks for it, and what it says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ratelimit_service.limiter.compiled import CompiledLimit, Kind, Plan
from ratelimit_service.limiter.turns import payer
from ratelimit_service.model import MAX_ADDEND, Code, FailurePolicy, Mode, Outcome, Status

__all__ = ["ReportedLimit", "by_policy", "remaining_of", "reported_limit", "statuses_of"]


class ReportedLimit(NamedTuple):
    """The limit that speaks for a descriptor, and its outcome."""

    limit: CompiledLimit
    outcome: Outcome


def reported_limit(planned: Plan, outcomes: Sequence[Outcome | None]) -> ReportedLimit | None:
    """The limit that speaks for a descriptor, with its outcome.

    A limit that is over comes first, then one that this process counted alone. Of several that are
    over, the one with the longest wait speaks. Of others, the one with the fewest remaining hits
    does, then the first. None if the failure policy speaks: no limit is known to be over, and one
    has no outcome. Of limits that pay in turn it is the one that paid (`turns.payer`).
    """
    if planned.rule.in_turn and None not in outcomes:
        speaks = payer(planned, outcomes)
        outcome = outcomes[speaks]
        assert outcome is not None  # noqa: S101 -- as none is
        return ReportedLimit(planned.rule.limits[speaks], outcome)
    best, missing = None, False
    for limit, outcome in zip(planned.rule.limits, outcomes, strict=True):
        if outcome is None:
            missing = True
        elif best is None or _before(ReportedLimit(limit, outcome), best):
            best = ReportedLimit(limit, outcome)
    if missing and best is not None and not best.outcome.over:
        return None
    return best


def _before(one: ReportedLimit, other: ReportedLimit) -> bool:
    first, second = one.outcome, other.outcome
    if first.over != second.over:
        return first.over
    if first.local != second.local:
        return first.local
    return (
        first.reset_us > second.reset_us if first.over else remaining_of(one) < remaining_of(other)
    )


def remaining_of(one: ReportedLimit) -> int:
    """How many hits remain, without the soft part."""
    return max(0, one.outcome.remaining - one.limit.soft)


def _status(planned: Plan, reported: ReportedLimit | None, ban_us: int | None) -> Status:
    rule = planned.rule
    if rule.kind is Kind.NO_RULE:
        return Status(Code.OK)
    if rule.kind is Kind.UNLIMITED:
        return Status(Code.OK, remaining=MAX_ADDEND)
    if rule.kind is Kind.BANNED:
        return Status(Code.OVER_LIMIT, reset_us=ban_us)
    if reported is None:
        return Status(_by_policy(planned))
    outcome = reported.outcome
    over = outcome.over and rule.mode is not Mode.SHADOW
    if outcome.local:
        return Status(Code.OVER_LIMIT if over else Code.OK)
    return Status(
        Code.OVER_LIMIT if over else Code.OK,
        reported.limit.limit,
        0 if outcome.over else remaining_of(reported),
        outcome.reset_us,
    )


def _by_policy(planned: Plan) -> Code:
    closed = planned.rule.policy is FailurePolicy.CLOSED and not planned.refund
    return Code.OVER_LIMIT if closed else Code.OK


def by_policy(planned: Plan, reported: ReportedLimit | None) -> bool:
    """Whether the failure policy decided on a descriptor, not the count of a store."""
    if reported is not None:
        return reported.outcome.local
    return planned.rule.kind in (Kind.COUNTED, Kind.UNSERVED)


def statuses_of(
    plans: Sequence[Plan], reported: Sequence[ReportedLimit | None], ban_us: int | None = None
) -> tuple[Status, ...]:
    """A status for each descriptor, of the limits that speak for them.

    `ban_us` is how long a banned request is to wait; None if its bans have no end.
    """
    return tuple(
        [_status(planned, one, ban_us) for planned, one in zip(plans, reported, strict=True)]
    )
