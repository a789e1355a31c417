"""What one algorithm says of one counter: the signature that every algorithm has."""

from __future__ import annotations

from functools import partial
from typing import Final, NamedTuple, Protocol

from ratelimit_service.model import Measure, Receipt

__all__ = ["Algorithm", "State", "Step", "step"]

State = int | bytes
"""What is kept of a counter, the same in memory and in Redis: an integer, or a letter that marks
the format with packed numbers behind it. What an algorithm does not know is a new counter."""


class Step(NamedTuple):
    """One step of a counter, not yet committed.

    `left` is the number of hits that would still pass afterwards; where the step did not pass,
    those that would have passed before it. `reset_us` is the time until the window ends, where
    there is one, else until the counter is as new. `retry_us` is the time until the hits that
    did not pass would: if they never can, one window, or for buckets until they are as new.
    `counted` is how many hits `state` holds more (charge) or less (refund) than before.
    `damaged`: the state came from further in the future than a clock steps back, and the
    counter started anew.
    """

    passed: bool
    state: State | None
    left: int
    reset_us: int
    retry_us: int
    counted: int
    damaged: bool


step: Final = partial(tuple.__new__, Step)
"""A Step from a tuple of its fields, at half the price of a call with so many arguments."""


class Algorithm(Protocol):
    """Pure functions from a counter's state to its next; None is the state of a new counter.

    Times and windows are integer microseconds. All integers stay below 2^53, so that the Lua
    rendering, which has only doubles, computes the same. A state less than a window ahead of
    `now_us` means that the clock stepped back: the time is then the state's.
    """

    def charge(
        self,
        state: State | None,
        now_us: int,
        addend: int,
        measure: Measure,
        force: bool,
        lease: bytes,
    ) -> Step:
        """Adds hits if they fit; those that count windows also with `force`.

        0 hits are a peek: it passes while the count does not exceed the limit, and changes
        nothing. `lease` is the id under which `concurrency` can give them back.
        """

    def refund(
        self,
        state: State | None,
        now_us: int,
        addend: int,
        measure: Measure,
        lease: bytes,
        receipt: Receipt | None,
    ) -> Step:
        """Gives hits back, the newest first, never below nothing; never makes a state.

        With a receipt just those of that charge, so that the counter is as if it had not been;
        where that can no longer be told, it holds more rather than less.
        """
