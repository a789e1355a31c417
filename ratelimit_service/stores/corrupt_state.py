"""Counters that start again because their state is impossible: counted, and logged now and then."""

from __future__ import annotations

import logging
from typing import Final

from ratelimit_service.observability.log_throttle import LogThrottle
from ratelimit_service.observability.stats import Stats

__all__ = ["CorruptState"]

log = logging.getLogger(__name__)

_LOG_EVERY_US: Final = 60_000_000


class CorruptState:
    """States from further in the future than a clock steps back."""

    def __init__(self, stats: Stats) -> None:
        self._stats = stats
        self._throttle = LogThrottle(_LOG_EVERY_US)

    def note(self, count: int, example: bytes) -> None:
        """Counts counters that started again from nothing; `example` is the key of one of them."""
        self._stats.damaged += count
        if self._throttle.take():
            log.warning(
                "counters start anew, since they were last used more than a window in the future "
                "(%d so far; now %.100r): did the clock of the store step back?",
                self._stats.damaged,
                example,
            )
