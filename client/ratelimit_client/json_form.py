"""The same two messages as proto3 JSON, for the service's `/json`."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta

from ratelimit_client.model import Decision, Descriptor, Limit, Request, Status, Unit
from ratelimit_client.wire import decided

__all__ = ["from_json", "to_json"]

_EPOCH = datetime.fromtimestamp(0, UTC)
_CODES = {"OK": True, "OVER_LIMIT": False}


def to_json(request: Request) -> bytes:
    """A RateLimitRequest."""
    said: dict[str, object] = {
        "domain": request.domain,
        "descriptors": [_descriptor(each, request.cost) for each in request.descriptors],
    }
    if request.cost > 1:
        said["hitsAddend"] = request.cost
    return json.dumps(said).encode()


def _descriptor(descriptor: Descriptor, cost: int) -> dict[str, object]:
    said: dict[str, object] = {
        "entries": [{"key": key, "value": value} for key, value in descriptor.entries]
    }
    if limit := descriptor.limit:
        said["limit"] = {
            "requestsPerUnit": limit.requests,
            "unit": limit.unit.name if limit.unit is not Unit.WEEK else _WEEK,
            "unitMultiplier": limit.multiplier,
        }
    own = 0 if descriptor.cost is None and not cost else descriptor.cost
    if own is not None:
        said["hitsAddend"] = own
    if descriptor.refund:
        said["isNegativeHits"] = True
    return said


_WEEK = 7
"""The enum of a descriptor's own limit has no name for a week; it takes any number."""


def from_json(text: bytes) -> Decision:
    """Reads a RateLimitResponse. Raises ValueError if it is none."""
    try:
        said = json.loads(text)
        statuses = tuple(_status(each) for each in said.get("statuses", ()))
        return decided(
            _CODES[said["overallCode"]],
            statuses,
            tuple(_header(each) for each in said.get("responseHeadersToAdd", ())),
            tuple(_header(each) for each in said.get("requestHeadersToAdd", ())),
            base64.b64decode(said.get("rawBody", "")),
            dict(said.get("dynamicMetadata", {})),
            _used_up_until(said.get("quota", {})),
        )
    except (AttributeError, KeyError, TypeError, RecursionError, ValueError) as error:
        raise ValueError("it is no RateLimitResponse in JSON") from error


def _status(said: dict[str, object]) -> Status:
    limit = said.get("currentLimit")
    reset = said.get("durationUntilReset")
    return Status(
        said.get("code") != "OVER_LIMIT",
        _limit(limit) if isinstance(limit, dict) else None,
        _number(said.get("limitRemaining", 0)),
        float(reset.removesuffix("s")) if isinstance(reset, str) else None,
    )


def _used_up_until(quota: dict[str, object]) -> float | None:
    """When a quota expires of which nothing is left: it had one request, which was this one."""
    if quota.get("requests") != 1 or "validUntil" not in quota:
        return None
    since = datetime.fromisoformat(str(quota["validUntil"])) - _EPOCH
    return since // timedelta(microseconds=1) / 1_000_000


def _limit(said: dict[str, object]) -> Limit:
    return Limit(
        _number(said.get("requestsPerUnit", 0)),
        Unit[str(said["unit"])],
        _number(said.get("unitMultiplier", 1)),
        str(said.get("name", "")),
    )


def _number(said: object) -> int:
    """Proto3 JSON writes numbers of 64 bits as text."""
    if isinstance(said, int | str):
        return int(said)
    raise ValueError(f"{said!r} is no whole number")


def _header(said: dict[str, object]) -> tuple[str, str]:
    return str(said["key"]), str(said.get("value", ""))
