"""When a server is left alone: it was late too often in a row.

What must not live here: when it is late, and the pings after which it is asked again (`server`).
"""

from __future__ import annotations

import logging
from typing import Final

from ratelimit_service.observability.log_throttle import LogThrottle

__all__ = ["Breaker"]

log = logging.getLogger(__name__)

_OPEN_AFTER: Final = 5
"""It opens when the server was found late so often in a row, over at least the time that it may
take to answer."""

_SAY_EVERY_US: Final = 60_000_000
"""The log says once in so long at most that it is open: it may be so by turns."""


class Breaker:
    """The circuit breaker before one server."""

    __slots__ = ("_first_us", "_last_us", "_log", "_missed", "_timeout_us", "open")

    def __init__(self, timeout_us: int) -> None:
        """The server may take for `timeout_us` to answer."""
        self._timeout_us = timeout_us
        self.open = False
        """Whether the server is left alone until it answers pings."""
        self._missed = 0
        """How often in a row the server was found late."""
        self._first_us = self._last_us = 0
        """When it was found late for the first and for the last time of these."""
        self._log = LogThrottle(_SAY_EVERY_US)

    @property
    def in_time(self) -> bool:
        """Whether the server was not late last."""
        return not self._missed

    def missed(self, read_us: int, name: str) -> bool:
        """Hears that the server was found late; returns whether this has opened the breaker."""
        if not self._missed:
            self._first_us = read_us
        if read_us > self._last_us:
            self._missed += 1
            self._last_us = read_us
        lasted_us = read_us - self._first_us
        if self._missed < _OPEN_AFTER or lasted_us < self._timeout_us or self.open:
            return False
        if times := self._log.take():
            log.warning(
                "Redis at %s is sick: it is left alone until it answers pings%s",
                name,
                f" ({times} times since the last such line)" if times > 1 else "",
            )
        self.open = True
        return True

    def answered(self, left_us: int) -> None:
        """Hears that the server has answered a command that left then."""
        if left_us + self._timeout_us > self._last_us:
            self._missed = 0  # the server was not found late with this command

    def close(self) -> None:
        """The server is asked again."""
        self.open = False
        self._missed = 0
