"""sliding_window: the count of the last window's length, from a few sub-totals.

With two counters: this window's count, and the one before it weighted by how much of it is
still within the length of a window, rounded down (Cloudflare's approximation: it takes the
hits of the window before to be spread evenly). With `buckets`: a sub-counter for each part of
the window, the oldest, partly covered one counted whole, so that no exact window ever holds
more than the limit; it is up to a part too strict.

The state is `w`, the window's number, and the counts before and now; or `s`, the bytes that a
count takes, the newest part's number, and the counts from the newest to the oldest.
`lua/sliding_window.lua` is the same arithmetic. No state is kept here, no time asked for.
"""

from __future__ import annotations

import struct
from typing import Final

from ratelimit_service.model import (
    MAX_ADDEND,
    SECOND_US,
    Algorithm,
    CounterSpec,
    Parameter,
    Receipt,
    State,
    Step,
    Takes,
    step,
)

__all__ = [
    "ALGORITHM",
    "charge",
    "charge_any",
    "packed",
    "part_us",
    "passing",
    "refund",
    "unpacked",
]


def charge(
    state: State | None, now_us: int, addend: int, spec: CounterSpec, force: bool, _lease: bytes
) -> Step:
    """Counts `addend` hits if all of them fit below the limit, or in any case with `force`."""
    if spec.paired:
        number, before, count = unpacked(state)
        if number >= 0 or state is None:
            number, before, count, remaining, reset_us = passing(
                number, before, count, now_us, addend, spec
            )
            if remaining >= 0 and (addend or remaining):
                if addend:
                    state = packed(number, before, count)
                return step((True, state, remaining, reset_us, 0, addend, False))
    return charge_any(state, now_us, addend, spec, force)


def charge_any(
    state: State | None, now_us: int, addend: int, spec: CounterSpec, force: bool
) -> Step:
    """As `charge`, whatever becomes of the hits."""
    limit, window = spec.limit, _window(state, now_us, spec)
    remaining = limit - window.count()
    # A counter at its top may have counted more than it can hold: there a peek is over.
    least = addend or int(limit == MAX_ADDEND)
    passed = least <= remaining
    retry_us = 0 if passed else window.retry_us(least)
    counted = addend if passed or force else 0
    if counted:
        window.add(counted)
        state = window.state()
    remaining = remaining - addend if passed else max(0, remaining)
    return step((passed, state, remaining, window.reset_us(), retry_us, counted, window.damaged))


