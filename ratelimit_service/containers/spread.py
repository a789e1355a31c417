"""Large tables and lists in many small parts.

To grow a table of 100,000, or to drop it, holds requests up for milliseconds if it is one. In parts
each step takes some microseconds; who drops it lets go of one part at a time (`parts`). What must
not live here: what is kept in them.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, Generic, TypeVar, overload

__all__ = [
    "IN_PART",
    "LARGE",
    "PARTS",
    "SpreadList",
    "SpreadTable",
    "SpreadTuple",
    "Table",
    "parts_of",
    "spread",
    "spread_tuple",
]

LARGE: Final = 1_000
"""From so many items on a part is not small any more."""

IN_PART: Final = 500
"""Items of one part of a tuple: they may be made and dropped with it, which takes longer."""

PARTS: Final = 61
"""A key is in the part `parts[hash(key) % PARTS]` of a table. Code that cannot afford a call looks
there itself. The number is odd because a dict places keys by the low bits of their hashes: these
must not be alike in all of a part. Among more parts more of a look-up has to come from memory."""

_K = TypeVar("_K")
_V = TypeVar("_V")


class SpreadTable(Generic[_K, _V]):
    """A dict for large numbers of keys, with the few methods of one that are needed."""

    __slots__ = ("parts",)

    def __init__(self, items: Iterable[tuple[_K, _V]] = ()) -> None:
        self.parts: list[dict[_K, _V]] = [{} for _ in range(PARTS)]
        """Together they are the table."""
        for key, value in items:
            self.setdefault(key, value)

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __contains__(self, key: _K) -> bool:
        return key in self.parts[hash(key) % PARTS]

    def __iter__(self) -> Iterator[_K]:
        return chain.from_iterable(self.parts)

    def __getitem__(self, key: _K) -> _V:
        return self.parts[hash(key) % PARTS][key]

    def __setitem__(self, key: _K, value: _V) -> None:
        self.parts[hash(key) % PARTS][key] = value

    def values(self) -> Iterator[_V]:
        """All values."""
        return chain.from_iterable(part.values() for part in self.parts)

    def get(self, key: _K) -> _V | None:
        """The value of a key; None if it has none."""
        return self.parts[hash(key) % PARTS].get(key)

    def setdefault(self, key: _K, value: _V) -> _V:
        """The value of a key, which is this one if it had none."""
        return self.parts[hash(key) % PARTS].setdefault(key, value)

    def pop(self, key: _K) -> _V | None:
        """Takes out a key; the value that it had."""
        return self.parts[hash(key) % PARTS].pop(key, None)

    def emptying(self) -> Generator[None, None, None]:
        """Takes everything out, a part in each step; empty ones take none."""
        for part in self.parts:
            if part:
                part.clear()
                yield


class SpreadList(Sequence[_V]):
    """A list for large numbers of items, to which only its end is added."""

    __slots__ = ("_size", "parts")

    def __init__(self, items: Iterable[_V] = ()) -> None:
        self.parts: list[list[_V]] = []
        """Each has `LARGE` items; the last may have fewer."""
        self._size = 0
        for item in items:
            self.append(item)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[_V]:
        return chain.from_iterable(self.parts)

    @overload
    def __getitem__(self, index: int) -> _V: ...
    @overload
    def __getitem__(self, index: slice) -> list[_V]: ...
    def __getitem__(self, index: int | slice) -> _V | list[_V]:
        if isinstance(index, slice):
            return list(self)[index]
        if index < 0:
            index += self._size
        return self.parts[index // LARGE][index % LARGE]

    def append(self, item: _V) -> None:
        """Adds an item."""
        if self._size % LARGE == 0:
            self.parts.append([])
        self.parts[-1].append(item)
        self._size += 1

    def emptying(self) -> Generator[None, None, None]:
        """Takes everything out, a part in each step."""
        self._size = 0
        while self.parts:
            del self.parts[-1]
            yield


class SpreadTuple(Sequence[_V]):
    """A tuple for many items, in parts of `IN_PART` items; the last may have fewer."""

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[tuple[_V, ...]]) -> None:
        self.parts = tuple(parts)
        """Together they are the tuple."""

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __iter__(self) -> Iterator[_V]:
        return chain.from_iterable(self.parts)

    def __contains__(self, item: object) -> bool:
        return any(item in part for part in self.parts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SpreadTuple) and self.parts == other.parts

    def __hash__(self) -> int:
        return hash(self.parts)

    @overload
    def __getitem__(self, index: int) -> _V: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[_V, ...]: ...
    def __getitem__(self, index: int | slice) -> _V | tuple[_V, ...]:
        if isinstance(index, slice):
            return tuple(self)[index]
        if index < 0:
            index += len(self)
        return self.parts[index // IN_PART][index % IN_PART]


def spread_tuple(items: Sequence[_V]) -> Sequence[_V]:
    """The same items as a tuple, spread if they are many."""
    if len(items) <= LARGE:
        return tuple(items)
    return SpreadTuple(
        [tuple(items[index : index + IN_PART]) for index in range(0, len(items), IN_PART)]
    )


Table = dict[_K, _V] | SpreadTable[_K, _V]
"""A dict, or one that is spread because it is large."""


def spread(table: Table[_K, _V]) -> Table[_K, _V]:
    """The same table, spread if it is large; to be called while it grows, key by key."""
    if isinstance(table, dict) and len(table) > LARGE:
        return SpreadTable(table.items())
    return table


def parts_of(items: Table[_K, _V] | Sequence[_V]) -> Iterable[object]:
    """The parts of what is spread, and has several."""
    if isinstance(items, (SpreadTable, SpreadList, SpreadTuple)) and len(items.parts) > 1:
        return items.parts
    return ()
