"""Tables of counters in this process, of bounded size: which counter goes where there is no room.

What must not live here: what one counter is (`memory_counter`), and how hits are settled (`memory`,
`algorithms`).
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from ratelimit_service.model import State
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.stores.memory_counter import MemoryCounter

__all__ = ["CounterTable", "CounterTables"]

_SAMPLE: Final = 6
"""A full store looks at so many old counters to find the one to put out."""

_MOST_ALIKE: Final = 2
"""So many others of these may be put out next, if they have used as little."""

_LIGHT_SHARE: Final = 0.5
"""Only counters that have used less than this are put out for being like another."""

_COUNTERS_PER_TABLE: Final = 512
"""Many small tables instead of one: growing a dict of a million entries takes 40 ms."""

_MAX_TABLES: Final = 4_096

_SLACK_US: Final = 1_000_000
"""A counter whose time is over is kept so much longer, for clocks that step back; as in Redis."""

_NO_SHARE: Final = 2.0
"""More than any share that a counter can have used."""

_CROWDED_US: Final = 60_000_000
"""For so long health reports that a live counter was put out."""

CounterTable = dict[bytes, MemoryCounter]


class CounterTables:
    """At most so many counters; a long log or many leases count for several.

    Full tables put out one of a few old counters for a new one: an expired one, else the one that
    has used the smallest share of its limit. If that is a live one it degrades health.
    """

    def __init__(self, max_counters: int, stats: Stats, health: Health) -> None:
        self._max_counters = max_counters
        self._stats = stats
        self._health = health
        tables = 1
        while tables < _MAX_TABLES and tables * 2 * _COUNTERS_PER_TABLE <= max_counters:
            tables *= 2
        self._tables: list[CounterTable] = [{} for _ in range(tables)]
        self._size = 0
        self._bulk = 0
        """How many counters large states count for, beside themselves."""
        self._hand = 0
        self._alike: list[tuple[CounterTable, bytes, float]] = []
        """Counters that were looked at and had used no more than the one that was put out, with
        the share that they had used."""
        self._crowded_until_us = 0

    def __len__(self) -> int:
        return self._size

    def state(self, key: bytes) -> State | None:
        """What is kept of a counter."""
        counter = self._table(key).get(key)
        return None if counter is None else counter.get()

    def _table(self, key: bytes) -> CounterTable:
        return self._tables[hash(key) & len(self._tables) - 1]

    def _evict(self, now: int, spared: Container[bytes]) -> bool:
        """Puts out one of a few old counters; False if all counters are to be spared."""
        if self._alike and self._evict_alike(now, spared):
            return True
        tables = self._tables
        for _ in range(len(tables)):
            table = tables[self._hand]
            self._hand = (self._hand + 1) % len(tables)
            victim, least, looked_at = b"", _NO_SHARE, 0
            seen: list[bytes] = []
            alike: list[bytes] = []
            for key, counter in table.items():
                seen.append(key)
                if key in spared:
                    continue
                used = counter.share_used(now)
                if used < least:
                    victim, least = key, used
                    alike.clear()
                elif used == least and len(alike) < _MOST_ALIKE:
                    alike.append(key)
                looked_at += 1
                if looked_at == _SAMPLE:
                    break
            if looked_at:
                self._put_out(table, victim, now, live=least > 0)
                seen.remove(victim)
            # A counter that stays goes to the back. Otherwise the same few heavy counters would
            # be looked at each time, and every newer one would be dropped instead.
            for key in seen:
                table[key] = table.pop(key)
            if looked_at:
                if least < _LIGHT_SHARE:
                    for key in alike:
                        self._alike.append((table, key, least))
                return True
        return False

    def _evict_alike(self, now: int, spared: Container[bytes]) -> bool:
        """Puts out a counter that was looked at before; False if none of these should go."""
        while self._alike:
            table, key, share = self._alike.pop()
            found = table.get(key)
            # Meanwhile the counter may have been used more, or replaced by another.
            if found is not None and key not in spared:
                used = found.share_used(now)
                if used <= share:
                    self._put_out(table, key, now, live=used > 0)
                    return True
        return False

    def _put_out(self, table: CounterTable, key: bytes, now: int, *, live: bool) -> None:
        self._dropped(table.pop(key))
        self._stats.evictions["live" if live else "expired"] += 1
        if live:
            self._crowded_until_us = now + _CROWDED_US
            self._health.degrade(
                "memory",
                f"the memory store is full ({self._max_counters} counters) and puts out live "
                "ones, which admits too much: raise --max-counters",
            )

    def _sweep(self, table: CounterTable, now: int) -> None:
        """Drops the oldest counter of a table if it is over, so that dead ones do not pile up.

        What was counted now is never over: it still counts, or lies in the future, a moment ago.
        """
        then = now - _SLACK_US
        for key, counter in table.items():
            matters = counter.matters(then)
            del table[key]
            if matters:
                table[key] = counter
            else:
                self._dropped(counter)
            return

    def _dropped(self, counter: MemoryCounter) -> None:
        """Notes that a counter is in no table any more."""
        self._size -= 1
        self._bulk -= counter.bulk
