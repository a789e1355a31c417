"""Envoy's access log in JSON as a source of requests, by a mapping from its fields to descriptors.

What must not live here: what a mapping file looks like to people (docs/replay.md).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ratelimit_service.model import MAX_ADDEND, SECOND_US, Code, Descriptor, Entry, Request
from ratelimit_service.rule_lab.replay.json_lines import FieldsReader, Value
from ratelimit_service.rule_lab.replay.logs import BadLineError, Lines, LogError, by_parts
from ratelimit_service.rule_lab.replay.recorded import (
    LAST_US,
    Block,
    Moments,
    RecordedRequest,
    RequestCache,
    moment_us,
)
from ratelimit_service.rules.fields import Fields, document
from ratelimit_service.rules.files import read_rule_files
from ratelimit_service.rules.reader import Reader, Unreadable
from ratelimit_service.text.json_slips import json_slip

__all__ = ["EnvoyLog", "Mapped", "read_mapping"]

_KEYS: Final = ("time", "domain", "hits", "flags", "descriptors")
_FIELD: Final = "$"
_NOTHING: Final = "-"
"""What Envoy writes where there is no value."""

_RATE_LIMITED: Final = "RL"
"""The response flag of a request that a rate limit service has denied."""

_MOST_DIGITS: Final = 20
"""Of seconds since 1970 that are looked at; all dates have fewer."""

_MOST_FLAGS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Mapped:
    """Which fields of a line make a request. A word with `$` before it is a field, else a value."""

    time: str
    domain: str
    descriptors: tuple[tuple[tuple[str, str], ...], ...]
    hits: str = ""
    flags: str = ""

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields that make the request, each once."""
        words = [word for entries in self.descriptors for _, word in entries]
        named = [word[1:] for word in (*words, self.domain, self.hits) if word.startswith(_FIELD)]
        return tuple(dict.fromkeys(named))


def read_mapping(path: Path) -> Mapped:
    """Reads a mapping file. Raises LogError with all that is wrong in it."""
    read = read_rule_files(path)
    for name, why in {**read.unread, **read.skipped}.items():
        raise LogError(f"{name} cannot be read: {why}")
    reader = Reader(str(path), needs="a domain and descriptors")
    try:
        fields = document(reader, reader.composed(read.files[str(path)]), _KEYS, {})
        mapped = _mapped(fields)
    except (Unreadable, KeyError):
        mapped = Mapped("", "", ())
    if problems := [problem for problem in reader.problems if not problem.hint]:
        raise LogError("\n".join(map(str, sorted(problems))))
    return mapped


def _mapped(fields: Fields) -> Mapped:
    for name in ("domain", "descriptors"):
        if not fields.given(name):
            fields.report(name, f"{name} is missing: a mapping says which {name} Envoy asks for")
    for name in ("time", "hits", "flags"):
        if fields.given(name) and not fields.text(name).startswith(_FIELD):
            fields.report(name, f"{name} must be a field of the log, as $start_time", value=name)
    return Mapped(
        fields.text("time") if fields.given("time") else "$start_time",
        fields.text("domain"),
        tuple(tuple(entries) for entries in fields.entries("descriptors")),
        fields.text("hits"),
        fields.text("flags"),
    )


