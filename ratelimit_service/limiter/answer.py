"""From what the store settled to what the caller is told. Renders, and decides nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ratelimit_service.limiter.compiled import CompiledLimit, Kind
from ratelimit_service.limiter.headers import NO_MARKS, limit_headers, marks
from ratelimit_service.limiter.plan import Plan
from ratelimit_service.model import (
    MAX_ADDEND,
    Calendar,
    Code,
    Decision,
    FailurePolicy,
    Outcome,
    Request,
    Status,
    whole_seconds,
)
from ratelimit_service.settings import Settings
from ratelimit_service.stores import Verdict

__all__ = ["Shown", "answer", "by_policy", "shown"]


class Shown(NamedTuple):
    """The limit that speaks for a descriptor, and its outcome."""

    limit: CompiledLimit
    outcome: Outcome


def shown(planned: Plan, outcomes: Sequence[Outcome | None]) -> Shown | None:
    """Of a descriptor's limits one that is over, else one that this process counted alone.

    Of several that are over it is the one with the longest wait, of others the one with the
    fewest hits left, then the first. None if the failure policy speaks: no limit is known to be
    over, and one has no outcome.
    """
    best, missing = None, False
    for limit, outcome in zip(planned.rule.limits, outcomes, strict=True):
        if outcome is None:
            missing = True
        elif best is None or _before(Shown(limit, outcome), best):
            best = Shown(limit, outcome)
    if missing and best is not None and not best.outcome.over:
        return None
    return best


def _before(one: Shown, other: Shown) -> bool:
    first, second = one.outcome, other.outcome
    if first.over != second.over:
        return first.over
    if first.local != second.local:
        return first.local
    return first.reset_us > second.reset_us if first.over else _left(one) < _left(other)


def _left(one: Shown) -> int:
    """What is left, without the soft part."""
    return max(0, one.outcome.left - one.limit.soft)


def answer(
    request: Request | None,
    plans: Sequence[Plan],
    outcomes: Sequence[Sequence[Outcome | None]],
    verdict: Verdict,
    settings: Settings,
    lease: bytes = b"",
) -> Decision:
    """Renders a request that passes, or is denied.

    `outcomes` has, for each plan, one for each of its hits; None where there is none. `request`
    is needed for dynamic metadata only. `lease` is the id of the leases that the request takes.
    """
    spoken = [shown(planned, each) for planned, each in zip(plans, outcomes, strict=True)]
    statuses = tuple(map(_status, plans, spoken))
    denied = not verdict.passes
    metadata: dict[str, object] = {}
    if request and settings.dynamic_metadata:
        metadata = _metadata(request, plans, statuses)
    metadata |= _limits(plans, outcomes)
    metadata |= _by_policies(plans, spoken)
    mark = NO_MARKS if denied else marks(plans, outcomes, lease)
    metadata |= mark.metadata
    return Decision(
        Code.OVER_LIMIT if denied else Code.OK,
        statuses,
        (*limit_headers(statuses, settings), *mark.for_response),
        mark.for_request,
        metadata=metadata or None,
    )


def _status(planned: Plan, spoken: Shown | None) -> Status:
    rule = planned.rule
    if rule.kind is Kind.NO_RULE:
        return Status(Code.OK)
    if rule.kind is Kind.UNLIMITED:
        return Status(Code.OK, remaining=MAX_ADDEND)
    if spoken is None:
        return Status(_by_policy(planned))
    outcome = spoken.outcome
    over = outcome.over and not (rule.declared and rule.declared.shadow_mode)
    if outcome.local:
        return Status(Code.OVER_LIMIT if over else Code.OK)
    return Status(
        Code.OVER_LIMIT if over else Code.OK,
        spoken.limit.limit,
        0 if outcome.over else _left(spoken),
        outcome.reset_us,
    )


def _by_policy(planned: Plan) -> Code:
    closed = planned.rule.policy is FailurePolicy.CLOSED and not planned.refund
    return Code.OVER_LIMIT if closed else Code.OK


def by_policy(planned: Plan, spoken: Shown | None) -> bool:
    """Whether the failure policy decided on a descriptor, not the count of a store."""
    if spoken is not None:
        return spoken.outcome.local
    return planned.rule.kind in (Kind.COUNTED, Kind.UNSERVED)


def _by_policies(plans: Sequence[Plan], spoken: Sequence[Shown | None]) -> dict[str, object]:
    """Which descriptors were decided by failure policy, and by which."""
    listed = [
        {"descriptor": index, "policy": str(planned.rule.policy)}
        for index, (planned, one) in enumerate(zip(plans, spoken, strict=True))
        if by_policy(planned, one)
    ]
    return {"by_policy": listed} if listed else {}


def _limits(
    plans: Sequence[Plan], outcomes: Sequence[Sequence[Outcome | None]]
) -> dict[str, object]:
    """What a status does not show: all limits of a descriptor that has several.

    And any limit that denies several hits of which fewer would pass.
    """
    listed = [
        _limit(index, Shown(limit, outcome))
        for index, (planned, each) in enumerate(zip(plans, outcomes, strict=True))
        if len(planned.hits) > 1 or any(map(_partly, each))
        for limit, outcome in zip(planned.rule.limits, each, strict=True)
        if outcome is not None and not outcome.local
    ]
    return {"limits": listed} if listed else {}


def _partly(outcome: Outcome | None) -> bool:
    """Whether hits were denied, and not counted, of which fewer would pass."""
    return outcome is not None and outcome.over and outcome.left > 0 and not outcome.charged


def _limit(index: int, one: Shown) -> dict[str, object]:
    limit, outcome = one.limit.limit, one.outcome
    described: dict[str, object] = {
        "descriptor": index,
        "algorithm": limit.algorithm,
        "requestsPerUnit": limit.requests_per_unit,
        "unit": limit.unit.name,
        "unitMultiplier": limit.multiplier,
        "remaining": 0 if outcome.over and not _partly(outcome) else _left(one),
        "resetSeconds": whole_seconds(outcome.reset_us),
        "overLimit": outcome.over,
    }
    if limit.name:
        described["name"] = limit.name
    if isinstance(limit.anchor, Calendar):
        described["timeZone"] = limit.anchor.time_zone
    return described


def _metadata(
    request: Request, plans: Sequence[Plan], statuses: Sequence[Status]
) -> dict[str, object]:
    """What envoyproxy/ratelimit puts into dynamic metadata, built anew for each answer."""
    descriptors = []
    for descriptor in request.descriptors:
        described: dict[str, object] = {
            "entries": [f"{key}={value}" for key, value in descriptor.entries]
        }
        if limit := descriptor.limit:
            described["limit"] = {
                "requestsPerUnit": limit.requests_per_unit,
                "unit": limit.unit.name,
                "unitMultiplier": limit.multiplier,
            }
        if descriptor.hits_addend is not None:
            described["hitsAddend"] = descriptor.hits_addend
        descriptors.append(described)
    metadata: dict[str, object] = {"domain": request.domain, "descriptors": descriptors}
    if request.hits_addend:
        metadata["hitsAddend"] = request.hits_addend
    merged: Mapping[str, object] = {}
    for planned, status in zip(plans, statuses, strict=True):
        rule = planned.rule.declared
        if rule and rule.metadata and status.code is Code.OK:
            merged = _merged(merged, rule.metadata)
    if merged:
        metadata["metadata"] = merged
    return metadata


def _merged(first: Mapping[str, object], second: Mapping[str, object]) -> dict[str, object]:
    """Both mappings in one, nested ones too; where they differ the first wins."""
    merged = {**second, **first}
    for key in first.keys() & second.keys():
        one, other = first[key], second[key]
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            merged[key] = _merged(one, other)
    return merged
