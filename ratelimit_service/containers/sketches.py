"""What came most often, in bounded memory, however many different names there are.

What must not live here: what a name stands for.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Final, Generic, NamedTuple, TypeVar

__all__ = ["Frequent", "TopNames"]

_K = TypeVar("_K", str, bytes)

_by_count: Final = itemgetter(1)


class Frequent(NamedTuple):
    """A name, and how often it came: at most `times`, and at least `times - error`."""

    name: str
    times: int
    error: int


class TopNames(Generic[_K]):
    """The names that come most often: the Frequent algorithm (Misra and Gries, 1982).

    It keeps `most` names, and between two purges up to twice as many. A purge takes the count of
    the first name that has to go off all that stay (Anderson et al., "A high-performance algorithm
    for identifying frequent items in data streams", 2017); the sum of what was taken off is
    `error`. After N additions the error is below N / most, and every name that came more often
    than that is among the top `most`. Up to `most` different names it is exact. Two of them can be
    merged, and the same holds for the whole (Agarwal et al., "Mergeable summaries", 2012).
    """

    def __init__(self, most: int) -> None:
        self.most = most
        """It may be lowered at any time; the next purge obeys."""
        self.counts: dict[_K, int] = {}
        """How often each name came at least."""
        self.error = 0
        """How much more often at most."""
        self.total = 0
        """How many additions there were."""

    def add(self, name: _K, times: int = 1) -> None:
        """Counts a name so many times more."""
        counts = self.counts
        counts[name] = counts.get(name, 0) + times
        self.total += times
        if len(counts) > 2 * self.most:
            self.purge()

    def add_all(self, names: Sequence[_K]) -> None:
        """As `add` of each of them."""
        counts, most = self.counts, 2 * self.most
        for name in names:
            counts[name] = counts.get(name, 0) + 1
            if len(counts) > most:
                self.purge()
                counts = self.counts
        self.total += len(names)

    def merge(self, counts: Iterable[tuple[_K, int]], error: int, total: int) -> None:
        """Adds what another one has counted."""
        mine = self.counts
        for name, times in counts:
            mine[name] = mine.get(name, 0) + times
        self.error += error
        self.total += total
        if len(mine) > 2 * self.most:
            self.purge()

    def purge(self) -> None:
        """Keeps only the `most` names that came most often."""
        if len(self.counts) <= self.most:
            return
        ranked = sorted(self.counts.items(), key=_by_count, reverse=True)
        taken_off = ranked[self.most][1]
        self.error += taken_off
        self.counts = {name: times - taken_off for name, times in ranked[: self.most]}

    def top(self, number: int) -> list[Frequent]:
        """The most frequent, in order; those of the same count by name."""
        known = [
            Frequent(
                name if isinstance(name, str) else name.decode("utf-8", "backslashreplace"),
                times + self.error,
                self.error,
            )
            for name, times in self.counts.items()
        ]
        return heapq.nsmallest(number, known, key=lambda each: (-each.times, each.name))
