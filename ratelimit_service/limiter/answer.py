"""From what the store settled to what the caller is told. Renders, and decides nothing.

What an answer says beside its statuses are `additions`, the same on the slow and the fast path.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from ratelimit_service.limiter.additions import DecisionContext, response_extras
from ratelimit_service.limiter.compiled import Plan
from ratelimit_service.limiter.statuses import (
    ReportedLimit,
    by_policy,
    remaining_of,
    reported_limit,
    statuses_of,
)
from ratelimit_service.limiter.turns import is_soft_part
from ratelimit_service.model import (
    Calendar,
    Code,
    Decision,
    FailurePolicy,
    Mode,
    Outcome,
    whole_seconds,
)
from ratelimit_service.stores import Outcomes

__all__ = ["Plain", "answer", "plain"]

COUNTED_OK: Final = 0
COUNTED_OVER: Final = 1
UNCOUNTED_OK: Final = 2
UNCOUNTED_OVER: Final = 3
"""What a status says: its code, and whether a count stands behind it or a failure policy."""

_CLOSED: Final = FailurePolicy.CLOSED
_SHADOW: Final = Mode.SHADOW


def answer(context: DecisionContext) -> Decision:
    """Renders a request that passes, or is denied."""
    plans, outcomes = context.plans, context.outcomes
    reported = [
        reported_limit(planned, several) for planned, several in zip(plans, outcomes, strict=True)
    ]
    additions = 0
    for planned in plans:
        additions |= planned.rule.additions
    extras = response_extras(additions, context)
    extras.metadata |= _limits(plans, outcomes)
    extras.metadata |= _by_policies(plans, reported)
    extras.metadata |= _by_overrides(plans)
    return Decision(
        Code.OK if context.passes else Code.OVER_LIMIT,
        statuses_of(plans, reported, context.ban_us),
        tuple(extras.response_headers),
        tuple(extras.request_headers),
        extras.body,
        metadata=extras.metadata or None,
        holds_us=extras.holds_us,
    )


class Plain(NamedTuple):
    """What a request of usual descriptors is told.

    `statuses` says for each descriptor one of the four above. `by_policy` lists the descriptors
    that a failure policy decided, with its name.
    """

    statuses: list[int]
    by_policy: tuple[tuple[int, str], ...]


def plain(plans: Sequence[Plan], outcomes: Outcomes) -> Plain | None:
    """The fast path of `answer`, for usual descriptors: each has one hit and one outcome.

    None if several hits are denied of which some would pass: then the slow path says more.
    """
    statuses: list[int] = []
    by_policy: list[tuple[int, str]] = []
    for index, planned in enumerate(plans):
        rule, outcome = planned[0], outcomes[index]
        if outcome is None:
            policy = rule.policy
            statuses.append(UNCOUNTED_OVER if policy is _CLOSED else UNCOUNTED_OK)
            by_policy.append((index, policy))
            continue
        over = outcome.over and rule.mode is not _SHADOW
        if outcome.local:
            statuses.append(UNCOUNTED_OVER if over else UNCOUNTED_OK)
            by_policy.append((index, rule.policy))
        elif outcome.over and outcome.remaining:
            return None
        else:
            statuses.append(COUNTED_OVER if over else COUNTED_OK)
    return Plain(statuses, tuple(by_policy))


def _by_policies(
    plans: Sequence[Plan], reported: Sequence[ReportedLimit | None]
) -> dict[str, object]:
    """Which descriptors were decided by failure policy, and by which."""
    listed = [
        {"descriptor": index, "policy": str(planned.rule.policy)}
        for index, (planned, limit) in enumerate(zip(plans, reported, strict=True))
        if by_policy(planned, limit)
    ]
    return {"by_policy": listed} if listed else {}


def _by_overrides(plans: Sequence[Plan]) -> dict[str, object]:
    """Which overrides of an operator took part, and for which descriptors."""
    listed = [
        {"descriptor": index, "kind": str(override.kind), "id": override.id}
        for index, planned in enumerate(plans)
        for override in planned.rule.overrides
    ]
    return {"by_override": listed} if listed else {}


def _limits(
    plans: Sequence[Plan], outcomes: Sequence[Sequence[Outcome | None]]
) -> dict[str, object]:
    """What a status does not show: all limits of a descriptor that has several.

    Also each limit that denies several hits although fewer would pass.
    """
    listed = [
        _limit(index, ReportedLimit(limit, outcome))
        for index, (planned, several) in enumerate(zip(plans, outcomes, strict=True))
        if len(planned.hits) > 1 or any(map(_partly, several))
        for limit, outcome in zip(planned.rule.limits, several, strict=True)
        if outcome is not None and not outcome.local and not is_soft_part(planned.rule, limit)
    ]
    return {"limits": listed} if listed else {}


def _partly(outcome: Outcome | None) -> bool:
    """Whether hits were denied, and not counted, of which fewer would pass."""
    return outcome is not None and outcome.over and outcome.remaining > 0 and not outcome.charged


def _limit(index: int, one: ReportedLimit) -> dict[str, object]:
    limit, outcome = one.limit.limit, one.outcome
    described: dict[str, object] = {
        "descriptor": index,
        "algorithm": limit.algorithm,
        "requestsPerUnit": limit.requests_per_unit,
        "unit": limit.unit.name,
        "unitMultiplier": limit.multiplier,
        "remaining": 0 if outcome.over and not _partly(outcome) else remaining_of(one),
        "resetSeconds": whole_seconds(outcome.reset_us),
        "overLimit": outcome.over,
    }
    if limit.name:
        described["name"] = limit.name
    if isinstance(limit.anchor, Calendar):
        described["timeZone"] = limit.anchor.time_zone
    return described
