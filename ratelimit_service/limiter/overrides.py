"""Which overrides a descriptor meets, and which of them come first. Pure.

What must not live here: what overrides make of a plan (`steer`), and where they are kept
(`stores`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from ratelimit_service.model import Entry, Override, OverrideKind
from ratelimit_service.rules.matchers.pattern import Pattern

__all__ = ["DomainOverrides", "Ruling", "ruling_of"]

_ORDER: Final = {kind: place for place, kind in enumerate(OverrideKind)}

_MOST_GRANTS: Final = 8
"""So many grants of a descriptor are looked at; each may cost a call to the store."""


def _precedence(override: Override) -> tuple[bool, int, bool, int, str]:
    """Sorts overrides: exact ones first, then by kind, those that name a limit, the newest."""
    return (
        not override.exact,
        _ORDER[override.kind],
        not override.limit,
        -override.made_us,
        override.id,
    )


class _Patterned(NamedTuple):
    """An override with patterns at some places of its entries."""

    override: Override
    patterns: tuple[tuple[int, Pattern], ...]

    def takes(self, entries: Sequence[Entry]) -> bool:
        """Whether the values at these places match."""
        return all(pattern.matches(entries[place].value) for place, pattern in self.patterns)


class _AlikePatterns:
    """Overrides with patterns at the same places, and equal values at all others.

    Each is found by how its first pattern begins, or ends if that says more. So of thousands only
    those are compared with a value that begin or end as it does.
    """

    __slots__ = ("_by_part", "_lengths")

    def __init__(self) -> None:
        self._by_part: dict[tuple[bool, str], list[_Patterned]] = {}
        """By whether the part is the end, and the part."""
        self._lengths: Counter[tuple[bool, int]] = Counter()
        """The parts' lengths, and of how many overrides."""

    def __bool__(self) -> bool:
        return bool(self._by_part)

    def add(self, patterned: _Patterned) -> None:
        """Takes in one that is not known yet."""
        part = _part(patterned)
        self._by_part.setdefault(part, []).append(patterned)
        self._lengths[part[0], len(part[1])] += 1

    def remove(self, patterned: _Patterned) -> None:
        """Lets go of one that is known."""
        part = _part(patterned)
        alike = self._by_part[part]
        alike[:] = [each for each in alike if each.override.id != patterned.override.id]
        if not alike:
            del self._by_part[part]
        length = part[0], len(part[1])
        self._lengths[length] -= 1
        if not self._lengths[length]:
            del self._lengths[length]

    def taking(self, entries: Sequence[Entry], place: int) -> Iterator[Override]:
        """Those that take a descriptor; `place` is the first one with a pattern."""
        value = entries[place].value
        for is_end, length in self._lengths:
            part = value[-length:] if is_end else value[:length]
            for each in self._by_part.get((is_end, part), ()):
                if each.takes(entries):
                    yield each.override


def _part(patterned: _Patterned) -> tuple[bool, str]:
    """By what it is found: whether that is an end, and the text."""
    pieces = patterned.patterns[0][1].pieces
    is_end = len(pieces[-1]) > len(pieces[0])
    return is_end, pieces[-1 if is_end else 0]


