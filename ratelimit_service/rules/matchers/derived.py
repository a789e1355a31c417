"""Matchers for descriptors that cannot be looked up by their values as they are.

With `group` they take the networks of callers instead of their addresses, and with `valid_until`
they end, so that the next one must be asked. These matchers stand for others within a level;
nobody writes them, and nobody is shown them.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, ClassVar, Final, Self

from ratelimit_service.containers.spread import Table, parts_of, spread
from ratelimit_service.model import Grouping, IPAddress, Network, address_of
from ratelimit_service.rules.matchers.matcher import Index, Matcher

if TYPE_CHECKING:  # workers have matchers, but read no YAML
    from ratelimit_service.rules.fields import Fields

__all__ = ["derived_matchers"]

_BEFORE_NETWORKS: Final = -(2**21)
_BEFORE_GROUPED: Final = _BEFORE_NETWORKS - 1
_AFTER_ALL: Final = 2**21

_AT_ONCE: Final = 500
"""Texts that are added at once: less than a millisecond's worth."""


class _Derived(Matcher):
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


_Size = tuple[int, int]
"""A family of addresses, and the length of the prefix that a way to group gives to it.

Values that are no addresses are of the family 0, and those that nobody groups are of `_AS_IT_IS`.
"""

_AS_IT_IS: Final = -1, 0


def _sizes(grouping: Grouping | None) -> Sequence[_Size]:
    """What a value can be grouped to, each of which is looked up by itself.

    There are many ways to group, but few lengths of a prefix.
    """
    if grouping is None:
        return (_AS_IT_IS,)
    return (4, grouping.ipv4), (6, grouping.ipv6), (0, 0)


def _grouped(value: str, known: Container[_Size]) -> Iterator[tuple[_Size, str]]:
    """The texts that a value is grouped to, by those of the sizes that are known."""
    if _AS_IT_IS in known:
        yield _AS_IT_IS, value
    address = address_of(value)
    if address is None:
        yield (0, 0), value
        return
    whole = IPAddress.bits_of(address.family)
    for length in range(whole + 1):
        size = address.family, length
        if size in known:
            yield size, address.text if length == whole else str(Network.around(address, length))


class _GroupedIndex(Index):
    """Other matchers by the indexes of their kinds, once for each size of networks."""

    def __init__(self) -> None:
        self._indexes: dict[_Size, dict[type[Index], Index]] = {}

    def add(self, matcher: Matcher, position: int) -> None:
        """Adds the next one's matcher."""
        assert isinstance(matcher, _GroupedMatcher)  # noqa: S101 -- it is the index of these
        kind = matcher.matcher.index
        for size in _sizes(matcher.grouping):
            indexes = self._indexes.setdefault(size, {})
            if kind not in indexes:
                indexes[kind] = kind()
            indexes[kind].add(matcher.matcher, position)

    def completing(self) -> Iterator[None]:
        """Completes the indexes."""
        for indexes in self._indexes.values():
            for index in indexes.values():
                yield from index.completing()

    def parts(self) -> Iterator[object]:
        """Those of the indexes."""
        for indexes in self._indexes.values():
            for index in indexes.values():
                yield from index.parts()

    def first(self, value: str) -> int:
        """The first declared one."""
        return min(self.all(value), default=-1)

    def all(self, value: str) -> Iterable[int]:
        """Those of each way to group, as declared."""
        return sorted(
            position
            for size, text in _grouped(value, self._indexes)
            for index in self._indexes.get(size, {}).values()
            for position in index.all(text)
        )


@dataclass(frozen=True, slots=True)
class _GroupedMatcher(_Derived):
    """What another matcher takes."""

    index = _GroupedIndex
    text: str
    grouping: Grouping | None
    matcher: Matcher

    @property
    def precedence(self) -> int:
        """That of the other one."""
        return self.matcher.precedence

    def matches(self, value: str) -> bool:
        """Whether the other one takes what a value is grouped to."""
        return self.matcher.matches(_text_of(self.grouping, value))


def _text_of(grouping: Grouping | None, value: str) -> str:
    return (grouping.of(value) or value) if grouping is not None else value


