"""How much of a caller's time counting may take. The one place that knows, for every transport."""

from __future__ import annotations

from typing import Final

from ratelimit_service.stores import NEVER

__all__ = ["LEAST_TIMEOUT_US", "counted_until"]

_LEAST_WAY_US: Final = 2_000

LEAST_TIMEOUT_US: Final = _LEAST_WAY_US
"""Who says that it waits for no longer than this counts as one who says nothing: nobody could
answer in time. It is counted, unless it takes its call back before."""


def counted_until(arrived_us: int, timeout_us: int) -> int:
    """Until when a request may be counted, so that its caller is still there for the answer.

    The last fifth of the caller's time is kept back, two milliseconds at least. A reply is noticed
    only between other turns of the process. Then its answer must be made and sent. `arrived_us` is
    when the request was read. Both times are by `clock.elapsed_us`.
    """
    if timeout_us <= LEAST_TIMEOUT_US:
        return NEVER
    return arrived_us + timeout_us - max(timeout_us // 5, _LEAST_WAY_US)
