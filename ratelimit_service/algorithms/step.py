"""What one algorithm says of one counter: the signature that every algorithm has."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple, Protocol

__all__ = ["Algorithm", "Step", "step"]


class Step(NamedTuple):
    """One step of a counter, not yet committed.

    `left` is the number of hits that would still pass afterwards; where the step did not pass,
    those that would have passed before it. `reset_us` is the time until the counter starts
    anew. `counted` is how many hits `state` holds more (charge) or less (refund) than before.
    """

    passed: bool
    state: int | None
    left: int
    reset_us: int
    counted: int


step = partial(tuple.__new__, Step)
"""A Step from a tuple of its fields, at half the price of a call with five arguments."""


class Algorithm(Protocol):
    """Pure functions from a counter's state to its next; None is the state of a new counter.

    Times and windows are integer microseconds. All integers stay below 2^53, so that the Lua
    rendering, which has only doubles, computes the same.
    """

    def charge(
        self,
        state: int | None,
        now_us: int,
        addend: int,
        limit: int,
        window_us: int,
        force: bool,
    ) -> Step:
        """Adds hits if they fit, or in any case with `force`."""

    def refund(
        self, state: int | None, now_us: int, addend: int, limit: int, window_us: int
    ) -> Step:
        """Gives hits back, never below nothing."""
