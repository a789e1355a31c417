"""One counter in memory: its state, what hits that pass make of it, and how much it matters.

What must not live here: which counters there are (`memory`), and what becomes of hits that do not
pass (`algorithms`).
"""

from __future__ import annotations

from typing import Final

from ratelimit_service.algorithms import sliding_window
from ratelimit_service.algorithms.fixed_window import passing
from ratelimit_service.model import MAX_ADDEND, CounterSpec, State

__all__ = ["UNSETTLED", "MemoryCounter", "bulk_of"]

UNSETTLED: Final = -(1 << 40)
"""Further below 0 than hits of any request can be above a limit."""

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
    state is `packed`.
    """

    __slots__ = ("number", "packed", "pair", "spec")

    def __init__(self, spec: CounterSpec) -> None:
        self.spec = spec
        self.number = -1
        """Below 0 if the state is packed, or none."""
        self.pair = 0
        """The count of now in the low bits, that of before above."""
        self.packed: bytes | None = None

    @property
    def bulk(self) -> int:
        """How many further counters it counts for."""
        return bulk_of(self.packed)

    def get(self) -> State | None:
        """The state; none of a counter in which nothing has been counted."""
        if self.number < 0:
            return self.packed
        if self.spec.paired:
            before, count = self._counts()
            return sliding_window.packed(self.number, before, count)
        return self.number

    def set(self, state: State | None) -> None:
        """Sets another state."""
        self.number, self.packed = -1, None
        if isinstance(state, int):
            self.number = state
            return
        if self.spec.paired:
            self.number, before, count = sliding_window.unpacked(state)
            self.pair = before << _COUNT_BITS | count
        if self.number < 0:
            self.packed = state

    def charge(
        self, now_us: int, addend: int, spec: CounterSpec, lease: bytes
    ) -> tuple[int, int, int]:
        """Counts hits that pass: how many remain, the reset, and how many it has counted.

        Whether they pass is what the spec's algorithm says. If they do not, nothing is changed, and
        what remains is below 0: -1 stands for no hit that remains, -2 for one. It is `UNSETTLED` if
        only `settle` tells.
        """
        counted = addend
        if spec.adds and addend and self.packed is None:
            number, remaining, reset_us = passing(
                self.number, now_us, addend, spec.limit, spec.window_us
            )
            if remaining < 0:
                return _over(remaining + addend, reset_us)
            self.number = number
        elif spec.paired and addend and self.packed is None:
            before, count = self._counts()
            number, before, count, remaining, reset_us = sliding_window.passing(
                self.number, before, count, now_us, addend, spec
            )
            if remaining < 0:
                return _over(remaining + addend, reset_us)
            self.number = number
            self.pair = before << _COUNT_BITS | count
        else:
            passed, state, remaining, reset_us, retry_us, counted, damaged = spec.algorithm.charge(
                self.get(), now_us, addend, spec, False, lease
            )
            if damaged or not passed:
                if spec.rate:
                    self.spec = spec  # how much of a bucket is used depends on its rate
                return _over(remaining, 0 if damaged else retry_us)
            if counted:
                self.set(state)
        self.spec = spec
        return remaining, reset_us, counted

    def _counts(self) -> tuple[int, int]:
        """Of a pair the counts before and now."""
        return self.pair >> _COUNT_BITS, self.pair & MAX_ADDEND

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
                return passing(self.number, now_us, 0, spec.limit, spec.window_us)[1]
            if spec.paired:
                before, count = self._counts()
                return sliding_window.passing(self.number, before, count, now_us, 0, spec)[3]
        return -1


def _over(remaining: int, until_us: int) -> tuple[int, int, int]:
    """What `charge` tells of hits that are over; with no time until when only `settle` knows."""
    return -1 - max(0, remaining) if until_us else UNSETTLED, 0, 0


def bulk_of(state: State | None) -> int:
    """How many further counters a state counts for, beside one."""
    return len(state) // _BULK_BYTES if isinstance(state, bytes) else 0
