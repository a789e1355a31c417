"""The time that a limiter goes by. Tests put another in its place."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """Seconds that never step back, ways to let them pass, and the time of day."""

    def now(self) -> float:
        """Seconds since some moment."""

    def wall(self) -> float:
        """Seconds since 1970."""

    def sleep(self, seconds: float) -> None:
        """Blocks the thread."""

    async def pause(self, seconds: float) -> None:
        """Lets other tasks go on."""


class SystemClock:
    """The machine's."""

    def now(self) -> float:
        """As `Clock.now`."""
        return time.monotonic()

    def wall(self) -> float:
        """As `Clock.wall`."""
        return time.time()  # noqa: TID251 -- the only place that does in this package

    def sleep(self, seconds: float) -> None:
        """As `Clock.sleep`."""
        time.sleep(seconds)

    async def pause(self, seconds: float) -> None:
        """As `Clock.pause`."""
        await asyncio.sleep(seconds)