class _ByText(Index):
    """Texts by hash, once for each size of networks.

    A text that is a network of the size is looked up by its number: an address is not written out
    for each size.
    """

    def __init__(self) -> None:
        self._tables: dict[_Size, Table[str | int, int]] = {}
        self._lists: list[tuple[_Texts, int]] = []
        """Those with many texts, which are still to be added."""

    def add(self, matcher: Matcher, position: int) -> None:
        """Adds the next one's texts."""
        assert isinstance(matcher, _Texts)  # noqa: S101 -- it is the index of these
        if len(matcher.texts) > _AT_ONCE:
            self._lists.append((matcher, position))
        else:
            self._add(matcher.grouping, matcher.texts, position)

    def _add(self, grouping: Grouping | None, texts: Iterable[str], position: int) -> None:
        for text in texts:
            for size in _sizes(grouping):
                name = text if size[0] <= 0 else _bits_of(text, size)
                if name is None:
                    continue
                table = self._tables.setdefault(size, {})
                before = table.get(name)
                if before is None or position < before:
                    table[name] = position
                    self._tables[size] = spread(table)

    def completing(self) -> Iterator[None]:
        """Adds long lists, a part at a time."""
        while self._lists:
            matcher, position = self._lists.pop()
            texts = iter(matcher.texts)
            while part := list(islice(texts, _AT_ONCE)):
                self._add(matcher.grouping, part, position)
                yield

    def parts(self) -> Iterator[object]:
        """Those of the tables."""
        for table in self._tables.values():
            yield from parts_of(table)

    def first(self, value: str) -> int:
        """The first declared one."""
        return min(self.all(value), default=-1)

    def all(self, value: str) -> Iterable[int]:
        """Those of each way to group, as declared."""
        positions: list[int | None] = []
        if _AS_IT_IS in self._tables:
            positions.append(self._tables[_AS_IT_IS].get(value))
        address = address_of(value)
        if address is None:
            table = self._tables.get((0, 0))
            positions.append(None if table is None else table.get(value))
        else:
            family, number = address
            whole = IPAddress.bits_of(family)
            for length in range(whole + 1):
                table = self._tables.get((family, length))
                if table is not None:
                    positions.append(table.get(number >> (whole - length)))
        return sorted([position for position in positions if position is not None])


def _bits_of(text: str, size: _Size) -> int | None:
    """The bits of the network that a text is, if addresses are grouped to just this text."""
    family, length = size
    address = address_of(text.partition("/")[0])
    if address is None or address.family != family:
        return None
    if Grouping(length, length).of(address.text) != text:
        return None
    return address.number >> (IPAddress.bits_of(family) - length)


@dataclass(frozen=True, slots=True)
class _Texts(_Derived):
    """Just some texts."""

    index = _ByText
    text: str
    grouping: Grouping | None
    texts: Sequence[str]

    @property
    def precedence(self) -> int:
        """Before networks and patterns; values as they stand before those that are grouped.

        As they stand they would be looked up, before all others, if they did not end.
        """
        return _BEFORE_NETWORKS if self.grouping is not None else _BEFORE_GROUPED

    def matches(self, value: str) -> bool:
        """Whether a value is grouped to one of them."""
        return _text_of(self.grouping, value) in self.texts


@dataclass(frozen=True, slots=True)
class _Any(_Derived):
    """Every value, after all others."""

    text: str

    @property
    def precedence(self) -> int:
        """After all others."""
        return _AFTER_ALL

    def matches(self, _value: str) -> bool:
        """Always."""
        return True


def derived_matchers(
    value: str, matcher: Matcher | None, grouping: Grouping | None
) -> tuple[Matcher, ...]:
    """The matchers that take the networks of a descriptor's value, or of what its matcher takes.

    Without a value they take every one.
    """
    if not value:
        return (_Any(""),)
    texts = (value,) if matcher is None else matcher.literals
    exact = (_Texts("", grouping, texts),) if texts else ()
    if matcher is None or not matcher.beyond_literals:
        return exact
    return (*exact, _GroupedMatcher("", grouping, matcher))
