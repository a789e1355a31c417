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
from ratelimit_service.rules.paths import Source, parse_path, path_text
from ratelimit_service.service.records import DecisionRecord

__all__ = [
    "DECISION_SCHEMA",
    "BadDecisionError",
    "Circumstances",
    "HashValue",
    "LoggedDecision",
    "NothingAskedError",
    "asked_part",
    "beginning",
    "decider_part",
    "hashed_value",
    "line_of",
    "lines_of",
    "origin_part",
    "place_part",
    "read_limit",
    "read_line",
    "read_request",
]

DECISION_SCHEMA: Final = 1
"""The version of the lines. It changes if a field gets another meaning, not if there are more."""

HASH_MARK: Final = "hmac:"
"""Values that are hashed begin with this."""

_HASH_DIGITS: Final = 24

HashValue = Callable[[str], str]
"""What is written in place of a caller's value."""


class BadDecisionError(RateLimitError):
    """A line that is no decision of a version known here. The text says why."""


class NothingAskedError(BadDecisionError):
    """A decision about a request that could not be read when it came."""


class LoggedDecision(NamedTuple):
    """A line that was read. `fields` are all that it says."""

    at_us: int
    request: Request
    fields: Mapping[str, Any]

    @property
    def code(self) -> str:
        """`OK`, `OVER_LIMIT`, or the name of a gRPC status."""
        return str(self.fields.get("code", ""))


class Circumstances(NamedTuple):
    """What is known of a decision beside what was asked and decided; "" where it is not.

    `caller` is the address at the other end, `store` the kind of store, and `shard` the server that
    has the counter.
    """

    caller: str = ""
    request_id: str = ""
    trace_id: str = ""
    store: str = ""
    shard: str = ""


_NO_CIRCUMSTANCES: Final = Circumstances()


def hashed_value(key: bytes, value: str) -> str:
    """A value as who has the key can find it again, and nobody can read it."""
    digest = hmac.digest(key, value.encode("utf-8", "surrogatepass"), "sha256").hex()
    return HASH_MARK + digest[:_HASH_DIGITS]


def line_of(
    record: DecisionRecord,
    at_us: int,
    sample: float = 1.0,
    hashed: HashValue | None = None,
    circumstances: Circumstances = _NO_CIRCUMSTANCES,
) -> str:
    """A decision at this moment as a line, without its end. Fields without a value are left out.

    `sample` is the part of such decisions that is written down.
    """
    denied = record.denied
    body = record.body
    asked = _remembered if len(body) <= _MOST_REMEMBERED else asked_part
    parts = [beginning(at_us) + asked(body, hashed)]
    # Formatting a member of an enumeration takes ten times as long as adding it.
    parts.append('"code":"' + _code(record, denied=denied) + '","by":"' + record.by + '"')
    if record.overrides:
        parts.append(f'"overrides":{_json([_override(each) for each in record.overrides])}')
    if record.limit is not None or record.overrides:
        told = decider_part(record.rule, record.source, record.limit, hashed)
        parts.append(f'"descriptor":{record.descriptor}{told}')
    if record.limit is not None:
        outcome = record.outcome
        if outcome is not None and record.hit is not None:
            # Granted hits remain beside the limit's own.
            used = max(0, record.hit.spec.limit - outcome.remaining)
            parts.append(f'"used":{used},"remaining":{outcome.remaining}')
            parts.append(f'"reset_seconds":{outcome.reset_us / SECOND_US}')
            if outcome.over and not denied:
                parts.append('"shadowed":true')
    _add_circumstances(parts, record, hashed, circumstances)
    if sample != 1:
        parts.append(f'"sample":{sample}')
    if hashed is not None:
        parts.append('"hashed":true')
    return ",".join(parts) + "}"


def lines_of(store: str, shard_of: Callable[[Hit], str]) -> Callable[[DecisionRecord, int], str]:
    """Writes decisions of one process, each of its moment, with who asked and where it counted.

    `store` is the setting, and `shard_of` says which server has a hit's counter.
    """
    kind = store.partition(":")[0]

    def line(record: DecisionRecord, at_us: int) -> str:
        shard = shard_of(record.hit) if record.hit is not None else ""
        caller = record.caller.peer if record.caller is not None else ""
        return line_of(record, at_us, circumstances=Circumstances(caller, "", "", kind, shard))

    return line


