"""The decision log's lines, version 1: how a decision is written down, and how it is read again.

docs/decision-log.md says what each field means. What must not live here: which decisions are
written down, and where to.
"""

from __future__ import annotations

import datetime
import hmac
import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from ratelimit_service import wire
from ratelimit_service.algorithms import DEFAULT
from ratelimit_service.errors import BadRequestError, RateLimitError
from ratelimit_service.model import (
    MAX_ADDEND,
    SECOND_US,
    Descriptor,
    Entry,
    Hit,
    Limit,
    Override,
    Request,
    Unit,
    time_text,
)
from ratelimit_service.model.call_origin import CallOrigin, Headers
from ratelimit_service.rules.paths import Source, parse_path, path_text
from ratelimit_service.service.records import DecisionRecord, Reserved
from ratelimit_service.telemetry.parents import parent_of, request_id_of
from ratelimit_service.text.json_slips import json_slip

__all__ = [
    "DECISION_SCHEMA",
    "BadDecisionError",
    "HashValue",
    "LoggedDecision",
    "NothingAskedError",
    "decision_part",
    "end_part",
    "hashed_value",
    "line_of",
    "lines_of",
    "origin_part",
    "read_limit",
    "read_line",
    "read_request",
    "request_part",
    "start_part",
]

DECISION_SCHEMA: Final = 1
"""The version of the lines. It changes if a field gets another meaning, not if there are more."""

HashValue = Callable[[str], str]
"""What is written in place of a caller's value."""


class BadDecisionError(RateLimitError):
    """A line that is no decision of a version known here. The text says why."""


class NothingAskedError(BadDecisionError):
    """A line of a request that could not be read when it came, or that settles what was held."""


class LoggedDecision(NamedTuple):
    """A line that was read. `fields` are all that it says."""

    at_us: int
    request: Request
    fields: Mapping[str, Any]

    @property
    def code(self) -> str:
        """`OK`, `OVER_LIMIT`, or the name of a gRPC status."""
        return str(self.fields.get("code", ""))


def hashed_value(key: bytes, value: str) -> str:
    """A value as who has the key can find it again, and nobody can read it."""
    digest = hmac.digest(key, value.encode("utf-8", "surrogatepass"), "sha256").hex()
    return f"hmac:{digest[:24]}"


def line_of(
    record: DecisionRecord,
    at_us: int,
    sample: float = 1.0,
    hashed: HashValue | None = None,
    store: str = "",
    shard: str = "",
) -> str:
    """A decision at this moment as a line, without its end. Fields without a value are left out.

    `sample` is the part of such decisions that is written down, `store` the kind of store, and
    `shard` the server that has the counter.
    """
    caller = CallOrigin() if record.caller is None else record.caller
    return (
        start_part(at_us)
        + request_part(record.body, hashed)
        + decision_part(record, hashed, store, shard)
        + origin_part(caller.peer, caller.headers, hashed)
        + end_part(sample, hashed)
    )


def lines_of(store: str, shard_of: Callable[[Hit], str]) -> Callable[[DecisionRecord, int], str]:
    """Writes decisions of one process, each of its moment.

    `store` is the setting, and `shard_of` says which server has a hit's counter.
    """
    kind = store.partition(":")[0]

    def line(record: DecisionRecord, at_us: int) -> str:
        shard = "" if record.hit is None else shard_of(record.hit)
        return line_of(record, at_us, store=kind, shard=shard)

    return line


@lru_cache(16)
def start_part(at_us: int) -> str:
    """How the line of a decision at this moment begins, up to what was asked."""
    seconds, rest = divmod(at_us, SECOND_US)
    return f'{{"v":{DECISION_SCHEMA},"time":"{_second(seconds)}.{rest:06}Z",'


@lru_cache(4)
def _second(seconds: int) -> str:
    return f"{datetime.datetime.fromtimestamp(seconds, datetime.UTC):%Y-%m-%dT%H:%M:%S}"


