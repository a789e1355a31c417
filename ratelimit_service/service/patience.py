"""How much of a caller's time counting may take. The one place that knows, for every transport."""

from __future__ import annotations

from typing import Final

__all__ = ["counted_until"]

_LEAST_WAY_US: Final = 2_000


def counted_until(arrived_us: int, timeout_us: int) -> int:
    """Until when a request may be counted, so that its caller is still there for the answer.

    The last fifth of the caller's time is kept back, two milliseconds at least. A reply is noticed
    only between the process' other turns, then the answer is made, and it has its way to go.
    `arrived_us` is when the request was read, by `clock.elapsed_us`; what is returned, too.
    """
    return arrived_us + timeout_us - max(timeout_us // 5, _LEAST_WAY_US)
