"""penalty_window: a fixed window whose first denied hit denies all others for a penalty time.

The state is `p`, the window's number, its count, and until when the penalty lasts. While it does,
hits are neither admitted nor counted. `lua/penalty_window.lua` is the same arithmetic.
"""

from __future__ import annotations

import struct
from typing import Final

from ratelimit_service.model import (
    MAX_ADDEND,
    Algorithm,
    CounterSpec,
    Denied,
    Parameter,
    Receipt,
    State,
    Step,
    Takes,
    step,
)

__all__ = ["ALGORITHM"]

_STATE: Final = struct.Struct(">cdId")
_MARK: Final = b"p"


class _PenaltyWindow:
    """The window that counts now, and the penalty."""

    def __init__(self, state: State | None, now_us: int, spec: CounterSpec) -> None:
        self.number, self.count, self.until_us = now_us // spec.window_us, 0, 0
        self.damaged = False
        if isinstance(state, bytes) and state[:1] == _MARK and len(state) == _STATE.size:
            _, number, count, until_us = _STATE.unpack(state)
            ahead = int(number) - self.number
            self.damaged = ahead > 1
            if ahead == 0 or (ahead == 1 and count):  # the clock has stepped back: it goes on
                self.number, self.count = int(number), count
            if not self.damaged:
                self.until_us = int(until_us)
        self.ends_us = (self.number + 1) * spec.window_us

    def state(self) -> State:
        return _STATE.pack(_MARK, self.number, self.count, self.until_us)

    def remaining(self, now_us: int, limit: int) -> int:
        """While a penalty lasts nothing is: so a store knows that the counter still matters."""
        return 0 if now_us < self.until_us else max(0, limit - self.count)

    def reset_us(self, now_us: int) -> int:
        return max(self.ends_us, self.until_us) - now_us


def _charge(
    state: State | None, now_us: int, addend: int, spec: CounterSpec, force: bool, _lease: bytes
) -> Step:
    limit, window = spec.limit, _PenaltyWindow(state, now_us, spec)
    penalized = now_us < window.until_us
    if window.count + addend <= limit and not (penalized and addend):
        if addend:
            window.count += addend
            state = window.state()
        remaining, reset_us = window.remaining(now_us, limit), window.reset_us(now_us)
        return step((True, state, remaining, reset_us, 0, addend, window.damaged))
    remaining = window.remaining(now_us, limit)
    counted = 0
    if addend and force and not penalized:
        (penalty_us,) = spec.own
        window.count = min(window.count + addend, MAX_ADDEND)
        window.until_us = max(window.until_us, now_us + penalty_us)
        counted, state = addend, window.state()
    passes_us = max(window.until_us, now_us)
    if passes_us < window.ends_us and window.count + addend > limit:
        passes_us = window.ends_us
    retry_us = passes_us - now_us if addend <= limit else spec.window_us
    return step(
        (False, state, remaining, window.reset_us(now_us), retry_us, counted, window.damaged)
    )


def _refund(
    state: State | None,
    now_us: int,
    addend: int,
    spec: CounterSpec,
    _lease: bytes,
    receipt: Receipt | None,
) -> Step:
    """Takes hits off the current window's count, and no penalty back."""
    window = _PenaltyWindow(state, now_us, spec)
    damaged, given_back = window.damaged, min(window.count, addend)
    if receipt and receipt.until_us != now_us + window.reset_us(now_us):
        given_back = 0
    if given_back:
        window.count -= given_back
        state = window.state()
        window = _PenaltyWindow(
            state, now_us, spec
        )  # if nothing is left the next hit begins another
    remaining, reset_us = window.remaining(now_us, spec.limit), window.reset_us(now_us)
    return step((True, state, remaining, reset_us, 0, given_back, damaged))


_PENALTY: Final = Parameter(
    "penalty",
    Takes.DURATION,
    "How long a `penalty_window` denies who was denied: a number with `ms`, `s`, `m` or `h`.",
    instead="other algorithms let hits in as soon as there is room",
    phrase="a penalty of {}",
)

ALGORITHM: Final = Algorithm(
    "penalty_window",
    "p",
    _charge,
    _refund,
    parameters=(_PENALTY,),
    denied=Denied.ALWAYS_COUNTED,  # what is not counted leaves no trace, so no penalty
)
