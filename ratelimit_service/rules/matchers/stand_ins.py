"""Matchers for descriptors that cannot be looked up by their values as they are.

With `group` they take the networks of callers instead of their addresses, and with `valid_until`
they end, so that the next one must be asked. These matchers stand for others within a level;
nobody writes them, and nobody is shown them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, ClassVar, Final, Self

from ratelimit_service.containers.spread import Table, parts_of, spread
from ratelimit_service.model import Grouping
from ratelimit_service.rules.matchers.matcher import Index, Matcher

if TYPE_CHECKING:  # workers have matchers, but read no YAML
    from ratelimit_service.rules.fields import Fields

__all__ = ["stand_ins"]

_BEFORE_NETWORKS: Final = -(2**21)
_BEFORE_GROUPED: Final = _BEFORE_NETWORKS - 1
_AFTER_ALL: Final = 2**21

_AT_ONCE: Final = 500
"""Texts that are added at once: less than a millisecond's worth."""


class _Grouped(Matcher):
    """A matcher that is held against the network of an address, not against the address."""

    key: ClassVar[str] = "group"
    noun: ClassVar[str] = "group"

    @classmethod
    def written(cls, _fields: Fields) -> bool:
        """Never: a descriptor with a group is."""
        return False

    @classmethod
    def read(cls, _fields: Fields) -> Self:
        """Never."""
        raise ValueError("a group is no value")


class _AskedTogether(Index):
    """Other matchers by the indexes of their kinds, once for each way to group."""

    def __init__(self) -> None:
        self._indexes: dict[tuple[Grouping | None, type[Index]], Index] = {}

    def add(self, matcher: Matcher, place: int) -> None:
        """Adds the next one's matcher."""
        assert isinstance(matcher, _Asked)  # noqa: S101 -- it is the index of these
        kind = matcher.grouping, matcher.matcher.index
        index = self._indexes.get(kind)
        if index is None:
            index = self._indexes[kind] = matcher.matcher.index()
        index.add(matcher.matcher, place)

    def completing(self) -> Iterator[None]:
        """Completes the indexes."""
        for index in self._indexes.values():
            yield from index.completing()

    def parts(self) -> Iterator[object]:
        """Those of the indexes."""
        for index in self._indexes.values():
            yield from index.parts()

    def first(self, value: str) -> int:
        """The first declared one."""
        found = -1
        for (grouping, _), index in self._indexes.items():
            place = index.first(_text_of(grouping, value))
            if place >= 0 and (found < 0 or place < found):
                found = place
        return found

    def all(self, value: str) -> Iterable[int]:
        """Those of each way to group, as declared."""
        return sorted(
            place
            for (grouping, _), index in self._indexes.items()
            for place in index.all(_text_of(grouping, value))
        )


@dataclass(frozen=True, slots=True)
class _Asked(_Grouped):
    """What another matcher takes."""

    index = _AskedTogether
    text: str
    grouping: Grouping | None
    matcher: Matcher

    @property
    def rank(self) -> int:
        """That of the other one."""
        return self.matcher.rank

    def matches(self, value: str) -> bool:
        """Whether the other one takes what a value is grouped to."""
        return self.matcher.matches(_text_of(self.grouping, value))


def _text_of(grouping: Grouping | None, value: str) -> str:
    return (grouping.of(value) or value) if grouping is not None else value


class _ByText(Index):
    """Texts by hash, once for each way to group."""

    def __init__(self) -> None:
        self._places: dict[Grouping | None, Table[str, int]] = {}
        self._lists: list[tuple[_Texts, int]] = []
        """Those with many texts, which are still to be added."""

    def add(self, matcher: Matcher, place: int) -> None:
        """Adds the next one's texts."""
        assert isinstance(matcher, _Texts)  # noqa: S101 -- it is the index of these
        if len(matcher.texts) > _AT_ONCE:
            self._lists.append((matcher, place))
        else:
            self._add(matcher.grouping, matcher.texts, place)

    def _add(self, grouping: Grouping | None, texts: Iterable[str], place: int) -> None:
        places = self._places.setdefault(grouping, {})
        for text in texts:
            before = places.get(text)
            if before is None or place < before:
                places[text] = place
        self._places[grouping] = spread(places)

    def completing(self) -> Iterator[None]:
        """Adds long lists, a part at a time."""
        while self._lists:
            matcher, place = self._lists.pop()
            texts = iter(matcher.texts)
            while part := list(islice(texts, _AT_ONCE)):
                self._add(matcher.grouping, part, place)
                yield

    def parts(self) -> Iterator[object]:
        """Those of the tables."""
        for places in self._places.values():
            yield from parts_of(places)

    def first(self, value: str) -> int:
        """The first declared one."""
        return min(self.all(value), default=-1)

    def all(self, value: str) -> Iterable[int]:
        """Those of each way to group, as declared."""
        found = [places.get(_text_of(grouping, value)) for grouping, places in self._places.items()]
        return sorted(place for place in found if place is not None)


@dataclass(frozen=True, slots=True)
class _Texts(_Grouped):
    """Just some texts."""

    index = _ByText
    text: str
    grouping: Grouping | None
    texts: Sequence[str]

    @property
    def rank(self) -> int:
        """Before networks and patterns; values as they stand before those that are grouped.

        As they stand they would be looked up, before all others, if they did not end.
        """
        return _BEFORE_NETWORKS if self.grouping is not None else _BEFORE_GROUPED

    def matches(self, value: str) -> bool:
        """Whether a value is grouped to one of them."""
        return _text_of(self.grouping, value) in self.texts


@dataclass(frozen=True, slots=True)
class _Any(_Grouped):
    """Every value, after all others."""

    text: str

    @property
    def rank(self) -> int:
        """After all others."""
        return _AFTER_ALL

    def matches(self, _value: str) -> bool:
        """Always."""
        return True


def stand_ins(
    value: str, matcher: Matcher | None, grouping: Grouping | None
) -> tuple[Matcher, ...]:
    """The matchers that take the networks of a descriptor's value, or of what its matcher takes.

    Without a value they take every one.
    """
    if not value:
        return (_Any(""),)
    texts = (value,) if matcher is None else matcher.literals
    exact = (_Texts("", grouping, texts),) if texts else ()
    if matcher is None or not matcher.asked:
        return exact
    return (*exact, _Asked("", grouping, matcher))
