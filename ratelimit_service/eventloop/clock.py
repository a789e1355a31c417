"""The only place that asks the system what time it is.

Everything else takes the time as an argument, in integer microseconds since the Unix epoch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

__all__ = ["Clock", "elapsed_us", "now_us", "since_boot_us"]

Clock = Callable[[], int]


def now_us() -> int:
    """Microseconds since the Unix epoch, by the system's wall clock."""
    return time.time_ns() // 1000


def elapsed_us() -> int:
    """Microseconds since some fixed moment, for measuring durations; never steps back."""
    return time.monotonic_ns() // 1000


_BOOTTIME: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def since_boot_us() -> int:
    """As `elapsed_us`, but it goes on while the machine is suspended, where the system can tell."""
    return time.clock_gettime_ns(_BOOTTIME) // 1000
