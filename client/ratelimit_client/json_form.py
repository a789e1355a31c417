"""The same messages as proto3 JSON, for the service's `/json`."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta

from ratelimit_client.model import (
    TOO_LARGE,
    Call,
    Decision,
    Descriptor,
    Limit,
    Reason,
    Request,
    Status,
    Unit,
)
from ratelimit_client.wire import reason_of

__all__ = ["from_json", "to_json"]

_EPOCH = datetime.fromtimestamp(0, UTC)
_CODES = {"OK": True, "OVER_LIMIT": False}


def to_json(request: Request) -> bytes:
    """The message of its call."""
    fields: dict[str, object] = {
        "domain": request.domain,
        "descriptors": [
            _descriptor(descriptor, request.cost) for descriptor in request.descriptors
        ],
    }
    if request.call is Call.RESERVE:
        fields["amount"] = request.cost
        if request.ttl:
            fields["ttl"] = f"{request.ttl:.6f}s"
        if request.reservation:
            fields["reservationId"] = request.reservation
    elif request.call is Call.SETTLE:
        fields |= {"reservationId": request.reservation, "actualAmount": request.cost}
    elif request.cost > 1:
        fields["hitsAddend"] = request.cost
    return json.dumps(fields).encode()


def _descriptor(descriptor: Descriptor, cost: int) -> dict[str, object]:
    fields: dict[str, object] = {
        "entries": [{"key": key, "value": value} for key, value in descriptor.entries]
    }
    if limit := descriptor.limit:
        fields["limit"] = {
            "requestsPerUnit": limit.requests,
            "unit": limit.unit.name if limit.unit is not Unit.WEEK else _WEEK,
            "unitMultiplier": limit.multiplier,
        }
    own = 0 if descriptor.cost is None and not cost else descriptor.cost
    if own is not None:
        fields["hitsAddend"] = own
    if descriptor.refund:
        fields["isNegativeHits"] = True
    return fields


_WEEK = 7
"""The enum of a descriptor's own limit has no name for a week; it takes any number."""


def from_json(text: bytes, call: Call = Call.DECIDE) -> Decision:
    """Reads the answer to a call. Raises ValueError if it is none."""
    try:
        answer = json.loads(text)
        if call is Call.RESERVE:
            return _reserved(answer)
        if call is Call.SETTLE:
            answer["reservationReleased"]
            return Decision(True, Reason.WITHIN_LIMIT)
        statuses = tuple(_status(fields) for fields in answer.get("statuses", ()))
        metadata = dict(answer.get("dynamicMetadata", {}))
        allowed = _CODES[answer["overallCode"]]
        return Decision(
            allowed,
            reason_of(allowed, statuses, metadata),
            statuses,
            tuple(_header(fields) for fields in answer.get("responseHeadersToAdd", ())),
            tuple(_header(fields) for fields in answer.get("requestHeadersToAdd", ())),
            base64.b64decode(answer.get("rawBody", "")),
            metadata,
            denied_until=None if allowed else _used_up_until(answer.get("quota", {})),
        )
    except (AttributeError, KeyError, TypeError, RecursionError, ValueError) as error:
        raise ValueError("it is no answer of a rate limit service in JSON") from error


def _reserved(answer: dict[str, object]) -> Decision:
    if not _CODES[str(answer["code"])]:
        detail = TOO_LARGE if answer.get("tooLarge") else ""
        return Decision(False, Reason.OVER_LIMIT, detail=detail)
    held = str(answer["reservationId"]) if answer.get("held") else ""
    return Decision(True, Reason.WITHIN_LIMIT, reservation=held)


def _status(fields: dict[str, object]) -> Status:
    limit = fields.get("currentLimit")
    reset = fields.get("durationUntilReset")
    return Status(
        fields.get("code") != "OVER_LIMIT",
        _limit(limit) if isinstance(limit, dict) else None,
        _number(fields.get("limitRemaining", 0)),
        float(reset.removesuffix("s")) if isinstance(reset, str) else None,
    )


def _used_up_until(quota: dict[str, object]) -> float | None:
    """When a quota expires of which nothing is left: it had one request, which was this one."""
    if quota.get("requests") != 1 or "validUntil" not in quota:
        return None
    since = datetime.fromisoformat(str(quota["validUntil"])) - _EPOCH
    return since // timedelta(microseconds=1) / 1_000_000


def _limit(fields: dict[str, object]) -> Limit:
    return Limit(
        _number(fields.get("requestsPerUnit", 0)),
        Unit[str(fields["unit"])],
        _number(fields.get("unitMultiplier", 1)),
        str(fields.get("name", "")),
    )


def _number(value: object) -> int:
    """Proto3 JSON writes numbers of 64 bits as text."""
    if isinstance(value, int | str):
        return int(value)
    raise ValueError(f"{value!r} is no whole number")


def _header(fields: dict[str, object]) -> tuple[str, str]:
    return str(fields["key"]), str(fields.get("value", ""))
