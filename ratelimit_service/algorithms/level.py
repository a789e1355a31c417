"""What both buckets are: hits and a fraction of one, leaking away at a steady rate, exactly.

They count what is used: a token bucket's missing tokens, a leaky bucket's water. It is
kept in hits, not in time, so that a rule with other numbers goes on from the same count. The
fraction is an integer: of as many parts of a hit as a window has ticks, so that one tick lets
exactly `rate` of them leak and nothing is ever rounded away.

The state is the bucket's letter, the tick's exponent, the hits, the fraction, the time of the
last change in ticks, and the rate that was the rule's then. `lua/level.lua` is the same arithmetic.

A rule's new rate counts from the last change on. So a lower rate can find used what by the old one
had long leaked away: a state is kept for as long as it could tell at a rate of 1, but no longer
than `_RETENTION_US` if it was as new by its own rate. After that it counts for nothing, also where
it has been kept.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from ratelimit_service.model import (
    MAX_EXACT,
    TICKS_US,
    Contradiction,
    CounterSpec,
    Limit,
    Parameter,
    Receipt,
    State,
    Step,
    Takes,
    step,
)

__all__ = ["AHEAD_PARTS", "BURST", "advance", "burst_of", "charge", "contradictions", "refund"]

_STATE: Final = struct.Struct(">cBIddI")

_RETENTION_US: Final = 600_000_000


class _Level:
    """A level at a moment."""

    __slots__ = ("_now_us", "_spec", "_tick_us", "damaged", "level", "now", "ticks")

    def __init__(self, state: State | None, now_us: int, spec: CounterSpec) -> None:
        self._now_us, self._spec = now_us, spec
        self._tick_us, self.ticks = spec.tick_us, spec.window_ticks
        self.now, self.level, self.damaged = now_us // self._tick_us, 0, False
        mark = spec.algorithm.mark
        if not (isinstance(state, bytes) and state[:1] == mark and len(state) == _STATE.size):
            return
        _, tick, hits, fraction, last, rate = _STATE.unpack(state)
        if tick >= len(TICKS_US):
            return
        if rate != spec.rate and now_us >= _forgotten_us(state, spec):
            return
        if tick != spec.tick:
            # The rule has another number: the same level in other parts, rounded up.
            fraction = min(-(-int(fraction) * TICKS_US[tick] // self._tick_us), self.ticks)
            last = int(last) * TICKS_US[tick] // self._tick_us
        # The format holds no larger number, and this one is far above any limit.
        hits = min(hits, spec.limit + spec.rate)
        self._leak(int(last), hits * self.ticks + int(fraction))

    def _leak(self, last: int, level: int) -> None:
        if last - self.now >= self.ticks:
            self.damaged = True
            return
        if not level:
            return  # as new, also if the clock has stepped back since
        self.now = max(self.now, last)
        since, rate = self._since(last)
        full = -(-level // rate) if rate else since + 1
        self.level = level - since * rate if since < full else 0

    def _since(self, last: int) -> tuple[int, int]:
        """How often something has leaked since a time in ticks, and how much each time."""
        if self._spec.stepped:
            return self.now // self.ticks - last // self.ticks, self._spec.rate * self.ticks
        return self.now - last, self._spec.rate

    def leaked(self, since_us: int) -> int:
        """The most that can have leaked since a moment; nothing yet if it is to come."""
        since, rate = self._since(since_us // self._tick_us)
        return max(0, since) * rate

    def state(self) -> State:
        hits, fraction = divmod(self.level, self.ticks)
        spec = self._spec
        mark = spec.algorithm.mark
        return _STATE.pack(mark, spec.tick, hits, fraction, self.now, spec.rate)

    def used(self) -> int:
        """In hits, rounded up."""
        return -(-self.level // self.ticks)

    def until_us(self, level: int) -> int:
        """From now until no more than this is used; one window if nothing ever leaks.

        It ends at `ends_us` at the latest, so that huge buckets at a small rate stay exact.
        """
        rate, excess = self._spec.rate, self.level - level
        if excess <= 0:
            return 0
        if not rate:
            return self._spec.window_us
        if self._spec.stepped:
            steps = -(-excess // (rate * self.ticks))
            then = (self.now // self.ticks + steps) * self.ticks
        else:
            then = self.now - -excess // rate
        then_us = then * self._tick_us
        return (then_us if then_us < MAX_EXACT else self.ends_us()) - self._now_us

    def ends_us(self) -> int:
        """The last moment, in whole ticks, that is exact as a double."""
        return (MAX_EXACT - 1) // self._tick_us * self._tick_us


def _forgotten_us(state: bytes, spec: CounterSpec) -> int:
    """From when on a state counts for nothing at another rate."""
    tick: int
    hits: int
    last: float
    rate: int
    _, tick, hits, fraction, last, rate = _STATE.unpack(state)
    if not rate:
        return MAX_EXACT
    ticks = -(-spec.window_us // TICKS_US[tick])
    level, then = hits * ticks + int(fraction), int(last)
    if spec.stepped:
        then = (then // ticks - -level // (rate * ticks)) * ticks
    else:
        then -= -level // rate
    return max(then * TICKS_US[tick], int(last) * TICKS_US[tick] + _RETENTION_US)


def charge(
    state: State | None, now_us: int, addend: int, spec: CounterSpec, _force: bool, _lease: bytes
) -> Step:
    """Puts `addend` hits into the bucket if there is room for all of them.

    0 hits are a peek: it passes while the bucket holds no more than the limit.
    """
    limit = spec.limit
    level = _Level(state, now_us, spec)
    remaining = limit - level.used()
    if addend > remaining:
        room = limit - addend if addend <= limit else 0
        retry_us = level.until_us(room * level.ticks)
        return step(
            (False, state, max(0, remaining), level.until_us(0), retry_us, 0, level.damaged)
        )
    if addend:
        level.level += addend * level.ticks
        state = level.state()
    return step((True, state, remaining - addend, level.until_us(0), 0, addend, level.damaged))


def refund(
    state: State | None,
    now_us: int,
    addend: int,
    spec: CounterSpec,
    _lease: bytes,
    receipt: Receipt | None,
) -> Step:
    """Takes up to `addend` hits out of the bucket.

    With a receipt, if others have come since, less what has leaked since: so much of it may
    have been of theirs. Of a queue then nothing, since they were told their places.
    """
    level = _Level(state, now_us, spec)
    given = addend * level.ticks
    if receipt and not now_us + level.until_us(0) == receipt.until_us < level.ends_us():
        given = 0 if spec.form.queue else max(0, given - level.leaked(receipt.at_us))
    given_back = min(-(-given // level.ticks), level.used())
    if given_back:
        level.level = max(0, level.level - given)
        state = level.state()
    remaining = max(0, spec.limit - level.used())
    return Step(True, state, remaining, level.until_us(0), 0, given_back, level.damaged)


AHEAD_PARTS: Final = 20
"""A leased bucket keeps the 20th part of its burst free for what is spent later than counted."""

_LEAST_ADVANCE_US: Final = 20_000
"""A shorter advance would end before much of it can be spent."""


def advance(spec: CounterSpec, _reset_us: int) -> int:
    """The time in which as much comes back as a leased bucket keeps free, at most.

    What is spent in any time was counted in that time and this one before. So no more is admitted
    in any time than the burst and what comes back in it.
    """
    return spec.limit * spec.window_us // ((AHEAD_PARTS - 1) * max(1, spec.rate))


def burst_of(limit: Limit) -> int:
    """What a bucket holds: its burst, else as much as comes back in a window."""
    return limit.requests_per_unit if limit.burst is None else limit.burst


def contradictions(limit: Limit) -> Iterator[Contradiction]:
    """What makes no sense in any bucket."""
    if limit.burst is not None and not limit.requests_per_unit:
        message = "a burst needs requests_per_unit above 0, or it never comes back"
        yield Contradiction("burst", message, "burst")
    if limit.advances:
        yield from _of_advances(limit)


def _of_advances(limit: Limit) -> Iterator[Contradiction]:
    burst, rate = burst_of(limit), limit.requests_per_unit
    for name, given in (("refill: stepped", limit.stepped), ("pool", bool(limit.pool))):
        if given:
            message = f"sync: leased and {name} exclude each other in a bucket: remove one"
            yield Contradiction("sync", message, "sync")
    if limit.max_wait_us:
        message = "sync: leased is not for a queue: each hit has a place of its own; leave sync out"
        yield Contradiction("sync", message, "sync")
    elif burst * limit.window_us < AHEAD_PARTS * _LEAST_ADVANCE_US * rate:
        least = -(-AHEAD_PARTS * _LEAST_ADVANCE_US * rate // limit.window_us)
        message = (
            "sync: leased counts hits ahead for 5 % of the time in which the bucket fills, which "
            f"is below 20ms: write a burst of at least {least}, of which at most "
            f"{least - -(-least // AHEAD_PARTS)} pass in one call, or leave sync out"
        )
        yield Contradiction("sync", message, "sync")


BURST: Final[Parameter] = Parameter(
    "burst",
    Takes.NUMBER,
    "What a `token_bucket` or `leaky_bucket` holds.",
    "requests_per_unit",
    field="burst",
    instead="the others hold requests_per_unit",
    least=1,
)
