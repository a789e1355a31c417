"""One counter in memory: its state, what hits that pass make of it, and how much it matters.

What must not live here: which counters there are (`memory`), and what becomes of hits that do not
pass (`algorithms`).
"""

from __future__ import annotations

from typing import Final

from ratelimit_service.algorithms import fixed_window, sliding_window
from ratelimit_service.model import MAX_ADDEND, CounterSpec, State

__all__ = ["MemoryCounter", "bulk_of"]

_BULK_BYTES: Final = 256
"""In a longer state each further piece of so many bytes counts as another counter."""

_COUNT_BITS: Final = 32
"""Of a count, which is `MAX_ADDEND` at most."""

_LEAST_SHARE: Final = 2.0**-64
"""Less than the share of any single hit in its limit, but more than nothing."""


class MemoryCounter:
    """A state with what is needed to judge, without its rule, how much it matters.

    Where it is compiled numbers lie in the object itself. So an integer is `number`, and a pair of
    counts (`CounterSpec.paired`) is the window's `number` with both of them in `pair`. Any other
    state is `packed`. It has none if the store has dropped it, so that who holds it knows.
    """

    __slots__ = ("number", "packed", "pair", "spec")

    def __init__(self, state: State | None, spec: CounterSpec) -> None:
        self.spec = spec
        self.number = -1
        """Below 0 if the state is packed."""
        self.pair = -1
        """The count of now in the low bits, that of before above; below 0 if the state is none."""
        self.packed: bytes | None = None
        self.set(state)

    def get(self) -> State | None:
        """The state."""
        if self.number < 0:
            return self.packed
        if self.pair < 0:
            return self.number
        return sliding_window.packed(*self.get_pair())

    def kept(self) -> bool:
        """Whether it is in the store."""
        return self.number >= 0 or self.packed is not None

    def set(self, state: State | None) -> None:
        """Sets another state; none where the store drops it."""
        if isinstance(state, int):
            self.number, self.pair, self.packed = state, -1, None
            return
        if state is not None and self.spec.paired:
            number, before, count = sliding_window.unpacked(state)
            if number >= 0:
                self.packed = None
                self.set_pair(number, before, count)
                return
        self.number, self.pair, self.packed = -1, -1, state

    def get_pair(self) -> tuple[int, int, int]:
        """The window's number and the counts before and now of a state that is a pair."""
        return self.number, self.pair >> _COUNT_BITS, self.pair & MAX_ADDEND

    def set_pair(self, number: int, before: int, count: int) -> None:
        """Sets another state that is a pair of counts."""
        self.number = number
        self.pair = before << _COUNT_BITS | count

    def matters(self, now_us: int) -> bool:
        """Whether it matters at that moment, whatever its rule may have become since."""
        spec = self.spec
        remaining = self._remaining(now_us)
        if remaining >= 0:
            return remaining < spec.limit
        if spec.rate > 1:
            spec = spec.with_numbers(spec.limit, 1)  # the slowest that its rule may have
        peek = spec.algorithm.charge(self.get(), now_us, 0, spec, False, b"")
        return peek.remaining < spec.limit or not peek.passed or peek.damaged

    def share_used(self, now_us: int) -> float:
        """How much of its limit it has used up, 0 to 1; 0 is as good as no counter at all.

        A state from so far in the future that it counts for nothing now is neither: it will count
        again if the clock goes back to where it was.
        """
        spec = self.spec
        limit = spec.limit
        remaining = self._remaining(now_us)
        if limit and remaining >= 0:
            return (limit - remaining) / limit
        peek = spec.algorithm.charge(self.get(), now_us, 0, spec, False, b"")
        if peek.damaged:
            return _LEAST_SHARE
        return (limit - peek.remaining) / limit if peek.passed and limit else float(not peek.passed)

    def _remaining(self, now_us: int) -> int:
        """The hits for which there is room; below 0 if there is none, or the state must tell."""
        spec = self.spec
        if self.number >= 0:
            if spec.adds:
                return fixed_window.passing(self.number, now_us, 0, spec.limit, spec.window_us)[1]
            if spec.paired and self.pair >= 0:
                number, before, count = self.get_pair()
                return sliding_window.passing(number, before, count, now_us, 0, spec)[3]
        return -1


def bulk_of(state: State | None) -> int:
    """How many further counters a state counts for, beside one."""
    return len(state) // _BULK_BYTES if isinstance(state, bytes) else 0
