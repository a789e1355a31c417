"""From outcomes to what the caller is told. It renders what the store settled.

Only where the store gave no outcome does it decide, by the failure policy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ratelimit_service.algorithms import denies
from ratelimit_service.errors import PolicyError
from ratelimit_service.limiter.headers import limit_headers
from ratelimit_service.limiter.plan import Kind, Plan
from ratelimit_service.model import (
    MAX_ADDEND,
    Code,
    Decision,
    FailurePolicy,
    Mode,
    Outcome,
    Request,
    Status,
)
from ratelimit_service.settings import Settings

__all__ = ["answer"]


def answer(
    request: Request | None,
    plans: Sequence[Plan],
    outcomes: Sequence[Outcome | None],
    settings: Settings,
) -> Decision:
    """Renders the decision; `outcomes` has one for each plan, None where there is none.

    `request` is needed for dynamic metadata only.

    Raises PolicyError if a failure policy `error` applies.
    """
    statuses = tuple(map(_status, plans, outcomes))
    denied = denies(
        (planned.hit.mode if planned.hit else Mode.ENFORCED, status.code is Code.OVER_LIMIT)
        for planned, status in zip(plans, statuses, strict=True)
        if planned.terms.kind is Kind.UNSERVED or (planned.hit and not planned.hit.refund)
    )
    return Decision(
        Code.OVER_LIMIT if denied else Code.OK,
        statuses,
        response_headers=limit_headers(statuses, settings),
        metadata=_metadata(request, plans, statuses)
        if request and settings.dynamic_metadata
        else None,
    )


def _status(planned: Plan, outcome: Outcome | None) -> Status:
    terms = planned.terms
    if terms.kind is Kind.NO_RULE:
        return Status(Code.OK)
    if terms.kind is Kind.UNLIMITED:
        return Status(Code.OK, remaining=MAX_ADDEND)
    if outcome is None:
        return Status(_by_policy(planned))
    over = outcome.over and not (terms.rule and terms.rule.shadow_mode)
    return Status(
        Code.OVER_LIMIT if over else Code.OK,
        terms.limit,
        0 if outcome.over else outcome.left,
        outcome.reset_us,
    )


def _by_policy(planned: Plan) -> Code:
    if planned.hit and planned.hit.refund:
        return Code.OK
    if planned.terms.policy is FailurePolicy.ERROR:
        raise PolicyError(
            "the store gave no answer in time, and the failure policy is `error`: "
            "see the service's health and log"
            if planned.terms.kind is Kind.COUNTED
            else "the rules of this domain have never loaded, and the failure policy is `error`: "
            "see the service's health and log"
        )
    return Code.OVER_LIMIT if planned.terms.policy is FailurePolicy.CLOSED else Code.OK


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
        rule = planned.terms.rule
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
