"""What a store is asked and what it answers, counter by counter."""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple, final

from ratelimit_service.model.algorithm import CounterSpec
from ratelimit_service.model.limit import FailurePolicy
from ratelimit_service.model.step import Hold, Receipt

__all__ = ["Hit", "Mode", "Outcome", "new_tuple"]


class Mode(IntEnum):
    """What a hit without room means for its request."""

    ENFORCED = 0
    """It denies the request."""
    SHADOW = 1
    """It never denies."""
    QUOTA = 2
    """It denies when every quota hit of the request is without room."""
    IN_TURN = 3
    """Of all joined hits but the last: what the first asks for is charged on the first of them all
    that has room for it. The others are only looked at. The last one says the mode of them all: if
    it is of this one, too, as where they settle, they never deny."""
    GRANT = 4
    """The hit behind it is charged in its place. With room it takes that one's place instead."""
    ADVANCE = 5
    """It never denies, and is alone in its request. Of its hits as many are counted as may be given
    ahead (`algorithms.settle`), and those are a process's to spend."""


class Hit(NamedTuple):
    """One charge on one counter.

    `addend` is the number of hits, 0 to 2^32-1; 0 is a peek. With `refund` they are given
    back. With `count_denied` they are counted whether or not the request passes. `lease` is
    the id, of 8 bytes, under which `concurrency` takes and gives back; several leases with
    their hits can be taken at once. Without one the oldest are given back. Of an advance it is
    the number of processes among which the rest is shared, in 2 bytes. A `joined` hit is of the
    same descriptor as the one before it: they have room together or not at all, unless they pay
    `IN_TURN`: then only the first one's addend is asked for, and the others' are 0. The one
    behind a grant is of the same descriptor, too, and has the same home. `policy` is what decides
    if the store does not. A refund with a `receipt` undoes just that charge, as far as it still
    counts. In the place of a receipt stands the hold of a hit that reserves or settles, under its
    lease; a refund with one takes hits off what is held.
    """

    key: bytes
    spec: CounterSpec
    addend: int = 1
    mode: Mode = Mode.ENFORCED
    count_denied: bool = False
    refund: bool = False
    lease: bytes = b""
    joined: bool = False
    policy: FailurePolicy = FailurePolicy.OPEN
    receipt: Receipt | Hold | None = None


@final
class Outcome:
    """A store's answer to one hit. Nobody changes it.

    `over`: there was no room for the hit. `remaining`: the hits that would still pass; where the
    hit is over, those there was room for when it came. `reset_us`: until the window ends or the
    counter is as new; where the hit is over, until it would pass. `charged`: the hits counted
    (or given back), 0 when a denied request kept this one from being charged. `local`: counted
    in this process alone, by the failure policy of that name.
    """

    __slots__ = ("charged", "local", "over", "remaining", "reset_us")

    def __init__(
        self, over: bool, remaining: int, reset_us: int, charged: int, local: bool = False
    ) -> None:
        self.over = over
        self.remaining = remaining
        self.reset_us = reset_us
        self.charged = charged
        self.local = local

    def replaced(
        self,
        *,
        remaining: int | None = None,
        reset_us: int | None = None,
        charged: int | None = None,
        local: bool | None = None,
    ) -> Outcome:
        """The same outcome, except for what is given."""
        return Outcome(
            self.over,
            self.remaining if remaining is None else remaining,
            self.reset_us if reset_us is None else reset_us,
            self.charged if charged is None else charged,
            self.local if local is None else local,
        )

    def _fields(self) -> tuple[bool, int, int, int, bool]:
        return self.over, self.remaining, self.reset_us, self.charged, self.local

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Outcome) and self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash(self._fields())

    def __repr__(self) -> str:
        return f"Outcome{self._fields()}"


new_tuple: Final = tuple.__new__
"""Makes a named tuple from its class and a tuple of all its fields. It costs half as much as a call
of the class. For steps there is `step`, which names the class already."""
