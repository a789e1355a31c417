"""What envoyproxy/ratelimit puts into dynamic metadata: the request. Off by default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ratelimit_service.limiter.additions.addition import DecisionContext, ResponseExtras
from ratelimit_service.limiter.compiled import Plan
from ratelimit_service.model import Code, Limit, Request, Status
from ratelimit_service.rules.tree import Rule
from ratelimit_service.settings import Settings

__all__ = ["RequestMetadata"]


class RequestMetadata:
    """The request as it was read, and the metadata of the rules that it passes."""

    needs_request = True
    covers_bans = False

    def enabled(self, settings: Settings) -> bool:
        """If `dynamic_metadata` is on."""
        return settings.dynamic_metadata

    def applies_to(
        self,
        settings: Settings,  # noqa: ARG002
        rule: Rule | None,  # noqa: ARG002
        limits: Sequence[Limit],  # noqa: ARG002
    ) -> bool:
        """Of everything."""
        return True

    def add(self, context: DecisionContext, extras: ResponseExtras) -> None:
        """Built again for each answer."""
        if context.request is not None:
            extras.metadata |= _metadata(context.request, context.plans, context.statuses())


def _metadata(
    request: Request, plans: Sequence[Plan], statuses: Sequence[Status]
) -> dict[str, object]:
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
        rule = planned.declared
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
