"""From outcomes to what the caller is told. It renders what the store settled.

Only where the store gave no outcome does it decide, by the failure policy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ratelimit_service.algorithms import denies
from ratelimit_service.errors import PolicyError
from ratelimit_service.limiter.compiled import CompiledLimit, Kind
from ratelimit_service.limiter.headers import NO_MARKS, limit_headers, marks
from ratelimit_service.limiter.plan import Plan
from ratelimit_service.model import (
    MAX_ADDEND,
    Calendar,
    Code,
    Decision,
    FailurePolicy,
    Mode,
    Outcome,
    Request,
    Status,
    whole_seconds,
)
from ratelimit_service.settings import Settings

__all__ = ["Shown", "answer", "by_policy", "shown"]


class Shown(NamedTuple):
    """The limit that speaks for a descriptor, and its outcome."""

    counted: CompiledLimit
    outcome: Outcome


def shown(planned: Plan, outcomes: Sequence[Outcome | None]) -> Shown | None:
    """Of a descriptor's limits the one over with the longest wait, else with the fewest left.

    Else the first. None if one of them has no outcome: then the failure policy decides. One
    that was counted here alone speaks before the others.
    """
    best = None
    for counted, outcome in zip(planned.rule.limits, outcomes, strict=True):
        if outcome is None:
            return None
        if best is None or _before(Shown(counted, outcome), best):
            best = Shown(counted, outcome)
    return best


def _before(one: Shown, other: Shown) -> bool:
    if one.outcome.local != other.outcome.local:
        return one.outcome.local
    if one.outcome.over or other.outcome.over:
        wait = one.outcome.reset_us if one.outcome.over else -1
        return wait > (other.outcome.reset_us if other.outcome.over else -1)
    return _left(one) < _left(other)


def _left(one: Shown) -> int:
    """What is left, without the soft part."""
    return max(0, one.outcome.left - one.counted.soft)


def answer(
    request: Request | None,
    plans: Sequence[Plan],
    outcomes: Sequence[Sequence[Outcome | None]],
    settings: Settings,
    lease: bytes = b"",
) -> Decision:
    """Renders the decision; `outcomes` has, for each plan, one for each of its hits.

    They are None where there is none. `request` is needed for dynamic metadata only. `lease` is
    the id of the leases that the request takes.

    Raises PolicyError if a failure policy `error` applies.
    """
    spoken = [shown(planned, each) for planned, each in zip(plans, outcomes, strict=True)]
    statuses = tuple(map(_status, plans, spoken))
    denied = denies(
        (planned.hits[0].mode if planned.hits else Mode.ENFORCED, status.code is Code.OVER_LIMIT)
        for planned, status in zip(plans, statuses, strict=True)
        if planned.rule.kind is Kind.UNSERVED or (planned.hits and not planned.refund)
    )
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
        spoken.counted.limit,
        0 if outcome.over else _left(spoken),
        outcome.reset_us,
    )


def _by_policy(planned: Plan) -> Code:
    if planned.refund:
        return Code.OK
    if planned.rule.policy is FailurePolicy.ERROR:
        raise PolicyError(
            "the store gave no answer in time, and the failure policy is `error`: "
            "see the service's health and log"
            if planned.rule.kind is Kind.COUNTED
            else "the rules of this domain have never loaded, and the failure policy is `error`: "
            "see the service's health and log"
        )
    return Code.OVER_LIMIT if planned.rule.policy is FailurePolicy.CLOSED else Code.OK


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
        _limit(index, Shown(counted, outcome))
        for index, (planned, each) in enumerate(zip(plans, outcomes, strict=True))
        if len(planned.hits) > 1 or any(map(_partly, each))
        for counted, outcome in zip(planned.rule.limits, each, strict=True)
        if outcome is not None and not outcome.local
    ]
    return {"limits": listed} if listed else {}


def _partly(outcome: Outcome | None) -> bool:
    """Whether hits were denied, and not counted, of which fewer would pass."""
    return outcome is not None and outcome.over and outcome.left > 0 and not outcome.charged


def _limit(index: int, one: Shown) -> dict[str, object]:
    limit, outcome = one.counted.limit, one.outcome
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
