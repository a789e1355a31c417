"""Faults of our own: the log gets their traceback, a user never does."""

from __future__ import annotations

import logging
from typing import Final

from ratelimit_service.eventloop.clock import elapsed_us

__all__ = ["Bugs"]

log = logging.getLogger(__name__)

_LOG_EVERY_US: Final = 1_000_000


class Bugs:
    """What one part of the process tells the log about its own faults, once a second at most."""

    def __init__(self) -> None:
        self._logged_us: int | None = None

    def note(self, what: str, error: Exception) -> None:
        """Logs what has failed, with the error's traceback."""
        now = elapsed_us()
        if self._logged_us is None or now - self._logged_us >= _LOG_EVERY_US:
            self._logged_us = now
            log.error("%s: please report this", what, exc_info=error)
