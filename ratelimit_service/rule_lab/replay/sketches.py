"""A sample of callers, however many there are, in bounded memory.

What must not live here: what a caller is, what is noted of one (`use`), and which came most often
(`ratelimit_service.containers.sketches`).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from hashlib import blake2b
from typing import Final, Generic, TypeVar

__all__ = ["CallerSample", "hash_of"]

_T = TypeVar("_T")

_HASHES: Final = 1 << 64


def hash_of(key: bytes) -> int:
    """Where a key stands among all keys: a number below 2^64 that looks random."""
    return int.from_bytes(blake2b(key, digest_size=8).digest())


class CallerSample(Generic[_T]):
    """The `most` callers whose hashes are the smallest, each with all that was noted of it.

    This is a bottom-k sample. Up to `most` callers it holds every one, and is exact. Beyond, each
    caller is in it with the same probability, and shares read from it are off by about
    1 / sqrt(most). Who is in it at the end has been in it since its first request, because the
    bound for hashes only falls.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._sample: dict[int, _T] = {}
        self._largest: list[int] = []
        """The hashes of the sample, negative, as a heap: the largest comes first."""
        self._bound = _HASHES

    def __iter__(self) -> Iterator[_T]:
        return iter(self._sample.values())

    def __len__(self) -> int:
        return len(self._sample)

    @property
    def exact(self) -> bool:
        """Whether every caller is in it."""
        return self._bound == _HASHES

    def wants(self, key_hash: int) -> bool:
        """Whether a caller with this hash is in it, or would be."""
        return key_hash < self._bound

    def get(self, key_hash: int) -> _T | None:
        """What is kept for the caller with this hash."""
        return self._sample.get(key_hash)

    def put(self, key_hash: int, value: _T) -> _T | None:
        """Keeps a new caller that it `wants`; gives back the one that had to go for it, if any."""
        self._sample[key_hash] = value
        heapq.heappush(self._largest, -key_hash)
        if len(self._sample) > self._most:
            self._bound = -heapq.heappop(self._largest)
            return self._sample.pop(self._bound)
        return None

    def distinct(self) -> int:
        """How many different callers there were; an estimate if it is not exact."""
        if self.exact:
            return len(self._sample)
        return len(self._sample) * _HASHES // self._bound
