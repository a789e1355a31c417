"""When a client's bytes are not read for a while, and what that says of when they have come.

What must not live here: why reading is paused.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from ratelimit_service.eventloop.clock import elapsed_us

__all__ = ["Pausable", "ReadPauses"]


class Pausable(Protocol):
    """What bytes are read from."""

    def pause_reading(self) -> None:
        """As asyncio's transports have it."""

    def resume_reading(self) -> None:
        """As asyncio's transports have it."""


class ReadPauses:
    """Whether one client's bytes are read now."""

    __slots__ = ("_loop", "_times", "paused", "since_us", "source")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._times = 0
        self.source: Pausable | None = None
        """What is read; None before the connection is made, and once it is gone."""
        self.paused = False
        self.since_us = 0
        """Since when, by `elapsed_us`, reading is paused: 0 once all that came during the pause is
        read. If it pauses again before, bytes of the first pause may be what is read next."""

    def pause(self) -> bool:
        """Reads nothing until `resume`; returns whether it was read before."""
        if self.source is None or self.paused:
            return False
        self.paused = True
        self._times += 1
        self.since_us = self.since_us or elapsed_us()
        self.source.pause_reading()
        return True

    def resume(self) -> None:
        """Reads again, if reading is paused."""
        if not self.paused:
            return
        self.paused = False
        if self.source is not None:
            self.source.resume_reading()
            # After two more rounds of the loop all that came during the pause has been read.
            self._loop.call_soon(self._loop.call_soon, self._read_again, self._times)

    def _read_again(self, times: int) -> None:
        """Notes that what comes from now on has not come during a pause, if none was since."""
        if self._times == times:
            self.since_us = 0
