"""fixed_window: a count that starts at 0 again with every window.

Windows begin at the multiples of their length since the Unix epoch, on a calendar, or with the
first hit after the one before is over. The state is one integer: the window's number modulo
2^28 above, the count in the low 32 bits. Where the first hit begins the window it is `h`, its
beginning and the count. `lua/fixed_window.lua` is the same arithmetic; one table of cases runs
on both. No state is kept here and no time is asked for.

In Redis, whose integers are doubles, numbers are taken modulo 2^20. There a state is gone a
second after its window. In memory it may lie for longer: 2^28 windows are eight years at least.
"""

from __future__ import annotations

import struct
from typing import Final

from ratelimit_service.model import (
    SECOND_US,
    WEEKDAYS,
    Algorithm,
    Anchor,
    Calendar,
    CounterSpec,
    Limit,
    Parameter,
    Receipt,
    State,
    Step,
    Takes,
    Unit,
    step,
)

__all__ = ["ALGORITHM", "charge", "charge_any", "passing", "refund"]

_COUNT_BITS: Final = 32
_MAX_COUNT: Final = (1 << _COUNT_BITS) - 1
_MAX_NUMBER: Final = (1 << 28) - 1
"""The next window has the number 0 again. The state stays below 2^60, which is what CPython
keeps in two digits, and mypyc in a machine word."""

_FAR_AHEAD: Final = 1 << 10
"""So many windows ahead a state is not damage but from long ago, since numbers wrap."""

_FROM_FIRST: Final = struct.Struct(">cdI")
_MARK: Final = b"h"


def charge(
    state: State | None, now_us: int, addend: int, spec: CounterSpec, force: bool, _lease: bytes
) -> Step:
    """Counts `addend` hits if all of them fit below the limit, or in any case with `force`.

    0 hits are a peek: it passes while the count does not exceed the limit, and changes nothing. A
    counter at its top may have counted more than it can hold, so there a peek does not pass.
    """
    if spec.adds:
        number = state if isinstance(state, int) else -1
        packed, remaining, reset_us = passing(number, now_us, addend, spec.limit, spec.window_us)
        if remaining >= 0 and (addend or remaining):
            return step((True, packed if addend else state, remaining, reset_us, 0, addend, False))
    return charge_any(state, now_us, addend, spec, force)


def passing(
    state: int, now_us: int, addend: int, limit: int, window_us: int
) -> tuple[int, int, int]:
    """The next state, the remaining hits and the reset, as `charge` nearly always has them.

    This is for the clock's windows. If there is no room, the remaining hits are below 0, and
    `charge_any` tells more. A state below 0 stands for a new counter.
    """
    number, count = now_us // window_us, 0
    reset_us = window_us - now_us % window_us  # products above 2^62 are slow where compiled
    if state >= 0:
        ahead = (state >> _COUNT_BITS) - number & _MAX_NUMBER
        if ahead > 1:
            if ahead < _FAR_AHEAD:
                return 0, -1, 0
        else:
            count = state & _MAX_COUNT
            if ahead and count:
                number += 1
                reset_us += window_us
    total = count + addend
    packed = (number & _MAX_NUMBER) << _COUNT_BITS | total
    return packed, limit - total, reset_us


def refund(
    state: State | None,
    now_us: int,
    addend: int,
    spec: CounterSpec,
    _lease: bytes,
    receipt: Receipt | None,
) -> Step:
    """Takes up to `addend` hits off the current window's count, or the receipt's if that is it."""
    window = _Window(state, now_us, spec)
    given_back = min(window.count, addend)
    if receipt and not window.is_of(receipt, now_us):
        given_back = 0  # that window is over
    if given_back:
        window.count -= given_back
        state = window.state()
        if not window.count:
            window = _Window(state, now_us, spec)  # the next hit begins another
    remaining = max(0, spec.limit - window.count)
    return Step(True, state, remaining, window.reset_us, 0, given_back, window.damaged)


class _Window:
    """The window that counts now, whatever begins it; the long way to say what `charge` does."""

    __slots__ = ("count", "damaged", "number", "reset_us", "spec", "start_us", "window_us")

    def __init__(self, state: State | None, now_us: int, spec: CounterSpec) -> None:
        self.spec = spec
        self.count, self.damaged = 0, False
        self.number, self.start_us, self.window_us = 0, now_us, spec.window_us
        if spec.anchor is Anchor.FIRST_HIT:
            self._read_from_first(state, now_us)
        else:
            self._read_numbered(state, now_us)

    def state(self) -> State:
        if self.spec.anchor is Anchor.FIRST_HIT:
            return _FROM_FIRST.pack(_MARK, self.start_us, self.count)
        return (self.number & _MAX_NUMBER) << _COUNT_BITS | self.count

    def is_of(self, receipt: Receipt, now_us: int) -> bool:
        """Whether the receipt is of this window: it ends then, or it had begun when that counted.

        Who was denied need not know when a window ends that began with another's hit.
        """
        if receipt.until_us == now_us + self.reset_us:
            return True
        since_us = receipt.at_us - self.start_us
        return self.spec.anchor is Anchor.FIRST_HIT and 0 <= since_us < self.window_us

    def _read_from_first(self, state: State | None, now_us: int) -> None:
        """A window that nothing is counted in any more has not begun."""
        self.reset_us = 0
        if not (isinstance(state, bytes) and state[:1] == _MARK and len(state) == _FROM_FIRST.size):
            return
        _, start, count = _FROM_FIRST.unpack(state)
        start_us = int(start)
        self.damaged = start_us - now_us >= self.window_us
        if count and not self.damaged and now_us < start_us + self.window_us:
            self.count, self.start_us = count, start_us
            self.reset_us = start_us + self.window_us - now_us

    def _read_numbered(self, state: State | None, now_us: int) -> None:
        """A state one window ahead means that the clock stepped back: that window goes on.

        Unless nothing counts in it: then it is as new.
        """
        anchor = self.spec.anchor
        if isinstance(anchor, Anchor):
            self.number = now_us // self.window_us
            end_us = (self.number + 1) * self.window_us
            next_end_us = end_us + self.window_us
        else:
            self.number, self.start_us, end_us, next_end_us = anchor.periods(now_us).at(now_us)
            self.window_us = end_us - self.start_us
        if isinstance(state, int):
            ahead = (state >> _COUNT_BITS) - self.number & _MAX_NUMBER
            if ahead <= 1:
                self.count = state & _MAX_COUNT
                if ahead and self.count:
                    self.number, end_us = self.number + 1, next_end_us
            else:
                self.damaged = ahead < _FAR_AHEAD
        self.reset_us = end_us - now_us


