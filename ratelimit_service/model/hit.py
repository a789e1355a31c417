"""What a store is asked and what it answers, counter by counter."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from ratelimit_service.model.measure import Measure

__all__ = ["Hit", "Mode", "Outcome"]


class Mode(IntEnum):
    """What a hit without room means for its request."""

    ENFORCED = 0
    """It denies the request."""
    SHADOW = 1
    """It never denies."""
    QUOTA = 2
    """It denies when every quota hit of the request is without room."""


class Hit(NamedTuple):
    """One charge on one counter.

    `addend` is the number of hits, 0 to 2^32-1; 0 is a peek. With `refund` they are given
    back. With `count_denied` they are counted whether or not the request passes. `lease` is
    the id, of 8 bytes, under which `concurrency` takes and gives back; without one the oldest
    are given back. A `joined` hit is of the same descriptor as the one before it: they have
    room together or not at all.
    """

    key: bytes
    measure: Measure
    addend: int = 1
    mode: Mode = Mode.ENFORCED
    count_denied: bool = False
    refund: bool = False
    lease: bytes = b""
    joined: bool = False


class Outcome(NamedTuple):
    """A store's answer to one hit.

    `over`: there was no room for the hit. `left`: the hits that would still pass; where the
    hit is over, those there was room for when it came. `reset_us`: until the window ends or the
    counter is as new; where the hit is over, until it would pass. `charged`: the hits counted
    (or given back), 0 when a denied request kept this one from being charged.
    """

    over: bool
    left: int
    reset_us: int
    charged: int