_START: Final = f'{{"v":{DECISION_SCHEMA},"time":"'


def beginning(at_us: int) -> str:
    """How a line of a decision at this moment begins, with a comma at the end."""
    return _START + _time(at_us)


_MOST_REMEMBERED: Final = 512
"""Bytes of a request whose part of a line is remembered; who is denied asks the same again."""

_encode: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_quoted: Final = json.encoder.encode_basestring
"""A text as JSON has it."""


def _json(told: object) -> str:
    """JSON in which all that does not print is escaped: it would act on who reads the log."""
    text = _encode(told)
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)


class _Decider(NamedTuple):
    """The fields that say which limit of which rule it was, and what they were made of."""

    limit: Limit
    source: Source | None
    hashed: HashValue | None
    told: str


_deciders: Final[dict[int, _Decider]] = {}
"""The latest by their limits' identities: to compare limits takes longer than to write the rest."""

_MOST_DECIDERS: Final = 1_024


def decider_part(
    rule: str, source: Source | None, limit: Limit | None, hashed: HashValue | None
) -> str:
    """The fields that say which limit of which rule it was, with a comma before each."""
    known = _deciders.get(id(limit))
    if (
        known is not None
        and known.limit is limit
        and known.source is source
        and known.hashed is hashed
    ):
        return known.told
    told = _decider(rule, "" if source is None else str(source), limit, hashed)
    if limit is not None and source is not None:
        if len(_deciders) >= _MOST_DECIDERS:
            _deciders.clear()
        _deciders[id(limit)] = _Decider(limit, source, hashed, told)
    return told


@lru_cache(1024)
def _decider(rule: str, source: str, limit: Limit | None, hashed: HashValue | None) -> str:
    told = ""
    if rule:
        told = f',"rule":{_json(rule if hashed is None else _hashed_path(rule, hashed))}'
    if source:
        told += f',"source":{_json(source)}'
    if limit is not None:
        told += f',"limit":{_json(_limit(limit))}'
    return told


@lru_cache(1024)
def place_part(store: str, shard: str) -> str:
    """The fields that say where the counter is."""
    return f'"store":{_json(store)}' + (f',"shard":{_json(shard)}' if shard else "")


def _hashed_path(path: str, hashed: HashValue) -> str:
    """A rule's path without the callers that it names; what a `*` stands for is none."""
    return path_text(
        [
            (key, hashed(value) if value and "*" not in value else value)
            for key, value in parse_path(path)
        ]
    )


@lru_cache(4)
def _second(seconds: int) -> str:
    return f"{datetime.datetime.fromtimestamp(seconds, datetime.UTC):%Y-%m-%dT%H:%M:%S}"


@lru_cache(16)
def _time(at_us: int) -> str:
    """A moment with the quote and the comma behind it; all decisions of a batch have the same."""
    seconds, rest = divmod(at_us, SECOND_US)
    return f'{_second(seconds)}.{rest:06}Z",'


def _code(record: DecisionRecord, *, denied: bool) -> str:
    if not isinstance(record.answer, bytes):
        return record.answer.code.name
    return "OVER_LIMIT" if denied else "OK"


def asked_part(body: bytes, hashed: HashValue | None) -> str:
    """The fields of what was asked, without braces."""
    told = _plainly_asked(body, hashed) if len(body) <= _MOST_REMEMBERED else ""
    return told or _decoded(body, hashed)


def _plainly_asked(body: bytes, hashed: HashValue | None) -> str:
    """The same of a request as Envoy writes it, without decoding it; "" of any other."""
    split = wire.split_request(body)
    if split is None:
        return ""
    descriptors: list[str] = []
    for part in split.parts:
        entries = wire.plain_entries(part, split.descriptor_at)
        if entries is None:
            return ""
        told = [
            f"[{_quoted(key)},{_quoted(value if hashed is None or not value else hashed(value))}]"
            for key, value in entries
        ]
        descriptors.append(f'{{"entries":[{",".join(told)}]}}')
    try:
        domain = split.domain
    except UnicodeDecodeError:
        return ""
    told_all = f'"domain":{_quoted(domain)},"descriptors":[{",".join(descriptors)}]'
    if split.addend:
        told_all += f',"hits":{split.addend}'
    return told_all if told_all.isprintable() else ""