def request_part(body: bytes, hashed: HashValue | None) -> str:
    """The fields of what was asked."""
    try:
        request = wire.decode_request(body)
    except BadRequestError as error:
        return f'"unreadable":{_json(str(error))}'
    fields: dict[str, object] = {
        "domain": request.domain,
        "descriptors": [_descriptor(descriptor, hashed) for descriptor in request.descriptors],
    }
    if request.hits_addend:
        fields["hits"] = request.hits_addend
    return _json(fields)[1:-1]


def decision_part(record: DecisionRecord, hashed: HashValue | None, store: str, shard: str) -> str:
    """The fields of what was answered and why, each with a comma before it."""
    denied, outcome = record.denied, record.outcome
    # Formatting a member of an enumeration takes ten times as long as adding it.
    code = "OVER_LIMIT" if denied else "OK"
    if not isinstance(record.answer, bytes):
        code = record.answer.code.name
    text = ',"code":"' + code + '","by":"' + record.by + '"'
    if record.overrides:
        text += f',"overrides":{_json([_override(each) for each in record.overrides])}'
    if record.limit is not None or record.overrides:
        text += f',"descriptor":{record.descriptor}'
        text += _limit_part(record.rule, record.source, record.limit, hashed)
    if record.limit is not None and outcome is not None and record.hit is not None:
        # Granted hits remain beside the limit's own.
        used = max(0, record.hit.spec.limit - outcome.remaining)
        text += f',"used":{used},"remaining":{outcome.remaining}'
        text += f',"reset_seconds":{outcome.reset_us / SECOND_US}'
        if outcome.over and not denied:
            text += ',"shadowed":true'
    if record.in_turn:
        text += f',"in_turn":{_json(record.in_turn)}'
    if record.paid:
        paid = [{"descriptor": at, "limit": name} for at, name in record.paid]
        text += f',"paid":{_json(paid)}'
    text += _reserved_part(record.reserved)
    if store and record.hit is not None:
        text += f',"store":{_json(store)}' + (f',"shard":{_json(shard)}' if shard else "")
    if record.took_us >= 0:
        text += f',"duration_seconds":{record.took_us / SECOND_US}'
    return text


def _reserved_part(reserved: Reserved | None) -> str:
    """The field of what was held or settled, if anything was, with a comma before it."""
    if reserved is None:
        return ""
    fields: dict[str, object] = {"id": reserved.id} if reserved.id else {}
    if reserved.settles:
        if reserved.hits is not None:
            fields |= {"hits": reserved.hits, "held": reserved.held}
            if reserved.hits > reserved.held > 0:
                fields["overrun"] = reserved.hits - reserved.held
        return f',"settle":{_json(fields)}'
    fields |= {"hits": reserved.hits, "ttl_seconds": reserved.ttl_us / SECOND_US}
    if reserved.too_large:
        fields["too_large"] = True
    return f',"reserve":{_json(fields)}'


def origin_part(peer: str, headers: Headers, hashed: HashValue | None) -> str:
    """The fields of who asked, each with a comma before it."""
    text = ""
    if peer:
        text = f',"caller":{_json(peer if hashed is None else hashed(peer))}'
    if headers:
        if request_id := request_id_of(headers):
            text += f',"request_id":{_json(request_id)}'
        if trace_id := parent_of(headers).trace_id:
            text += f',"trace_id":"{trace_id}"'
    return text


def end_part(sample: float, hashed: HashValue | None) -> str:
    """How a line ends, behind who asked."""
    text = f',"sample":{sample}' if sample != 1 else ""
    return text + ("}" if hashed is None else ',"hashed":true}')


_encode: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def _json(value: object) -> str:
    """JSON in which all that does not print is escaped: it would act on who reads the log."""
    text = _encode(value)
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)


@lru_cache(1024)
def _limit_part(
    rule: str, source: Source | None, limit: Limit | None, hashed: HashValue | None
) -> str:
    """The fields of which limit of which rule it was."""
    text = ""
    if rule:
        text = f',"rule":{_json(rule if hashed is None else _hashed_path(rule, hashed))}'
    if source is not None:
        text += f',"source":{_json(str(source))}'
    if limit is not None:
        text += f',"limit":{_json(_limit(limit))}'
    return text


