"""Envoy's access log in JSON as a source of requests, by a mapping from its fields to descriptors.

What must not live here: what a mapping file looks like to people (docs/replay.md).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ratelimit_service.model import MAX_ADDEND, SECOND_US, Code, Descriptor, Entry, Request
from ratelimit_service.replay.logs import BadLineError, Lines, LogError
from ratelimit_service.replay.recorded import LAST_US, Recorded, moment_us
from ratelimit_service.rules.fields import Fields, document
from ratelimit_service.rules.files import read_rule_files
from ratelimit_service.rules.reader import Reader, Unreadable

__all__ = ["EnvoyLog", "Mapped", "read_mapping"]

_KEYS: Final = ("time", "domain", "hits", "flags", "descriptors")
_FIELD: Final = "$"
_NOTHING: Final = "-"
"""What Envoy writes where there is no value."""

_RATE_LIMITED: Final = "RL"
"""The response flag of a request that a rate limit service has denied."""

_MOST_DIGITS: Final = 20
"""Of seconds since 1970 that are looked at; all dates have fewer."""

_MOST_KNOWN: Final = 1 << 16


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
    found = read_rule_files(path)
    for name, why in {**found.unread, **found.skipped}.items():
        raise LogError(f"{name} cannot be read: {why}")
    reader = Reader(str(path), needs="a domain and descriptors")
    try:
        fields = document(reader, reader.composed(found.files[str(path)]), _KEYS, {})
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

    def __init__(self, mapped: Mapped) -> None:
        self._mapped = mapped
        self._fields = mapped.fields
        self._known: dict[tuple[str, ...], Request] = {}

    def records(self, lines: Lines) -> Iterator[Recorded]:
        """The requests; a line that is none is told to `lines`.

        Like Envoy, it leaves out a descriptor of which a field is missing, and does not ask at
        all if none is left.
        """
        time, flags = self._mapped.time[1:], self._mapped.flags[1:]
        for line in lines:
            if not line:
                continue
            try:
                found = json.loads(line)
                if not isinstance(found, dict):
                    raise BadLineError("the line is no JSON object")  # noqa: TRY301
                at_us = _moment_us(_value(found, time), time)
                request = self._request(found)
            except (ValueError, RecursionError) as error:
                lines.bad(f"the line is no JSON: {error}")
                continue
            except BadLineError as error:
                lines.bad(str(error))
                continue
            code = None
            if flags:
                limited = _RATE_LIMITED in _value(found, flags).split(",")
                code = Code.OVER_LIMIT if limited else Code.OK
            if request.descriptors:
                yield Recorded(at_us, request, code)

    def _request(self, found: Mapping[str, object]) -> Request:
        values = tuple([_value(found, field) for field in self._fields])
        request = self._known.get(values)
        if request is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            request = self._known[values] = self._made(dict(zip(self._fields, values, strict=True)))
        return request

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
        return Request(_word(mapped.domain, values), tuple(descriptors))

    def notes(self) -> Iterator[str]:
        """Nothing is to be known of the log as a whole."""
        return iter(())


def _word(word: str, values: Mapping[str, str]) -> str:
    return values[word[1:]] if word.startswith(_FIELD) else word


def _value(found: Mapping[str, object], field: str) -> str:
    """A field as text, "" if it is missing; dots lead into objects."""
    value = found.get(field)
    if value is None and "." in field:
        inner: object = found
        for part in field.split("."):
            inner = inner.get(part) if isinstance(inner, dict) else None
        value = inner
    if value is None or value == _NOTHING or isinstance(value, (dict, list)):
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _moment_us(text: str, field: str) -> int:
    """A time of RFC 3339, or seconds since 1970. Raises BadLineError."""
    try:
        whole, _, fraction = text.partition(".")
        if whole.isascii() and whole.isdigit() and len(whole) > 4:
            at_us = int(whole[:_MOST_DIGITS]) * SECOND_US + int(f"{fraction:0<6.6}")
            if at_us > LAST_US:
                raise BadLineError(
                    f"the field {field} must be seconds since 1970: {text[:20]!r} is beyond 9999"
                )
            return at_us
        return moment_us(text)
    except ValueError as error:
        raise BadLineError(f"the field {field} must be a time: {text[:40]!r} is none") from error
