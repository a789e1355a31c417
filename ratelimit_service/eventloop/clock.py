"""The only place that asks the system what time it is.

Everything else takes the time as an argument, in integer microseconds since the Unix epoch.
"""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Clock", "elapsed_us", "now_us"]

Clock = Callable[[], int]


def now_us() -> int:
    """Microseconds since the Unix epoch, by the system's wall clock."""
    return time.time_ns() // 1000


def elapsed_us() -> int:
    """Microseconds since some fixed moment, for measuring durations; never steps back."""
    return time.monotonic_ns() // 1000
