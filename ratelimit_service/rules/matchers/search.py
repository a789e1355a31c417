"""Which of a level's matchers for one key takes a value, without asking each of them.

What must not live here: nodes and rules (`tree`), and what one kind takes (a file each).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from ratelimit_service.rules.matchers.matcher import Index, Matcher

__all__ = ["Search"]


class Search:
    """Matchers by precedence, those of each precedence in the indexes of their kinds.

    Each has a position, by which it goes before others of its precedence: how many are before it.
    """

    def __init__(self) -> None:
        self._size = 0
        self._precedences: list[int] = []
        self._stages: list[_Stage] = []

    def add(self, matcher: Matcher) -> None:
        """Adds the next one as declared."""
        precedence = matcher.precedence
        at = bisect_left(self._precedences, precedence)
        if at == len(self._precedences) or self._precedences[at] != precedence:
            self._precedences.insert(at, precedence)
            self._stages.insert(at, _Stage())
        self._stages[at].add(matcher, self._size)
        self._size += 1

    def completing(self) -> Iterator[None]:
        """Does what is left to do when all have been added, a step at a time."""
        for stage in self._stages:
            yield from stage.completing()

    def parts(self) -> Iterator[object]:
        """The parts of what is large."""
        for stage in self._stages:
            yield from stage.parts()

    def first(self, value: str) -> int:
        """The position of the one that a value goes to; -1 if none takes it."""
        for stage in self._stages:
            position = stage.first(value)
            if position >= 0:
                return position
        return -1

    def all(self, value: str) -> Iterator[int]:
        """The positions of all that take a value, the one that it goes to first."""
        for stage in self._stages:
            yield from stage.all(value)


class _Stage:
    """Those of one precedence."""

    def __init__(self) -> None:
        self._indexes: dict[type[Index], Index] = {}

    def add(self, matcher: Matcher, position: int) -> None:
        index = self._indexes.get(matcher.index)
        if index is None:
            index = self._indexes[matcher.index] = matcher.index()
        index.add(matcher, position)

    def completing(self) -> Iterator[None]:
        for index in self._indexes.values():
            yield from index.completing()

    def parts(self) -> Iterator[object]:
        for index in self._indexes.values():
            yield from index.parts()

    def first(self, value: str) -> int:
        best = -1
        for index in self._indexes.values():
            position = index.first(value)
            if position >= 0 and (best < 0 or position < best):
                best = position
        return best

    def all(self, value: str) -> Iterator[int]:
        if len(self._indexes) == 1:
            for index in self._indexes.values():
                yield from index.all(value)
            return
        yield from sorted(
            position for index in self._indexes.values() for position in index.all(value)
        )
