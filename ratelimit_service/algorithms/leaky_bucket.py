"""leaky_bucket: a bucket into which each hit pours one, and that leaks at a steady rate.

As a meter (the generic cell rate algorithm of ITU-T I.371, in hits instead of times): hits that
do not fit are denied. As a queue, where the rule has `max_wait`: the bucket holds what leaks in
that time, and what lies in it before a hit is the hit's delay. The arithmetic is `level`'s,
which makes the meter the mirror of a token bucket. Hits without room are never counted.
"""

from __future__ import annotations

from typing import Final

from ratelimit_service.algorithms import level
from ratelimit_service.algorithms.step import State, Step
from ratelimit_service.model import Measure, Receipt

__all__ = ["charge", "refund"]

_MARK: Final = b"b"


def charge(
    state: State | None, now_us: int, addend: int, measure: Measure, _force: bool, _lease: bytes
) -> Step:
    """Pours `addend` hits in if they fit."""
    return level.charge(_MARK, state, now_us, addend, measure)


def refund(
    state: State | None,
    now_us: int,
    addend: int,
    measure: Measure,
    _lease: bytes,
    receipt: Receipt | None,
) -> Step:
    """Takes hits out, down to an empty bucket."""
    return level.refund(_MARK, state, now_us, addend, measure, receipt)