class EnvoyLog:
    """Reads such a log."""

    def __init__(
        self, mapped: Mapped, cache: RequestCache[tuple[Value, ...]] | None = None
    ) -> None:
        """`cache` is shared with other logs of this mapping that are replayed together."""
        self._mapped = mapped
        self._fields = mapped.fields
        self._time, self._flags = mapped.time[1:], mapped.flags[1:]
        self._reader = FieldsReader((self._time, self._flags, *self._fields))
        self._cache = cache or RequestCache[tuple[Value, ...]]()
        """By the fields that make a request."""
        self._codes: dict[Value, Code | None] = {}
        """What was answered, by the response flags."""
        self._moments = Moments()
        self._silent = False
        """Whether there were lines that ask nothing."""

    def blocks(self, lines: Lines) -> Iterator[Block]:
        """The requests; a line that is none is told to `lines`.

        Like Envoy, it leaves out a descriptor of which a field is missing, and does not ask at
        all if none is left.
        """
        self._lines = lines
        return by_parts(lines, self._at_once, self._one_by_one)

    def _at_once(self, lines: Sequence[bytes]) -> Block | None:
        """The requests of lines that all are of the usual form; None if one might not be."""
        columns = self._reader.read(lines)
        if not columns:
            return None
        try:
            times = self._times(columns[0])
            cached = self._cache.requests
            recorded = zip(*columns[2:], strict=True) if self._fields else [()] * len(times)
            requests = [cached.get(values) or self._request(values) for values in recorded]
        except (BadLineError, ValueError):
            return None
        codes: list[Code | None] = [None] * len(times)
        if self._flags:
            codes = [self._codes.get(flags) or self._code(flags) for flags in columns[1]]
        if not self._silent:
            return Block(times, requests, codes)
        asking = [index for index, recorded in enumerate(requests) if recorded.request.descriptors]
        return Block(
            [times[index] for index in asking],
            [requests[index] for index in asking],
            [codes[index] for index in asking],
        )

    def _times(self, values: list[Value]) -> list[int]:
        texts = list(map(_text, values))
        try:
            return self._moments.all_us(texts)
        except ValueError:
            return [self._moment_us(text, self._time) for text in texts]

    def _one_by_one(self, texts: Sequence[str], first: int) -> Iterator[Block]:
        lines = self._lines
        block = Block([], [], [])
        for number, line in enumerate(texts, first):
            if not line:
                continue
            try:
                fields = _object(line)
                at_us = self._moment_us(_value(fields, self._time), self._time)
                recorded = self._request(tuple([_value(fields, field) for field in self._fields]))
            except (ValueError, RecursionError) as error:
                lines.bad(f"the line is no JSON: {json_slip(error, one_line=True)}", number)
                continue
            except BadLineError as error:
                lines.bad(str(error), number)
                continue
            if recorded.request.descriptors:
                block.add(at_us, recorded, self._code(_value(fields, self._flags)))
        yield block

    def _request(self, values: tuple[Value, ...]) -> RecordedRequest:
        """What is asked by these fields, in their order. Raises BadLineError."""
        recorded = self._cache.requests.get(values)
        if recorded is None:
            texts = list(map(_text, values))
            request = self._made(dict(zip(self._fields, texts, strict=True)))
            recorded = self._cache.add(values, sum(map(len, texts)), request)
        return recorded

    def _code(self, flags: Value) -> Code | None:
        """What was answered, by the response flags; None if the mapping does not name these."""
        if not self._flags:
            return None
        if len(self._codes) >= _MOST_FLAGS:
            self._codes.clear()
        limited = _RATE_LIMITED in _text(flags).split(",")
        code = self._codes[flags] = Code.OVER_LIMIT if limited else Code.OK
        return code

    def _moment_us(self, text: str, field: str) -> int:
        """A time of RFC 3339, or seconds since 1970. Raises BadLineError."""
        try:
            if text[-1:] == "Z":
                return self._moments.moment_us(text)
            at_us = _seconds_us(text, field)
            return moment_us(text) if at_us < 0 else at_us
        except ValueError as error:
            raise BadLineError(
                f"the field {field} must be a time: {text[:40]!r} is none"
            ) from error

    def _made(self, values: Mapping[str, str]) -> Request:
        mapped = self._mapped
        hits = _word(mapped.hits, values)
        if hits and not (hits.isascii() and hits.isdigit() and int(hits) <= MAX_ADDEND):
            raise BadLineError(f"{mapped.hits} must be a number of hits, not {hits[:20]!r}")
        descriptors = []
        for entries in mapped.descriptors:
            made = [Entry(key, _word(word, values)) for key, word in entries]
            if all(entry.value for entry in made):
                addend = int(hits) if hits else None
                descriptors.append(Descriptor(tuple(made), hits_addend=addend))
        self._silent = self._silent or not descriptors
        return Request(_word(mapped.domain, values), tuple(descriptors))

    def notes(self) -> Iterator[str]:
        """Nothing is to be known of the log as a whole."""
        return iter(())


def _word(word: str, values: Mapping[str, str]) -> str:
    return values[word[1:]] if word.startswith(_FIELD) else word


def _object(line: str) -> Mapping[str, object]:
    """The object of a line. Raises ValueError, RecursionError or BadLineError if it is none."""
    try:
        parsed, end = _decode(line)
    except ValueError:
        end = -1
    if end != len(line):
        parsed = json.loads(line)  # it passes over spaces, and says best what is wrong
    if not isinstance(parsed, dict):
        raise BadLineError("the line is no JSON object")
    return parsed


_decode: Final = json.JSONDecoder().raw_decode


def _text(value: Value) -> str:
    """A field as text, "" if it is missing."""
    return "" if value is None or value == _NOTHING else str(value)


def _value(fields: Mapping[str, object], field: str) -> str:
    """A field as text, "" if it is missing; dots lead into objects."""
    value = fields.get(field)
    if isinstance(value, str):
        return "" if value == _NOTHING else value
    if value is None and "." in field:
        inner: object = fields
        for part in field.split("."):
            inner = inner.get(part) if isinstance(inner, dict) else None
        value = inner
    if value is None or value == _NOTHING or isinstance(value, (dict, list)):
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _seconds_us(text: str, field: str) -> int:
    """Seconds since 1970, in microseconds; -1 of another form of time. Raises BadLineError."""
    whole, _, fraction = text.partition(".")
    if not (whole.isascii() and whole.isdigit() and len(whole) > 4):
        return -1
    at_us = int(whole[:_MOST_DIGITS]) * SECOND_US + int(f"{fraction:0<6.6}")
    if at_us > LAST_US:
        raise BadLineError(
            f"the field {field} must be seconds since 1970: {text[:20]!r} is beyond 2255"
        )
    return at_us
