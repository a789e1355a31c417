"""token_bucket: a bucket of `burst` tokens, of which each hit takes one, refilled at a rate.

Tokens come back one at a time, evenly over the unit, or with `refill: stepped` all of a unit's
at once with each multiple of it. What is kept is the tokens that are missing (`level`), so a new
bucket is full. Hits without tokens are never counted, whatever the mode.
"""

from __future__ import annotations

from typing import Final

from ratelimit_service.algorithms import level
from ratelimit_service.algorithms.step import State, Step
from ratelimit_service.model import Measure, Receipt

__all__ = ["charge", "refund"]

_MARK: Final = b"t"


def charge(
    state: State | None, now_us: int, addend: int, measure: Measure, _force: bool, _lease: bytes
) -> Step:
    """Takes `addend` tokens if there are as many."""
    return level.charge(_MARK, state, now_us, addend, measure)


def refund(
    state: State | None,
    now_us: int,
    addend: int,
    measure: Measure,
    _lease: bytes,
    receipt: Receipt | None,
) -> Step:
    """Puts tokens back, up to a full bucket."""
    return level.refund(_MARK, state, now_us, addend, measure, receipt)
