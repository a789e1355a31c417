"""What is held beside a counter in memory, and a counter that has room only beside that.

What must not live here: what may be held (`algorithms.holding`), and which counters there are
(`memory`).
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final

from ratelimit_service.algorithms.holding import KEEPS_END
from ratelimit_service.model import CounterSpec
from ratelimit_service.stores.memory_counter import UNSETTLED, MemoryCounter, bulk_of
from ratelimit_service.stores.store import HoldingNow

__all__ = ["HoldingCounter"]

_HOLDS_OF_A_COUNTER: Final = 2
"""So many holds take as much memory as a counter."""


class HoldingCounter(MemoryCounter):
    """A counter beside which hits are held, each of them until it ends."""

    __slots__ = ("_ends", "_held", "_total", "held_bulk")

    def __init__(self, spec: CounterSpec) -> None:
        super().__init__(spec)
        self._held: dict[bytes, tuple[int, int]] = {}
        """By the id of each hold its hits, and when it ends. A settled id is remembered as long."""
        self._ends: list[tuple[int, bytes]] = []
        """A heap of when they end; of one that was extended it has former ends, too."""
        self._total = 0
        self.held_bulk = 0
        """How many further counters its holds counted for when they were last written."""

    @classmethod
    def of(cls, counter: MemoryCounter) -> HoldingCounter:
        """The same counter, beside which hits can be held."""
        holding = cls(counter.spec)
        holding.number, holding.pair, holding.packed = counter.number, counter.pair, counter.packed
        return holding

    @property
    def bulk(self) -> int:
        """With its holds."""
        return bulk_of(self.packed) + self.held_bulk

    def held(self, hold_id: bytes) -> int:
        """What an id holds, as `ReadHeld` says it."""
        return self._held.get(hold_id, (0, 0))[0] if hold_id else self._total

    def holds(self) -> list[HoldingNow]:
        """All that is held, the first to end first."""
        return sorted(
            HoldingNow(ends_us, hold_id, hits)
            for hold_id, (hits, ends_us) in self._held.items()
            if hits > 0
        )

    def expire(self, now_us: int) -> None:
        """Lets go of what has ended by now."""
        while self._ends and self._ends[0][0] <= now_us:
            ends_us, hold_id = heappop(self._ends)
            hits, until_us = self._held.get(hold_id, (0, 0))
            if until_us == ends_us:
                del self._held[hold_id]
                self._total -= max(0, hits)

    def hold(self, hold_id: bytes, hits: int, life_us: int, now_us: int) -> None:
        """Sets what an id holds from now on, and for how long."""
        before, ends_us = self._held.pop(hold_id, (0, 0))
        self._total += max(0, hits) - max(0, before)
        if not hits:
            return
        if life_us != KEEPS_END:
            ends_us = now_us + life_us
            heappush(self._ends, (ends_us, hold_id))
        self._held[hold_id] = hits, ends_us

    def grown(self) -> int:
        """By how many counters' worth its holds have grown since this was last asked."""
        before = self.held_bulk
        self.held_bulk = len(self._ends) // _HOLDS_OF_A_COUNTER
        return self.held_bulk - before

    def charge(
        self, now_us: int, addend: int, spec: CounterSpec, lease: bytes
    ) -> tuple[int, int, int]:
        """As any counter; beside what is held only `settle` tells."""
        if spec.holds:
            self.expire(now_us)
            if self._total:
                return UNSETTLED, 0, 0
        return super().charge(now_us, addend, spec, lease)

    def matters(self, now_us: int) -> bool:
        """As any counter; it matters while a hold has not ended."""
        self.expire(now_us)
        return bool(self._held) or super().matters(now_us)

    def share_used(self, now_us: int) -> float:
        """As any counter; what is held is used."""
        held = self._total / self.spec.limit if self.spec.limit else 0.0
        least = _SETTLED_SHARE if self._held else 0.0
        return max(least, min(1.0, super().share_used(now_us) + held))


_SETTLED_SHARE: Final = 2.0**-64
"""Of a counter that only remembers ids which were settled."""
