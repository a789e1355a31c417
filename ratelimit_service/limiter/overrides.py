"""Which overrides a descriptor meets, and which of them come first. Pure.

What must not live here: what overrides make of a plan (`overridden_plans`), and where they are kept
(`stores`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from ratelimit_service.model import Entry, Override, OverrideKind
from ratelimit_service.rules.matchers.effort import EFFORT
from ratelimit_service.rules.matchers.fragments import FragmentIndex
from ratelimit_service.rules.matchers.pattern import Pattern

__all__ = ["DomainOverrides", "Ruling", "holding", "ruling_of"]

_ORDER: Final = {kind: index for index, kind in enumerate(OverrideKind)}

_MOST_GRANTS: Final = 8
"""So many grants of a descriptor are looked at; each is a counter more for the store."""


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
        return all(pattern.matches(entries[index].value) for index, pattern in self.patterns)


class _AlikePatterns:
    """Overrides with patterns at the same places, and equal values at all others.

    Each is found by a piece of its first pattern. So of thousands only those are compared with a
    value that have a piece of it.
    """

    __slots__ = ("_pieces",)

    def __init__(self) -> None:
        self._pieces = FragmentIndex[_Patterned]()

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def add(self, patterned: _Patterned) -> None:
        """Takes in one that is not known yet."""
        self._pieces.add(patterned.patterns[0][1].fragments, patterned)

    def remove(self, patterned: _Patterned) -> None:
        """Lets go of one that is known."""
        self._pieces.remove(patterned.patterns[0][1].fragments, patterned)

    def taking(self, entries: Sequence[Entry], index: int) -> Sequence[Override]:
        """Those that take a descriptor; `index` is the first one with a pattern."""
        likely = self._pieces.likely(entries[index].value)
        return [each.override for each in likely if each.takes(entries)]


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
        keys, plain, values = _shape(override)
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
        keys, plain, values = _shape(override)
        by_indices = self._patterned[keys]
        by_values = by_indices[plain]
        alike = by_values[values]
        alike.remove(_patterned(override, plain))
        if not alike:
            del by_values[values]
        if not by_values:
            del by_indices[plain]
        if not by_indices:
            del self._patterned[keys]

    def taking(self, entries: Sequence[Entry]) -> Sequence[Override]:
        """Those that take a descriptor, also if they have ended. Raises EffortSpentError.

        What was found in a turn before is kept, as `matchers.effort` says.
        """
        entries = tuple(entries)
        exact = self._exact.get(entries, ())
        by_indices = self._patterned.get(tuple([entry.key for entry in entries]))
        if not by_indices:
            return exact
        if not EFFORT.bounded:
            return [*exact, *self._taking(entries, by_indices)]
        name = (self, entries)
        taking = EFFORT.results.get(name)
        if taking is None:
            EFFORT.spend(0)
            taking = [*exact, *self._taking(entries, by_indices)]
            EFFORT.results[name] = taking
        return taking

    def meeting(self, entries: Sequence[Entry], now_us: int) -> list[Override]:
        """Those that take a descriptor and hold now, the first one first."""
        return holding(self.taking(entries), now_us)

    def _taking(
        self,
        entries: tuple[Entry, ...],
        by_indices: Mapping[tuple[int, ...], Mapping[tuple[str, ...], _AlikePatterns]],
    ) -> Iterator[Override]:
        for plain, by_values in by_indices.items():
            alike = by_values.get(tuple([entries[index].value for index in plain]))
            if alike is not None:
                first = next(index for index in range(len(entries)) if index not in plain)
                yield from alike.taking(entries, first)


def holding(taking: Sequence[Override], now_us: int) -> list[Override]:
    """Those of overrides that take a descriptor which hold now, the first one first."""
    if not taking:
        return []
    held = [override for override in taking if override.holds(now_us)]
    held.sort(key=_precedence)
    return held


def _patterned(override: Override, plain: tuple[int, ...]) -> _Patterned:
    """An override with its patterns, which stand at all places but these."""
    patterns = [
        (index, Pattern.of(entry.value))
        for index, entry in enumerate(override.entries)
        if index not in plain
    ]
    return _Patterned(override, tuple(patterns))


def _shape(override: Override) -> tuple[tuple[str, ...], tuple[int, ...], tuple[str, ...]]:
    """Its keys, the places of values without pattern, and these values."""
    entries = override.entries
    plain = tuple(index for index, entry in enumerate(entries) if "*" not in entry.value)
    return (
        tuple(entry.key for entry in entries),
        plain,
        tuple(entries[index].value for index in plain),
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
    meant = [override for override in meeting if not override.limit or override.limit == name]
    if not meant:
        return _NOTHING
    first = meant[0]
    if first.kind is OverrideKind.BAN:
        return Ruling(ban=first)
    if first.kind is OverrideKind.EXEMPT:
        return Ruling(exempt=first)
    limit = next((override for override in meant if override.kind is OverrideKind.LIMIT), None)
    grants = [override for override in meant if override.kind is OverrideKind.GRANT]
    return Ruling(limit=limit, grants=tuple(grants[:_MOST_GRANTS]))
