"""Patterns by fragments of their text: which of thousands may take a value.

Each pattern is filed under one fragment: how it begins, how it ends, or a few characters from
between its stars, whichever the fewest others are filed under. Only patterns whose fragment a value
has are compared with the value. What must not live here: what a pattern takes (`pattern`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from ratelimit_service.containers.spread import LARGE, SpreadList, Table, parts_of, spread
from ratelimit_service.rules.matchers.effort import EFFORT

__all__ = ["FragmentIndex"]

_T = TypeVar("_T")

_BEGIN: Final = 0
_END: Final = 1
_WITHIN: Final = 2

_CUT: Final = 4
"""So many characters between stars say enough."""

_LOOK_UP: Final = 16
"""What a look-up takes, in the unit of `effort`'s bound."""

_Part = tuple[int, str]
"""Where a fragment stands, and the fragment."""


class _Filed(NamedTuple, Generic[_T]):
    """A thing with the fewest characters that its pattern takes, and how many fragments it has."""

    least: int
    fragments: int
    thing: _T


class FragmentIndex(Generic[_T]):
    """Things that have a pattern each. A pattern's fragments are what stands between its `*`."""

    __slots__ = ("_by_part", "_lengths", "_others", "_texts", "_within")

    def __init__(self) -> None:
        self._by_part: Table[_Part, list[_Filed[_T]]] = {}
        self._lengths: Counter[tuple[int, int]] = Counter()
        """Where the fragments in use stand, how long they are, and how many there are."""
        self._within: dict[str, Counter[int]] = {}
        """Of those between stars: by the first character, their lengths."""
        self._texts: dict[str, Table[str, None]] = {}
        """By the first character, these fragments."""
        self._others: SpreadList[_Filed[_T]] = SpreadList()
        """Those that have no fragment which is not too many others' already: all are compared."""

    def __bool__(self) -> bool:
        return len(self._by_part) > 0

    def parts(self) -> Iterator[object]:
        """The parts of what is large, which takes long to drop at once."""
        yield from parts_of(self._by_part)
        yield from parts_of(self._others)
        for texts in self._texts.values():
            yield from parts_of(texts)

    def add(self, fragments: Sequence[str], thing: _T) -> None:
        """Takes in a thing with a pattern of these fragments."""
        filed = _Filed(sum(map(len, fragments)), len(fragments), thing)
        least, part, here = LARGE, None, None
        for each in _parts(fragments):
            alike = self._by_part.get(each)
            if (0 if alike is None else len(alike)) < least:
                part, here = each, alike
                least = 0 if alike is None else len(alike)
        if part is None:
            self._others.append(filed)
        elif here is not None:
            here.append(filed)
        else:
            self._by_part[part] = [filed]
            self._by_part = spread(self._by_part)
            where, text = part
            if where == _WITHIN:
                self._within.setdefault(text[0], Counter())[len(text)] += 1
                texts = self._texts.setdefault(text[0], {})
                texts[text] = None
                self._texts[text[0]] = spread(texts)
            else:
                self._lengths[where, len(text)] += 1

    def remove(self, fragments: Sequence[str], thing: _T) -> None:
        """Lets go of a thing that was added with these fragments."""
        filed = _Filed(sum(map(len, fragments)), len(fragments), thing)
        for part in _parts(fragments):
            alike = self._by_part.get(part)
            if alike is not None and filed in alike:
                alike.remove(filed)
                if not alike:
                    self._by_part.pop(part)
                    self._forget(part)
                return
        self._others = SpreadList([each for each in self._others if each != filed])

    def _forget(self, part: _Part) -> None:
        where, text = part
        if where == _WITHIN:
            lengths = self._within[text[0]]
            lengths[len(text)] -= 1
            if not lengths[len(text)]:
                del lengths[len(text)]
            self._texts[text[0]].pop(text)
            if not lengths:
                del self._within[text[0]], self._texts[text[0]]
            return
        self._lengths[where, len(text)] -= 1
        if not self._lengths[where, len(text)]:
            del self._lengths[where, len(text)]

    def likely(self, value: str) -> list[_T]:
        """Those whose pattern may take a value. Its cost counts against the effort of a turn."""
        by_part = self._by_part
        candidates: list[_Filed[_T]] = [*self._others]
        looked = len(self._lengths)
        size = len(value)
        for where, length in self._lengths:
            if length > size:
                continue
            text = value[:length] if where == _BEGIN else value[-length:]
            candidates += by_part.get((where, text)) or ()
        within = self._within
        for first in within if len(within) < size else set(value):
            looked += 1
            if first in within and first in value:
                begun = value.count(first)
                fewer = sum(within[first].values()) <= begun
                texts = self._having(value, first) if fewer else self._cut(value, first)
                looked += min(begun, sum(within[first].values())) * len(within[first])
                for text in texts:
                    candidates += by_part.get((_WITHIN, text)) or ()
        likely = [each for each in candidates if each.least <= size]
        looked += len(candidates) + sum([min(each.fragments, size) for each in likely])
        EFFORT.rest -= looked * _LOOK_UP + len(likely) * size
        return [each.thing for each in likely]

    def _having(self, value: str, first: str) -> Collection[str]:
        """The fragments with this first character that a value has, each looked for."""
        return [text for text in self._texts[first] if text in value]

    def _cut(self, value: str, first: str) -> Collection[str]:
        """What a value has with this first character that is as long as a fragment with it."""
        substrings: set[str] = set()
        at = value.find(first)
        while at >= 0:
            for length in self._within[first]:
                substrings.add(value[at : at + length])
            at = value.find(first, at + 1)
        return substrings


def _parts(fragments: Sequence[str]) -> list[_Part]:
    """Under which fragments a pattern may be filed; the earlier ones are found with less work."""
    first, *middle, last = fragments
    parts: list[_Part] = []
    if first:
        parts.append((_BEGIN, first))
    if last:
        parts.append((_END, last))
    for fragment in middle:
        parts.append((_WITHIN, fragment[:_CUT]))
        if len(fragment) > _CUT:
            parts.append((_WITHIN, fragment[-_CUT:]))
    return parts or [(_BEGIN, "")]