def _decoded(body: bytes, hashed: HashValue | None) -> str:
    """The same of any request."""
    try:
        request = wire.decode_request(body)
    except BadRequestError as error:
        return f'"unreadable":{_json(str(error))}'
    asked: dict[str, object] = {
        "domain": request.domain,
        "descriptors": [_descriptor(each, hashed) for each in request.descriptors],
    }
    if request.hits_addend:
        asked["hits"] = request.hits_addend
    return _json(asked)[1:-1]


_remembered: Final = lru_cache(4096)(asked_part)


def _descriptor(descriptor: Descriptor, hashed: HashValue | None) -> dict[str, object]:
    told: dict[str, object] = {
        "entries": [
            [key, value if hashed is None or not value else hashed(value)]
            for key, value in descriptor.entries
        ]
    }
    if descriptor.hits_addend is not None:
        told["hits"] = descriptor.hits_addend
    if descriptor.is_negative_hits:
        told["refund"] = True
    if descriptor.limit is not None:
        told["limit"] = _limit(descriptor.limit)
    return told


def _add_circumstances(
    parts: list[str],
    record: DecisionRecord,
    hashed: HashValue | None,
    circumstances: Circumstances,
) -> None:
    """Adds the fields that say who asked, how long it took, and where it was counted."""
    caller, request_id, trace_id, store, shard = circumstances
    if store and record.hit is not None:
        parts.append(place_part(store, shard))
    if record.took_us >= 0:
        parts.append(f'"duration_seconds":{record.took_us / SECOND_US}')
    if told := origin_part(caller, request_id, trace_id, hashed):
        parts.append(told[1:])


def origin_part(caller: str, request_id: str, trace_id: str, hashed: HashValue | None) -> str:
    """The fields that say who asked, with a comma before each."""
    told = _caller(caller, hashed) if caller else ""
    if request_id:
        told += f',"request_id":{_json(request_id)}'
    if trace_id:
        told += f',"trace_id":"{trace_id}"'
    return told


@lru_cache(256)
def _caller(caller: str, hashed: HashValue | None) -> str:
    return f',"caller":{_json(caller if hashed is None else hashed(caller))}'


def _override(override: Override) -> dict[str, object]:
    told: dict[str, object] = {"id": override.id, "kind": str(override.kind)}
    if override.until_us is not None:
        told["until"] = time_text(override.until_us)
    if override.who:
        told["who"] = override.who
    if override.reason:
        told["reason"] = override.reason
    return told


def _limit(limit: Limit) -> dict[str, object]:
    told: dict[str, object] = {
        "requests_per_unit": limit.requests_per_unit,
        "unit": limit.unit.name.lower(),
    }
    if limit.multiplier != 1:
        told["unit_multiplier"] = limit.multiplier
    if limit.name:
        told["name"] = limit.name
    if limit.algorithm != DEFAULT.name:
        told["algorithm"] = limit.algorithm
    return told


def read_line(text: str, moment_us: Callable[[str], int]) -> LoggedDecision:
    """Reads a line; `moment_us` reads its time. Raises BadDecisionError."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadDecisionError(f"the line is no JSON: {error}") from error
    if not isinstance(fields, dict) or fields.get("v") != DECISION_SCHEMA:
        raise BadDecisionError(f'the line is no decision of version {DECISION_SCHEMA} ("v")')
    if "unreadable" in fields:
        raise NothingAskedError("the request could not be read when it came")
    try:
        return LoggedDecision(moment_us(fields["time"]), read_request(fields), fields)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadDecisionError(f"a field is missing or not as it should be: {error}") from error


def read_request(fields: Mapping[str, Any]) -> Request:
    """What a line says was asked. Raises what comes of fields that are not as they should be."""
    domain = fields["domain"]
    if not isinstance(domain, str):
        raise TypeError("domain is no text")
    descriptors = tuple(
        Descriptor(
            tuple(Entry(_text(key), _text(value)) for key, value in each["entries"]),
            read_limit(each["limit"]) if "limit" in each else None,
            _hits(each["hits"]) if "hits" in each else None,
            each.get("refund") is True,
        )
        for each in fields["descriptors"]
    )
    return Request(domain, descriptors, _hits(fields.get("hits", 0)))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("an entry is a pair of texts")
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
