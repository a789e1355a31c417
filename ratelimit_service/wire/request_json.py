"""A request as `/json` takes it, made of the model: quick, and without protobuf's own JSON."""

from __future__ import annotations

import json

from ratelimit_service.model import Descriptor, Request, Unit
from ratelimit_service.wire.request import NUMBERS

__all__ = ["request_to_json"]


def request_to_json(request: Request) -> str:
    """The request in proto3 JSON, in one line of ASCII."""
    fields: dict[str, object] = {
        "domain": request.domain,
        "descriptors": [_descriptor(descriptor) for descriptor in request.descriptors],
    }
    if request.hits_addend:
        fields["hitsAddend"] = request.hits_addend
    return json.dumps(fields)


def _descriptor(descriptor: Descriptor) -> dict[str, object]:
    fields: dict[str, object] = {
        "entries": [{"key": key, "value": value} for key, value in descriptor.entries]
    }
    if (limit := descriptor.limit) is not None:
        # The enum has no name for a week; its field takes any number.
        week = limit.unit is Unit.WEEK
        fields["limit"] = {
            "requestsPerUnit": limit.requests_per_unit,
            "unit": NUMBERS[limit.unit] if week else limit.unit.name,
            **({"unitMultiplier": limit.multiplier} if limit.multiplier != 1 else {}),
        }
    if descriptor.hits_addend is not None:
        fields["hitsAddend"] = str(descriptor.hits_addend)
    if descriptor.is_negative_hits:
        fields["isNegativeHits"] = True
    return fields
