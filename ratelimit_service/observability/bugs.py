"""Faults of our own: the log gets their traceback, a user never does."""

from __future__ import annotations

import logging
from typing import Final

from ratelimit_service.observability.log_throttle import LogThrottle

__all__ = ["Bugs"]

log = logging.getLogger(__name__)

_LOG_EVERY_US: Final = 1_000_000


class Bugs:
    """What one part of the process tells the log about its own faults, once a second at most."""

    def __init__(self) -> None:
        self._throttle = LogThrottle(_LOG_EVERY_US)

    def note(self, what: str, error: Exception) -> None:
        """Logs what has failed, with the error's traceback."""
        if self._throttle.take():
            log.error("%s: please report this", what, exc_info=error)
