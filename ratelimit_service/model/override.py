"""What an operator decides for some callers, in place of the rules: an override.

Which overrides take a descriptor, and which of them come first, is in `limiter/overrides`; where
they are kept is in `stores`. What must not live here: rules, plans, stores.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ratelimit_service.errors import OverrideError
from ratelimit_service.model.limit import MAX_ADDEND, MAX_EXACT
from ratelimit_service.model.request import Entry
from ratelimit_service.model.unit import SECOND_US

__all__ = [
    "FORMAT",
    "MAX_OVERRIDES",
    "MAX_PATTERNS",
    "NEVER_US",
    "Override",
    "OverrideKind",
    "moment_of",
    "read_override",
    "reason_of",
    "time_text",
    "too_many_overrides",
    "too_many_patterns",
]

MAX_OVERRIDES: Final = 10_000
"""How many there may be at a time."""

MAX_PATTERNS: Final = 1_000
"""How many of them may have a `*`."""

NEVER_US: Final = 1 << 62
"""A time after all others: when something ends that has no end."""

FORMAT: Final = 1
"""The version of what `Override.fields` says."""

_MOST_ENTRIES: Final = 32
_MOST_CHARACTERS: Final = 1_024
"""Of one key, value or name."""

_MOST_REASON: Final = 500
_LONGEST_US: Final = 10 * 365 * 86_400 * SECOND_US


class OverrideKind(StrEnum):
    """What an override does, those that come first before the others."""

    BAN = "ban"
    """Who meets it is denied, and nothing is counted."""
    EXEMPT = "exempt"
    """Who meets it passes, and nothing is counted."""
    LIMIT = "limit"
    """Another number of requests holds; what was counted stays."""
    GRANT = "grant"
    """So many hits more pass, before any are counted by the limit."""


@dataclass(frozen=True, slots=True)
class Override:
    """One override.

    It takes descriptors of its `domain` with these keys, in this order, and no others. Each `*`
    in a value stands for any characters or none. `number` is what a `limit` allows in a window, or
    how many hits a `grant` gives to each caller; else 0. With `limit` only the limits of that name
    are meant. It ends at `until_us`, if that is not None. Times are in microseconds.
    """

    id: str
    kind: OverrideKind
    domain: str
    entries: tuple[Entry, ...]
    made_us: int
    number: int = 0
    limit: str = ""
    until_us: int | None = None
    reason: str = ""
    who: str = ""

    @property
    def exact(self) -> bool:
        """Whether it takes one descriptor only."""
        return not any("*" in entry.value for entry in self.entries)

    @property
    def identity(self) -> tuple[object, ...]:
        """What makes it unique: a new override replaces the one with the same identity.

        Hits of several grants add up, so each grant has an identity of its own.
        """
        own = self.id if self.kind is OverrideKind.GRANT else ""
        return self.kind, self.domain, self.entries, self.limit, own

    def holds(self, now_us: int) -> bool:
        """Whether it has not ended."""
        return self.until_us is None or now_us < self.until_us

    def fields(self) -> dict[str, object]:
        """As JSON has it; `read_override` reads it again."""
        record: dict[str, object] = {
            "v": FORMAT,
            "id": self.id,
            "kind": str(self.kind),
            "domain": self.domain,
            "entries": [list(entry) for entry in self.entries],
            "made": time_text(self.made_us),
        }
        if self.kind in _NUMBERS:
            record[_NUMBERS[self.kind]] = self.number
        if self.until_us is not None:
            record["until"] = time_text(self.until_us)
        for name in ("limit", "reason", "who"):
            if value := getattr(self, name):
                record[name] = value
        return record


_NUMBERS: Final[Mapping[OverrideKind, str]] = {
    OverrideKind.LIMIT: "requests",
    OverrideKind.GRANT: "hits",
}
"""What the number of a kind is called; the others have none."""

_KNOWN: Final = frozenset(
    (
        "v",
        "id",
        "kind",
        "domain",
        "entries",
        "made",
        "requests",
        "hits",
        "until",
        "limit",
        "reason",
        "who",
    )
)


def read_override(fields: Mapping[str, object]) -> Override:
    """Reads what `Override.fields` says. Raises OverrideError."""
    if fields.get("v") != FORMAT:
        raise OverrideError(f'its format ("v") is not {FORMAT}: another version wrote it')
    for name in fields:
        if name not in _KNOWN:
            raise OverrideError(f"an override has no field {name!r}")
    try:
        kind = OverrideKind(str(fields.get("kind")))
    except ValueError as error:
        raise OverrideError(f"kind must be one of {', '.join(OverrideKind)}") from error
    until = fields.get("until")
    override = Override(
        _text(fields, "id"),
        kind,
        _text(fields, "domain"),
        _entries(fields.get("entries")),
        moment_of(fields.get("made")),
        _number(kind, fields),
        _text(fields, "limit"),
        None if until is None else moment_of(until),
        reason_of(fields),
        _text(fields, "who"),
    )
    if not override.id or not override.domain:
        raise OverrideError(f"{'domain' if override.id else 'id'} is missing")
    if override.until_us is not None:
        lasts_us = override.until_us - override.made_us
        # A grant ends with a window of the rules, which may be as long as any window.
        if lasts_us > (MAX_EXACT if kind is OverrideKind.GRANT else _LONGEST_US):
            years = "285" if kind is OverrideKind.GRANT else "ten"
            raise OverrideError(
                f"it ends in more than {years} years: leave its end out if it is to stay"
            )
    return override


def reason_of(fields: Mapping[str, object]) -> str:
    """Why something is changed; "" if nobody says so. Raises OverrideError."""
    return _text(fields, "reason", _MOST_REASON)


def moment_of(value: object) -> int:
    """A moment as `fields` writes it, in microseconds. Raises OverrideError."""
    try:
        moment = datetime.datetime.fromisoformat(str(value))
        if moment.tzinfo is None:
            raise OverrideError(f"{value!r} does not name its zone: write a Z behind it for UTC")
        moment = moment.astimezone(datetime.UTC)  # in UTC it may be outside of the calendar
    except (ValueError, OverflowError) as error:
        raise OverrideError(f"{value!r} is no time: write 2026-07-01T14:00:00Z") from error
    since = moment - _EPOCH
    return (since.days * 86_400 + since.seconds) * SECOND_US + since.microseconds


_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def time_text(at_us: int) -> str:
    """A moment as `moment_of` reads it: RFC 3339, in UTC, to the microsecond."""
    moment = _EPOCH + datetime.timedelta(microseconds=at_us)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def too_many_overrides() -> OverrideError:
    """What is said where there is room for no other override."""
    return OverrideError(
        f"there are {MAX_OVERRIDES} overrides, which is the most: "
        "remove some (ratelimit overrides remove ID), or let one pattern take many callers"
    )


def too_many_patterns() -> OverrideError:
    """What is said where there is room for no other one with a pattern."""
    return OverrideError(
        f"there are {MAX_PATTERNS} overrides with a * in them, which is the most: "
        "remove some (ratelimit overrides remove ID)"
    )


def _text(fields: Mapping[str, object], name: str, most: int = _MOST_CHARACTERS) -> str:
    value = fields.get(name, "")
    if not isinstance(value, str):
        raise OverrideError(f"{name} must be text")
    return _fit(name, value, most)


def _fit(name: str, value: str, most: int = _MOST_CHARACTERS) -> str:
    if len(value) > most:
        raise OverrideError(f"{name} has {len(value)} characters, and may have {most}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise OverrideError(f"{name} is no UTF-8") from error
    return value


def _entries(value: object) -> tuple[Entry, ...]:
    if not isinstance(value, list) or not 0 < len(value) <= _MOST_ENTRIES:
        raise OverrideError(
            f"entries must be a list of 1 to {_MOST_ENTRIES} pairs of key and value"
        )
    entries = []
    for pair in value:
        if not (
            isinstance(pair, list) and len(pair) == 2 and all(isinstance(x, str) for x in pair)
        ):
            raise OverrideError("each of the entries must be a pair of texts: key and value")
        key, text = pair
        if not key:
            raise OverrideError("a key of the entries is empty")
        entries.append(Entry(_fit("a key", key), _fit("a value", text)))
    return tuple(entries)


def _number(kind: OverrideKind, fields: Mapping[str, object]) -> int:
    for each, name in _NUMBERS.items():
        if each is not kind and name in fields:
            raise OverrideError(f"{name} belongs to {each}, not to {kind}")
    if kind not in _NUMBERS:
        return 0
    name = _NUMBERS[kind]
    number = fields.get(name)
    least = 1 if kind is OverrideKind.GRANT else 0
    if isinstance(number, bool) or not isinstance(number, int):
        raise OverrideError(f"{kind} needs {name}: a whole number")
    if not least <= number <= MAX_ADDEND:
        raise OverrideError(f"{name} must be from {least} to {MAX_ADDEND}, not {number}")
    return number
