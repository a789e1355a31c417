"""Plans remembered by the bytes that they were made from.

A request of several descriptors hardly ever repeats, its parts do: a part is the domain with
one descriptor, which on the wire reads like a request of its own. Bounded in bytes, in many
small tables, so that nothing large is ever dropped at once.
"""

from __future__ import annotations

from typing import NamedTuple

from ratelimit_service.limiter import Plan

__all__ = ["Memo", "Remembered"]

MAX_BYTES = 64 << 20
"""What the memo may take, about."""

_TABLES = 1_024
_ENTRY_BYTES = 900
"""About what a plan takes besides its key, measured with two entries of 40 bytes."""

_MAX_KEY_BYTES = 1_024


class Remembered(NamedTuple):
    """A plan for one hit, and under which rules it was made.

    `own_addend` says that the descriptor brings its addend, whatever the request says.
    """

    snapshot: int
    plan: Plan
    own_addend: bool


class Memo:
    """Plans by part. A plan of older rules is not given out."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._tables: list[dict[bytes, Remembered]] = [{} for _ in range(_TABLES)]
        self._room = max_bytes // _TABLES
        self._used = [0] * _TABLES

    def get(self, part: bytes, snapshot: int) -> Remembered | None:
        """The plan for a part under these rules."""
        found = self._tables[hash(part) % _TABLES].get(part)
        return found if found is not None and found.snapshot == snapshot else None

    def put(self, part: bytes, remembered: Remembered) -> None:
        """Remembers a plan, unless its part is large; a full table starts anew."""
        size = len(part) + _ENTRY_BYTES
        if size > _MAX_KEY_BYTES + _ENTRY_BYTES:
            return
        place = hash(part) % _TABLES
        table = self._tables[place]
        if part not in table:
            if self._used[place] + size > self._room:
                table.clear()
                self._used[place] = 0
            self._used[place] += size
        table[part] = remembered