def charge_any(
    state: State | None, now_us: int, addend: int, spec: CounterSpec, force: bool
) -> Step:
    """As `charge`, the long way."""
    limit, window = spec.limit, _Window(state, now_us, spec)
    count = window.count
    passed = count + addend <= limit and (addend > 0 or count < _MAX_COUNT)
    retry_us = 0
    if not passed:
        retry_us = window.reset_us if addend <= limit else window.window_us
    counted = addend if passed or force else 0
    if counted:
        window.count = min(count + addend, _MAX_COUNT)
        state = window.state()
        if not count and spec.anchor is Anchor.FIRST_HIT:
            window.reset_us = window.window_us
    remaining = limit - count - addend if passed else max(0, limit - count)
    return step((passed, state, remaining, window.reset_us, retry_us, counted, window.damaged))


def _anchor_text(limit: Limit) -> str:
    return Anchor.FIRST_HIT.value if limit.anchor is Anchor.FIRST_HIT else ""


def _anchor_phrase(limit: Limit) -> str:
    return "from the first hit" if limit.anchor is Anchor.FIRST_HIT else ""


def _per_text(limit: Limit) -> str:
    return "calendar" if isinstance(limit.anchor, Calendar) else ""


def _per_phrase(limit: Limit) -> str:
    if not isinstance(limit.anchor, Calendar):
        return ""
    start = f" from {WEEKDAYS[limit.anchor.week_start]}" if limit.unit is Unit.WEEK else ""
    return f"by the calendar of {limit.anchor.time_zone}{start}"


def _time_zone_text(limit: Limit) -> str:
    return limit.anchor.time_zone if isinstance(limit.anchor, Calendar) else ""


def _week_start_text(limit: Limit) -> str:
    if not isinstance(limit.anchor, Calendar) or limit.unit is not Unit.WEEK:
        return ""
    return WEEKDAYS[limit.anchor.week_start]


def _no_phrase(_limit: Limit) -> str:
    return ""


_PARAMETERS: Final = (
    Parameter(
        "per",
        Takes.ANCHOR,
        "`calendar`: a `fixed_window` is a day, week, month or year of the calendar.",
        instead="calendar periods are counted by fixed_window",
        field="anchor",
        words=("calendar",),
        text_of=_per_text,
        phrase_of=_per_phrase,
    ),
    Parameter(
        "time_zone",
        Takes.ANCHOR,
        "The calendar's, as `Europe/Berlin`.",
        "UTC",
        field="anchor",
        beside="per",
        text_of=_time_zone_text,
        phrase_of=_no_phrase,
    ),
    Parameter(
        "week_start",
        Takes.ANCHOR,
        "The first day of a calendar's week.",
        "monday",
        field="anchor",
        words=WEEKDAYS,
        beside="per",
        text_of=_week_start_text,
        phrase_of=_no_phrase,
    ),
    Parameter(
        "anchor",
        Takes.ANCHOR,
        "Where a `fixed_window` begins: `clock` or `first_hit`.",
        "clock",
        instead="a sliding window or a bucket has no beginning",
        field="anchor",
        words=tuple(map(str, Anchor)),
        text_of=_anchor_text,
        phrase_of=_anchor_phrase,
    ),
)

_LETTER: Final = "f"
_LETTER_FROM_FIRST: Final = "h"
_CLOCKED_WEIGHT: Final = 2
_OTHER_WEIGHT: Final = 3


def _weight(spec: CounterSpec) -> int:
    return _CLOCKED_WEIGHT if spec.adds else _OTHER_WEIGHT


def _advance(_spec: CounterSpec, reset_us: int) -> int:
    """Until the window ends."""
    return reset_us


def _key(spec: CounterSpec) -> str:
    """As `f3600`; `h3600` from the first hit; on a calendar as `fmonth@Europe/Berlin`."""
    anchor = spec.anchor
    if isinstance(anchor, Calendar):
        start = f"-{WEEKDAYS[anchor.week_start]}" if anchor.unit is Unit.WEEK else ""
        return f"{_LETTER}{anchor.unit.name.lower()}{start}@{anchor.time_zone}"
    letter = _LETTER_FROM_FIRST if anchor is Anchor.FIRST_HIT else _LETTER
    return f"{letter}{spec.window_us // SECOND_US}"


ALGORITHM: Final = Algorithm(
    "fixed_window",
    _LETTER,
    charge,
    refund,
    parameters=_PARAMETERS,
    key=_key,
    weight=_weight,
    adds=True,
    advance=_advance,
)
