"""What a counter is judged by: a limit in the numbers that counting needs."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from ratelimit_service.model.calendar import Calendar

__all__ = ["MAX_EXACT", "TICKS_US", "Anchor", "Measure", "tick_exponent"]

MAX_EXACT: Final = 2**53
"""Integers below this are exact as doubles, and Lua has nothing else."""

TICKS_US: Final[tuple[int, ...]] = tuple(10**exponent for exponent in range(13))
"""The lengths of ticks in microseconds by their exponents."""


class Anchor(StrEnum):
    """Where windows begin, if not on a calendar."""

    CLOCK = "clock"
    """At the multiples of their length since the Unix epoch."""
    FIRST_HIT = "first_hit"
    """At the first hit after the one before is over."""


class Measure(NamedTuple):
    """How one counter counts. Shared by all counters of a limit.

    `limit` is the most hits that it holds: in a window, in a bucket, or at a time. Buckets get
    `rate` hits back in each `window_us`. Numbers that multiply hits with time do so in ticks of
    10^`tick` microseconds: the smallest in which `window_us * (limit + rate)` is exact.
    `buckets` is the number of sub-counters of a sliding window, 0 for the two it else has.
    `stepped` buckets get the whole rate back at once. A `queue` is a bucket in which hits have
    places, which nobody else may get once it was told.
    """

    algorithm: str
    limit: int
    window_us: int
    rate: int = 0
    tick: int = 0
    anchor: Anchor | Calendar = Anchor.CLOCK
    buckets: int = 0
    stepped: bool = False
    queue: bool = False

    @property
    def counts(self) -> tuple[object, ...]:
        """What of it is part of a counter's name: all but the numbers of hits."""
        return self.algorithm, self.window_us, self.anchor, self.buckets, self.stepped

    @property
    def tick_us(self) -> int:
        """A tick in microseconds."""
        return TICKS_US[self.tick]

    @property
    def window_ticks(self) -> int:
        """The window in ticks, rounded up."""
        return -(-self.window_us // TICKS_US[self.tick])


def tick_exponent(window_us: int, hits: int) -> int:
    """The smallest k so that a window in ticks of 10^k microseconds, times `hits`, is exact."""
    tick = 0
    while -(-window_us // TICKS_US[tick]) * (hits + 1) >= MAX_EXACT:
        tick += 1
    return tick