def passing(
    number: int, before: int, count: int, now_us: int, addend: int, spec: CounterSpec
) -> tuple[int, int, int, int, int]:
    """The next state, the remaining hits and the reset, as `charge` with two counters has them.

    A state is the window's number, which is below 0 of a new counter, and the counts before and
    now. If there is no room the remaining hits are below 0, and the state is not to be used. If
    the state is ahead of the clock, the reset is 0 as well, and `charge_any` tells all.
    """
    window_us, ticks = spec.window_us, spec.window_ticks
    current = now_us // window_us
    since_us = now_us % window_us
    ahead = number - current
    if ahead:
        if ahead > 0:
            return number, before, count, -1, 0
        before = count if ahead == -1 and number >= 0 else 0
        count = 0
    weighed = before * (ticks - since_us // spec.tick_us) // ticks if before else 0
    if not (weighed or count):
        before = 0  # what weighs nothing is as good as gone
    count += addend
    return current, before, count, spec.limit - weighed - count, window_us - since_us


def packed(number: int, before: int, count: int) -> bytes:
    """A state of two counters as `charge` has it."""
    return _TWO.pack(_TWO_LETTER, number, before, count)


def unpacked(state: State | None) -> tuple[int, int, int]:
    """The number and the counts of such a state; the number is below 0 if it is none."""
    if not isinstance(state, bytes) or len(state) != _TWO.size or state[0] != _TWO_MARK:
        return -1, 0, 0
    fields: tuple[bytes, float, int, int] = _TWO.unpack(state)
    _, number, before, count = fields
    if not 0 <= number < _MOST_NUMBER:
        return -1, 0, 0
    return int(number), before, count


def refund(
    state: State | None,
    now_us: int,
    addend: int,
    spec: CounterSpec,
    _lease: bytes,
    receipt: Receipt | None,
) -> Step:
    """Takes up to `addend` hits off the newest counts, then the older ones; or where they lie."""
    window = _window(state, now_us, spec)
    given_back = window.undo(addend, receipt) if receipt else window.take_off(addend)
    if given_back:
        state = window.state()
        if not window.count():
            window = _window(state, now_us, spec)  # the next hit begins another
    remaining = max(0, spec.limit - window.count())
    return Step(True, state, remaining, window.reset_us(), 0, given_back, window.damaged)


class _TwoCounters:
    """This window's count and the one before's."""

    __slots__ = (
        "_ahead_us",
        "_before",
        "_elapsed",
        "_ends_us",
        "_now",
        "_number",
        "_spec",
        "damaged",
    )

    def __init__(self, state: State | None, now_us: int, spec: CounterSpec) -> None:
        self._spec = spec
        self._number = now_us // spec.window_us
        self._before, self._now, self._ahead_us, self.damaged = 0, 0, 0, False
        if isinstance(state, bytes) and state[:1] == b"w" and len(state) == _TWO.size:
            _, stored, before, now = _TWO.unpack(state)
            ahead = int(stored) - self._number
            self.damaged = ahead > 1
            if ahead == 1 and (before or now):  # else as new, also if the clock has stepped back
                self._number += 1
                self._ahead_us = self._number * spec.window_us - now_us
            if 0 <= ahead <= 1:
                self._before, self._now = before, now
            elif ahead == -1:
                self._before = now
        since = now_us + self._ahead_us - self._number * spec.window_us
        self._elapsed = since // spec.tick_us
        self._ends_us = spec.window_us - since + self._ahead_us

    def state(self) -> State:
        return _TWO.pack(b"w", self._number, self._before, self._now)

    def count(self) -> int:
        ticks = self._spec.window_ticks
        return self._before * (ticks - self._elapsed) // ticks + self._now

    def add(self, addend: int) -> None:
        if not self.count():
            self._before = 0  # what weighs nothing is as good as gone
        self._now = min(self._now + addend, MAX_ADDEND)

    def take_off(self, addend: int) -> int:
        if not self.count():
            return 0
        given_back = min(self._now, addend)
        self._now -= given_back
        older = min(self._before, addend - given_back)
        self._before -= older
        return given_back + older

    def undo(self, addend: int, receipt: Receipt) -> int:
        """Takes them off the window that the receipt is of."""
        ago = self._number + 1 - receipt.until_us // self._spec.window_us
        given_back = 0
        if ago == 0:
            given_back = min(self._now, addend)
            self._now -= given_back
        elif ago == 1:
            given_back = min(self._before, addend)
            self._before -= given_back
        return given_back

    def reset_us(self) -> int:
        return self._ends_us

    def retry_us(self, addend: int) -> int:
        limit = self._spec.limit
        if addend > limit:
            return self._spec.window_us
        room = limit - self._now - addend
        if room >= 0:
            return self._after(self._until(self._before, room))
        return self._after(self._until(self._now, limit - addend) + self._spec.window_ticks)

    def _until(self, count: int, room: int) -> int:
        """The ticks of a window after which this count before it weighs no more than `room`."""
        if count <= room:
            return 0
        ticks = self._spec.window_ticks
        return ticks + 1 - -(-(room + 1) * ticks // count)

    def _after(self, ticks: int) -> int:
        """From now to a moment in ticks since the window's beginning, in microseconds."""
        return max(0, ticks - self._elapsed) * self._spec.tick_us + self._ahead_us


class _Buckets:
    """The counts of the parts of a window, from the newest to the oldest."""

    __slots__ = ("_counts", "_now_us", "_number", "_part_us", "_spec", "damaged")

    def __init__(self, state: State | None, now_us: int, spec: CounterSpec) -> None:
        self._spec, self._now_us = spec, now_us
        self._part_us = part_us(spec)
        self._number, self._counts, self.damaged = now_us // self._part_us, [0], False
        if not (isinstance(state, bytes) and state[:1] == b"s" and len(state) > _HEAD):
            return
        form = _FORMS.get(state[1])
        if form is None or (len(state) - _HEAD) % state[1]:
            return
        number = int.from_bytes(state[2:_HEAD], "big")
        self.damaged = number * self._part_us - now_us >= spec.window_us
        if self.damaged:
            return
        age = max(0, self._number - number)
        if age <= spec.buckets and any(state[_HEAD:]):
            self._number = max(number, self._number)
            if state[1] == 1:  # bytes are numbers already
                counts = list(state[_HEAD:])
            else:
                size = (len(state) - _HEAD) // state[1]
                counts = list(struct.unpack(f">{size}{form}", state[_HEAD:]))
            self._counts = [0] * age + counts[: spec.buckets + 1 - age]

    def state(self) -> State:
        counts = self._counts
        while len(counts) > 1 and not counts[-1]:
            counts.pop()
        most = max(counts)
        size = 1 if most < 1 << 8 else 2 if most < 1 << 16 else 4
        if size == 1:
            packed = bytes(counts)
        else:
            packed = struct.pack(f">{len(counts)}{_FORMS[size]}", *counts)
        return b"s%c%b%b" % (size, self._number.to_bytes(_HEAD - 2, "big"), packed)

    def count(self) -> int:
        return sum(self._counts)

    def add(self, addend: int) -> None:
        self._counts[0] = min(self._counts[0] + addend, MAX_ADDEND)

    def take_off(self, addend: int) -> int:
        rest = addend
        for index, count in enumerate(self._counts):
            self._counts[index] -= min(count, rest)
            rest -= min(count, rest)
        return addend - rest

    def undo(self, addend: int, receipt: Receipt) -> int:
        """Takes them off the part that the receipt is of."""
        number = receipt.until_us // self._part_us - self._spec.buckets - 1
        index = self._number - number
        if not 0 <= index < len(self._counts):
            return 0
        given_back = min(self._counts[index], addend)
        self._counts[index] -= given_back
        return given_back

    def reset_us(self) -> int:
        for index, count in enumerate(self._counts):
            if count:
                return self._gone_us(index)
        return 0

    def retry_us(self, addend: int) -> int:
        limit = self._spec.limit
        if addend > limit:
            return self._spec.window_us
        excess, index = self.count() + addend - limit, len(self._counts)
        while excess > 0:
            index -= 1
            excess -= self._counts[index]
        return self._gone_us(index)

    def _gone_us(self, index: int) -> int:
        """From now until a part is no longer within the window."""
        after = self._number - index + self._spec.buckets + 1
        return after * self._part_us - self._now_us


def part_us(spec: CounterSpec) -> int:
    """How long a sub-counter counts."""
    return -(-spec.window_us // spec.buckets)


def _window(state: State | None, now_us: int, spec: CounterSpec) -> _TwoCounters | _Buckets:
    return (_Buckets if spec.buckets else _TwoCounters)(state, now_us, spec)


_TWO: Final = struct.Struct(">cdII")
_TWO_LETTER: Final = b"w"
_TWO_MARK: Final = ord("w")
_MOST_NUMBER: Final = 1 << 53
_FORMS: Final = {1: "B", 2: "H", 4: "I"}
_HEAD: Final = 8


_BUCKETS: Final = Parameter(
    "buckets",
    Takes.NUMBER,
    "The sub-counters of a `sliding_window`, 2 to 360.",
    field="buckets",
    instead="sub-counters belong to sliding_window",
    phrase="{} buckets",
    least=2,
    most=360,
)

_LETTER: Final = "w"
_WEIGHT: Final = 3
_BUCKETS_PER_WEIGHT: Final = 11
"""The sub-counters that weigh one, for reading and writing them."""


def _weight(spec: CounterSpec) -> int:
    return _WEIGHT + spec.buckets // _BUCKETS_PER_WEIGHT


def _advance(spec: CounterSpec, reset_us: int) -> int:
    """Until the window or the part ends in which they are counted.

    Whatever weighs beside them weighs no more then, so they would have had room.
    """
    return reset_us - spec.buckets * part_us(spec) if spec.buckets else reset_us


def _key(spec: CounterSpec) -> str:
    """As `w3600`, with sub-counters `w3600/60`."""
    parts = f"/{spec.buckets}" if spec.buckets else ""
    return f"{_LETTER}{spec.window_us // SECOND_US}{parts}"


ALGORITHM: Final = Algorithm(
    "sliding_window",
    _LETTER,
    charge,
    refund,
    parameters=(_BUCKETS,),
    key=_key,
    weight=_weight,
    ticks=True,
    paired=True,
    advance=_advance,
)