def _hashed_path(path: str, hashed: HashValue) -> str:
    """A rule's path without the callers that it names; what a `*` stands for is none."""
    return path_text(
        [
            (key, hashed(value) if value and "*" not in value else value)
            for key, value in parse_path(path)
        ]
    )


def _descriptor(descriptor: Descriptor, hashed: HashValue | None) -> dict[str, object]:
    fields: dict[str, object] = {
        "entries": [
            [key, value if hashed is None or not value else hashed(value)]
            for key, value in descriptor.entries
        ]
    }
    if descriptor.hits_addend is not None:
        fields["hits"] = descriptor.hits_addend
    if descriptor.is_negative_hits:
        fields["refund"] = True
    if descriptor.limit is not None:
        fields["limit"] = _limit(descriptor.limit)
    return fields


def _override(override: Override) -> dict[str, object]:
    fields: dict[str, object] = {"id": override.id, "kind": str(override.kind)}
    if override.until_us is not None:
        fields["until"] = time_text(override.until_us)
    if override.who:
        fields["who"] = override.who
    if override.reason:
        fields["reason"] = override.reason
    return fields


def _limit(limit: Limit) -> dict[str, object]:
    fields: dict[str, object] = {
        "requests_per_unit": limit.requests_per_unit,
        "unit": limit.unit.name.lower(),
    }
    if limit.multiplier != 1:
        fields["unit_multiplier"] = limit.multiplier
    if limit.name:
        fields["name"] = limit.name
    if limit.algorithm != DEFAULT.name:
        fields["algorithm"] = limit.algorithm
    if limit.reservations is not None:
        fields["reservations"] = True
    return fields


def read_line(text: str, moment_us: Callable[[str], int]) -> LoggedDecision:
    """Reads a line; `moment_us` reads its time. Raises BadDecisionError."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadDecisionError(f"the line is no JSON: {json_slip(error, one_line=True)}") from error
    if not isinstance(fields, dict) or fields.get("v") != DECISION_SCHEMA:
        raise BadDecisionError(f'the line is no decision of version {DECISION_SCHEMA} ("v")')
    if "unreadable" in fields:
        raise NothingAskedError("the request could not be read when it came")
    if "settle" in fields:
        raise NothingAskedError("what was used was counted, and nothing was asked")
    try:
        return LoggedDecision(moment_us(fields["time"]), read_request(fields), fields)
    except KeyError as error:
        raise BadDecisionError(f"the field or unit {error} is missing or unknown") from error
    except ValueError as error:
        raise BadDecisionError(f"a field is not as it should be: {error}") from error
    except (TypeError, AttributeError) as error:
        raise BadDecisionError("a field is of another kind than decision logs have") from error


def read_request(fields: Mapping[str, Any]) -> Request:
    """What a line says was asked. Raises what comes of fields that are not as they should be."""
    domain = fields["domain"]
    if not isinstance(domain, str):
        raise ValueError("domain is no text")  # noqa: TRY004 -- told as it is
    descriptors = tuple(
        Descriptor(
            tuple(Entry(_text(key), _text(value)) for key, value in descriptor["entries"]),
            read_limit(descriptor["limit"]) if "limit" in descriptor else None,
            _hits(descriptor["hits"]) if "hits" in descriptor else None,
            descriptor.get("refund") is True,
        )
        for descriptor in fields["descriptors"]
    )
    return Request(domain, descriptors, _hits(fields.get("hits", 0)))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("an entry is a pair of texts")  # noqa: TRY004 -- told as it is
    return value


def _hits(value: object) -> int:
    if not isinstance(value, int) or not 0 <= value <= MAX_ADDEND:
        raise ValueError(f"hits must be a number up to {MAX_ADDEND}")
    return value


def read_limit(fields: Mapping[str, Any]) -> Limit:
    """A limit of a line. Raises KeyError, TypeError or ValueError if it is none."""
    return Limit(
        _hits(fields["requests_per_unit"]),
        Unit[fields["unit"].upper()],
        max(1, _hits(fields.get("unit_multiplier", 1))),
        str(fields.get("name", "")),
        str(fields.get("algorithm", DEFAULT.name)),
    )
