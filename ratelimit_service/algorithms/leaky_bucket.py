"""leaky_bucket: a bucket into which each hit pours one, and that leaks at a steady rate.

As a meter (the generic cell rate algorithm of ITU-T I.371, in hits instead of times): hits that
do not fit are denied. As a queue, where the rule has `max_wait`: the bucket holds what leaks in
that time, and what lies in it before a hit is the hit's delay. The arithmetic is `level`'s,
which makes the meter the mirror of a token bucket. Hits without room are never counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ratelimit_service.algorithms.level import (
    BURST,
    advance,
    burst_of,
    charge,
    contradictions,
    refund,
)
from ratelimit_service.model import (
    Algorithm,
    Contradiction,
    Denied,
    Limit,
    Parameter,
    Takes,
)

__all__ = ["ALGORITHM"]

_MAX_WAIT: Final = Parameter(
    "max_wait",
    Takes.DURATION,
    "Makes a `leaky_bucket` a queue: a number with `ms`, `s`, `m`, `h`, `d` or `w`.",
    field="max_wait_us",
    instead="to delay hits use leaky_bucket",
    phrase="a queue of at most {}",
)


def _capacity(limit: Limit) -> int:
    if limit.max_wait_us:
        return limit.max_wait_us * limit.requests_per_unit // limit.window_us
    return burst_of(limit)


def _contradictions(limit: Limit) -> Iterator[Contradiction]:
    if limit.max_wait_us:
        yield from _of_a_queue(limit)
    yield from contradictions(limit)


def _of_a_queue(limit: Limit) -> Iterator[Contradiction]:
    if limit.burst is not None:
        message = "burst and max_wait exclude each other: max_wait is the burst"
        yield Contradiction("max_wait", message, "burst")
    if limit.soft_ppm:
        message = "soft and max_wait exclude each other: raise max_wait"
        yield Contradiction("soft", message, "soft")
    capacity = _capacity(limit)
    if capacity:
        message = (
            f"Envoy does not wait: to it this queue is a meter with a burst of {capacity}; "
            "callers that can wait find the delay in x-ratelimit-delay-ms"
        )
        yield Contradiction("max_wait", message, "max_wait", hint=True)
    elif limit.requests_per_unit:
        least = -(-limit.window_us // limit.requests_per_unit // 1_000)
        message = f"max_wait is shorter than one hit takes: write at least {least}ms"
        yield Contradiction("max_wait", message, "max_wait")


ALGORITHM: Final = Algorithm(
    "leaky_bucket",
    "b",
    charge,
    refund,
    parameters=(BURST, _MAX_WAIT),
    capacity=_capacity,
    contradictions=_contradictions,
    denied=Denied.COUNTED_WITH_ROOM,
    refills=True,
    ticks=True,
    advance=advance,
)
