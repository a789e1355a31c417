"""Which overrides a descriptor meets, and which of them come first. Pure.

What must not live here: what overrides make of a plan (`steer`), and where they are kept
(`stores`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from ratelimit_service.model import Entry, Override, OverrideKind
from ratelimit_service.rules.matchers.pattern import Pattern

__all__ = ["DomainOverrides", "Ruling", "ruling_of"]

_ORDER: Final = {kind: place for place, kind in enumerate(OverrideKind)}

_MOST_GRANTS: Final = 8
"""So many grants of a descriptor are looked at; each may cost a call to the store."""


def _rank(override: Override) -> tuple[bool, int, bool, int, str]:
    """Who comes first: exact, by kind, with a limit's name, the newest."""
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


class DomainOverrides:
    """The overrides of one domain."""

    __slots__ = ("_exact", "_patterned", "known")

    def __init__(self) -> None:
        self.known: set[str] = set()
        """Their ids."""
        self._exact: dict[tuple[Entry, ...], list[Override]] = {}
        self._patterned: dict[
            tuple[str, ...],
            dict[tuple[int, ...], dict[tuple[str, ...], list[_Patterned]]],
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
        patterns = tuple(
            (place, Pattern.of(entry.value))
            for place, entry in enumerate(override.entries)
            if place not in plain
        )
        by_values = self._patterned.setdefault(keys, {}).setdefault(plain, {})
        by_values.setdefault(values, []).append(_Patterned(override, patterns))

    def remove(self, override: Override) -> None:
        """Lets go of one that is known."""
        self.known.remove(override.id)
        if override.exact:
            alike = self._exact[override.entries]
            alike.remove(override)
            if not alike:
                del self._exact[override.entries]
            return
        keys, plain, values = _place(override)
        by_places = self._patterned[keys]
        by_values = by_places[plain]
        patterned = by_values[values]
        patterned[:] = [each for each in patterned if each.override.id != override.id]
        if not patterned:
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
        found.sort(key=_rank)
        return found

    def _taking(self, entries: tuple[Entry, ...]) -> Iterator[Override]:
        yield from self._exact.get(entries, ())
        if not self._patterned:
            return
        places = self._patterned.get(tuple(entry.key for entry in entries), {})
        for plain, by_values in places.items():
            for each in by_values.get(tuple(entries[place].value for place in plain), ()):
                if each.takes(entries):
                    yield each.override


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
