"""One step of a counter: what is kept of it, and what an algorithm says of a charge or refund."""

from __future__ import annotations

from functools import partial
from typing import Final, NamedTuple

__all__ = ["Held", "Hold", "Receipt", "State", "Step", "step"]

State = int | bytes
"""What is kept of a counter, the same in memory and in Redis: an integer, or a letter that marks
the format with packed numbers behind it. What an algorithm does not know is a new counter."""


class Receipt(NamedTuple):
    """What a store knows of a charge that it takes back, by its own clock.

    `at_us` is when it was counted, `until_us` the end of its reset: with the counter's spec
    that names the window, the part, the moment or the place in the queue that it is in.
    """

    at_us: int
    until_us: int


class Hold(NamedTuple):
    """What a hit does that holds room beside its counter, or settles what was held.

    The hit's lease names the hold. A hit that reserves holds its addend for `ttl_us`; with
    `charged` until that would stop counting, had it been charged at the end of that time. A hit
    that `settles` ends the hold and counts its addend, once: the id is remembered for `ttl_us`. On
    a limit without reservations to reserve is only to ask. So it is with a `ttl_us` of 0, and a
    settled id is not remembered then.
    """

    ttl_us: int
    settles: bool = False
    charged: bool = False


class Held(NamedTuple):
    """What a counter holds one by one: hits, since when, and under which lease."""

    at_us: int
    hits: int
    lease: bytes = b""


class Step(NamedTuple):
    """One step of a counter, not yet committed.

    `remaining` is the number of hits that would still pass afterwards; where the step did not pass,
    those that would have passed before it. `reset_us` is the time until the window ends, where
    there is one, else until the counter is as new. `retry_us` is the time until the hits that
    did not pass would: if they never can, one window, or for buckets until they are as new.
    `counted` is how many hits `state` holds more (charge) or less (refund) than before.
    `damaged`: the state came from further in the future than a clock steps back, and the
    counter started again from nothing.
    """

    passed: bool
    state: State | None
    remaining: int
    reset_us: int
    retry_us: int
    counted: int
    damaged: bool


step: Final = partial(tuple.__new__, Step)
"""A Step from a tuple of its fields, at half the price of a call with so many arguments."""
