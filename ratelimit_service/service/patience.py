"""How much of a caller's time counting may take. The one place that knows, for every transport."""

from __future__ import annotations

from typing import Final

from ratelimit_service.model.request import LEAST_TIMEOUT_US
from ratelimit_service.stores import NEVER

__all__ = ["counted_until"]

_LEAST_WAY_US: Final = LEAST_TIMEOUT_US


def counted_until(arrived_us: int, timeout_us: int | None) -> int:
    """Until when a request may be counted, so that its caller is still there for the answer.

    The last fifth of the caller's time is kept back, two milliseconds at least. A reply is noticed
    only between other turns of the process. Then its answer must be made and sent. `arrived_us` is
    when the request was read. Both times are by `clock.elapsed_us`. Who names no timeout, or one
    that is too short to be one, waits for as long as it takes.
    """
    if timeout_us is None or timeout_us <= LEAST_TIMEOUT_US:
        return NEVER
    return arrived_us + timeout_us - max(timeout_us // 5, _LEAST_WAY_US)
