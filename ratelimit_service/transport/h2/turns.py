"""Whose turn it is: connections take turns at being handled, a piece of their bytes each.

A turn of the loop handles pieces for two milliseconds at most, whoever they are from. Then the
loop reads, writes and runs its timers, and the turns go on where they stopped. So one client
that sends much holds up neither the others nor the replies of a store. What must not live here:
bytes, and what becomes of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final
from typing import Protocol as Signature

from ratelimit_service.clock import elapsed_us

__all__ = ["TURN_US", "Turns", "Waiting"]

TURN_US: Final = 2_000
"""How long pieces are handled before the loop has its turn."""


class Waiting(Signature):
    """Somebody who has something to be handled."""

    def handle_piece(self) -> bool:
        """Handles a piece; returns whether there is more."""

    def end_turn(self) -> None:
        """Writes what is to be said after the pieces of this turn."""

    def fail(self, error: Exception) -> None:
        """Ends: one of the two above has failed, and whoever it was has no more turns."""


class Turns:
    """The connections of one event loop that have something to be handled, in their order."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Waiting] = deque()
        self._scheduled = False

    def add(self, waiting: Waiting) -> None:
        """Puts somebody at the end; not while they are waiting already."""
        self._waiting.append(waiting)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        waiting = self._waiting
        until = elapsed_us() + TURN_US
        handled: list[Waiting] = []
        while waiting:
            first = waiting.popleft()
            handled.append(first)
            try:
                if first.handle_piece():
                    waiting.append(first)
            except Exception as error:  # it must cost nobody else their turn
                first.fail(error)
            if elapsed_us() >= until:
                break
        for each in handled:
            try:
                each.end_turn()
            except Exception as error:
                each.fail(error)
        self._scheduled = bool(waiting)
        if waiting:
            self._loop.call_soon(self._turn)
