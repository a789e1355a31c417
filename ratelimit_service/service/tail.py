"""The latest denials, for those who watch. Nothing is noted while nobody does.

What must not live here: how they are shown (`questions.denials`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from ratelimit_service.eventloop.clock import elapsed_us, now_us
from ratelimit_service.service.decision_events import DecisionEvents
from ratelimit_service.service.records import DecidedBatch, DecisionRecord

__all__ = ["Tail"]

_MOST: Final = 40
"""Denials that are told at once. The first ones are; others cost their callers nothing."""

_PATIENCE_US: Final = 5_000_000
"""Nobody watches any more if it was not asked for so long."""

_MOST_BYTES: Final = 1 << 13
"""Requests that are larger are not told: to write one down would hold others up."""


class Tail:
    """Listens while somebody watches. Who watches is expected to ask again within seconds."""

    def __init__(self, events: DecisionEvents) -> None:
        self._events = events
        self._denials: deque[tuple[int, DecisionRecord]] = deque(maxlen=_MOST)
        self._asked_us = 0
        self._timer: asyncio.TimerHandle | None = None
        """Looks whether somebody still watches, if anybody does."""

    @property
    def watched(self) -> bool:
        """Whether denials are noted."""
        return self._timer is not None

    def take(self) -> list[tuple[int, DecisionRecord]]:
        """What was denied since the last time, and when; nothing the first time."""
        self._asked_us = elapsed_us()
        if self._timer is None:
            self._events.add(self)
            self._look_later()
        denials = list(self._denials)
        self._denials.clear()
        return denials

    def stop(self) -> None:
        """Hears no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._events.remove(self)
        self._denials.clear()

    def hear(self, decided: DecidedBatch) -> None:
        """Notes what was denied."""
        denials = self._denials
        if len(denials) == _MOST:
            return
        at_us = now_us()
        for index, body in enumerate(decided.bodies):
            if len(body) <= _MOST_BYTES and decided.denied(index):
                denials.append((at_us, decided.record(index)))
                if len(denials) == _MOST:
                    return

    def missed(self, calls: int) -> None:
        """Nobody is told how many there were."""

    def _look_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_PATIENCE_US / 1_000_000, self._look)

    def _look(self) -> None:
        if elapsed_us() - self._asked_us < _PATIENCE_US:
            self._look_later()
        else:
            self.stop()