class DomainOverrides:
    """The overrides of one domain."""

    __slots__ = ("_exact", "_patterned", "known")

    def __init__(self) -> None:
        self.known: set[str] = set()
        """Their ids."""
        self._exact: dict[tuple[Entry, ...], list[Override]] = {}
        self._patterned: dict[
            tuple[str, ...],
            dict[tuple[int, ...], dict[tuple[str, ...], _AlikePatterns]],
        ] = {}
        """By keys, then the places of values without pattern, then these values: so only those
        are looked at whose other values are right."""

    def add(self, override: Override) -> None:
        """Takes in one that is not known yet."""
        self.known.add(override.id)
        if override.exact:
            self._exact.setdefault(override.entries, []).append(override)
            return
        keys, plain, values = _place(override)
        by_values = self._patterned.setdefault(keys, {}).setdefault(plain, {})
        if values not in by_values:
            by_values[values] = _AlikePatterns()
        by_values[values].add(_patterned(override, plain))

    def remove(self, override: Override) -> None:
        """Lets go of one that is known."""
        self.known.remove(override.id)
        if override.exact:
            same = self._exact[override.entries]
            same.remove(override)
            if not same:
                del self._exact[override.entries]
            return
        keys, plain, values = _place(override)
        by_places = self._patterned[keys]
        by_values = by_places[plain]
        alike = by_values[values]
        alike.remove(_patterned(override, plain))
        if not alike:
            del by_values[values]
        if not by_values:
            del by_places[plain]
        if not by_places:
            del self._patterned[keys]

    def may_take(self, entries: Sequence[Entry]) -> bool:
        """Whether any takes a descriptor, also one that has ended."""
        return any(True for _ in self._taking(tuple(entries)))

    def meeting(self, entries: Sequence[Entry], now_us: int) -> list[Override]:
        """Those that take a descriptor and hold now, the first one first."""
        found = [each for each in self._taking(tuple(entries)) if each.holds(now_us)]
        found.sort(key=_precedence)
        return found

    def _taking(self, entries: tuple[Entry, ...]) -> Iterator[Override]:
        yield from self._exact.get(entries, ())
        if not self._patterned:
            return
        places = self._patterned.get(tuple(entry.key for entry in entries), {})
        for plain, by_values in places.items():
            alike = by_values.get(tuple(entries[place].value for place in plain))
            if alike is not None:
                first = next(place for place in range(len(entries)) if place not in plain)
                yield from alike.taking(entries, first)


def _patterned(override: Override, plain: tuple[int, ...]) -> _Patterned:
    """An override with its patterns, which stand at all places but these."""
    patterns = [
        (place, Pattern.of(entry.value))
        for place, entry in enumerate(override.entries)
        if place not in plain
    ]
    return _Patterned(override, tuple(patterns))


def _place(override: Override) -> tuple[tuple[str, ...], tuple[int, ...], tuple[str, ...]]:
    """Its keys, the places of values without pattern, and these values."""
    entries = override.entries
    plain = tuple(place for place, entry in enumerate(entries) if "*" not in entry.value)
    return (
        tuple(entry.key for entry in entries),
        plain,
        tuple(entries[place].value for place in plain),
    )


class Ruling(NamedTuple):
    """What overrides say of one limit.

    A ban or an exempt is alone. Else there may be another number (`limit`), and grants beside it.
    """

    ban: Override | None = None
    exempt: Override | None = None
    limit: Override | None = None
    grants: tuple[Override, ...] = ()

    @property
    def applied(self) -> tuple[Override, ...]:
        """All that take part."""
        alone = self.ban or self.exempt
        if alone is not None:
            return (alone,)
        return (() if self.limit is None else (self.limit,)) + self.grants


_NOTHING: Final = Ruling()


def ruling_of(meeting: Sequence[Override], name: str = "") -> Ruling:
    """What overrides, in their order, say of a limit of this name.

    The first one that is meant decides. If it is a ban or an exempt nothing else counts. If it is a
    limit or a grant, bans and exempts behind it do not count; a number and extra hits do not
    contradict each other, so the first limit and all grants hold together.
    """
    meant = [each for each in meeting if not each.limit or each.limit == name]
    if not meant:
        return _NOTHING
    first = meant[0]
    if first.kind is OverrideKind.BAN:
        return Ruling(ban=first)
    if first.kind is OverrideKind.EXEMPT:
        return Ruling(exempt=first)
    limit = next((each for each in meant if each.kind is OverrideKind.LIMIT), None)
    grants = [each for each in meant if each.kind is OverrideKind.GRANT]
    return Ruling(limit=limit, grants=tuple(grants[:_MOST_GRANTS]))
