"""What is known of callers, however many there are, in bounded memory.

What must not live here: what a caller is, and what is noted of one (`use`).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from hashlib import blake2b
from typing import Final, Generic, NamedTuple, TypeVar

__all__ = ["CallerSample", "Frequent", "TopNames", "place_of"]

_T = TypeVar("_T")

_PLACES: Final = 1 << 64


def place_of(key: bytes) -> int:
    """Where a key stands among all keys: a number below 2^64 that looks random."""
    return int.from_bytes(blake2b(key, digest_size=8).digest())


class CallerSample(Generic[_T]):
    """The `most` callers whose places are the smallest, each with all that was noted of it.

    This is a bottom-k sample. Up to `most` callers it holds every one, and is exact. Beyond, each
    caller is in it with the same probability, and shares read from it are off by about
    1 / sqrt(most). Who is in it at the end has been in it since its first request, because the
    bound for places only falls.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: dict[int, _T] = {}
        self._largest: list[int] = []
        """The places that are kept, negative, as a heap: the largest comes first."""
        self._bound = _PLACES

    def __iter__(self) -> Iterator[_T]:
        return iter(self._kept.values())

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def exact(self) -> bool:
        """Whether every caller is in it."""
        return self._bound == _PLACES

    def wants(self, place: int) -> bool:
        """Whether a caller with this place is in it, or would be."""
        return place < self._bound

    def get(self, place: int) -> _T | None:
        """What is kept for the caller with this place."""
        return self._kept.get(place)

    def put(self, place: int, value: _T) -> None:
        """Keeps a new caller that it `wants`; the one with the largest place may have to go."""
        self._kept[place] = value
        heapq.heappush(self._largest, -place)
        if len(self._kept) > self._most:
            largest = -heapq.heappop(self._largest)
            del self._kept[largest]
            self._bound = largest

    def distinct(self) -> int:
        """How many different callers there were; an estimate if it is not exact."""
        if self.exact:
            return len(self._kept)
        return len(self._kept) * _PLACES // self._bound


class Frequent(NamedTuple):
    """A name, and how often it came: at most `times`, and at least `times - error`."""

    name: str
    times: int
    error: int


class TopNames:
    """The names that come most often, by the Space-Saving algorithm (Metwally et al., 2005).

    It holds `most` names. After N additions no count is more than N / most too high, and every
    name that came more often than that is in it. Up to `most` different names it is exact.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._counts: dict[str, tuple[int, int]] = {}
        self._by_count: dict[int, dict[str, None]] = {}
        """The names of each count; those that came last stand last."""
        self._least = 0
        self.total = 0
        """How many additions there were."""

    def add(self, name: str) -> None:
        """Counts a name once more."""
        self.total += 1
        known = self._counts.get(name)
        if known is not None:
            count, error = known
            self._leave(name, count)
        elif len(self._counts) < self._most:
            count = error = 0
        else:
            count = error = self._least
            gone = next(iter(self._by_count[count]))
            del self._counts[gone]
            self._leave(gone, count)
        self._counts[name] = count + 1, error
        self._by_count.setdefault(count + 1, {})[name] = None
        if count + 1 < self._least or self._least not in self._by_count:
            self._least = count + 1

    def _leave(self, name: str, count: int) -> None:
        names = self._by_count[count]
        del names[name]
        if not names:
            del self._by_count[count]

    def top(self, number: int) -> list[Frequent]:
        """The most frequent, in order; those of the same count by name."""
        known = [Frequent(name, *counts) for name, counts in self._counts.items()]
        return heapq.nsmallest(number, known, key=lambda each: (-each.times, each.name))
