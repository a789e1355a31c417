"""fixed_window: a count that starts anew at every multiple of the window since the Unix epoch.

The state is one integer: the window's number modulo 2^20 above, the count in the low 32 bits.
`lua/fixed_window.lua` is the same arithmetic; one table of cases runs on both. No state is
kept here and no time is asked for.
"""

from __future__ import annotations

from ratelimit_service.algorithms.step import Step, step

__all__ = ["charge", "refund"]

_COUNT_BITS = 32
_MAX_COUNT = (1 << _COUNT_BITS) - 1
_NUMBERS = 1 << 20


def charge(
    state: int | None, now_us: int, addend: int, limit: int, window_us: int, force: bool
) -> Step:
    """Counts `addend` hits if all of them fit below `limit`, or in any case with `force`.

    0 hits are a peek: it passes while the count does not exceed the limit, and changes nothing.
    """
    number, count = now_us // window_us, 0
    if state is not None:
        ahead = (state >> _COUNT_BITS) - number & _NUMBERS - 1
        if ahead <= 1:
            number += ahead
            count = state & _MAX_COUNT
    reset_us = (number + 1) * window_us - now_us
    total = count + addend
    if total <= limit:
        if addend:
            state = (number & _NUMBERS - 1) << _COUNT_BITS | total
        return step((True, state, limit - total, reset_us, addend))
    left = limit - count if count < limit else 0
    if addend and force:
        state = _packed(number, min(total, _MAX_COUNT))
        return step((False, state, left, reset_us, addend))
    return step((False, state, left, reset_us, 0))


def refund(state: int | None, now_us: int, addend: int, limit: int, window_us: int) -> Step:
    """Takes up to `addend` hits off the current window's count; never makes a state."""
    number, count = _read(state, now_us, window_us)
    reset_us = (number + 1) * window_us - now_us
    given_back = min(count, addend)
    if given_back:
        state = _packed(number, count - given_back)
    return Step(True, state, max(0, limit - count + given_back), reset_us, given_back)


def _read(state: int | None, now_us: int, window_us: int) -> tuple[int, int]:
    """The number of the window that counts now, and its count.

    A state one window ahead means that the clock stepped back: that window goes on. Any other
    window's count is over.
    """
    number = now_us // window_us
    if state is None:
        return number, 0
    ahead = (state >> _COUNT_BITS) - number & _NUMBERS - 1
    if ahead > 1:
        return number, 0
    return number + ahead, state & _MAX_COUNT


def _packed(number: int, count: int) -> int:
    return (number & _NUMBERS - 1) << _COUNT_BITS | count
