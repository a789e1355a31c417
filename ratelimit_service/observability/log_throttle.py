"""What the log may say only now and then, and how much came meanwhile."""

from __future__ import annotations

from ratelimit_service.eventloop.clock import Clock, elapsed_us

__all__ = ["LogThrottle"]


class LogThrottle:
    """Says when an event may be logged again: the first at once, then once in so long at most."""

    def __init__(self, every_us: int, clock: Clock = elapsed_us) -> None:
        self._every_us = every_us
        self._clock = clock
        self._logged_us: int | None = None
        self._unlogged = 0

    def take(self) -> int:
        """Counts an event; how many there are since the last that was logged, 0 to log none."""
        self._unlogged += 1
        now_us = self._clock()
        if self._logged_us is not None and now_us - self._logged_us < self._every_us:
            return 0
        unlogged, self._unlogged = self._unlogged, 0
        self._logged_us = now_us
        return unlogged
