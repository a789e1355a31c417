"""How much there may be of something in each second."""

from __future__ import annotations

from ratelimit_service.eventloop.clock import Clock, elapsed_us
from ratelimit_service.model import SECOND_US

__all__ = ["Budget"]


class Budget:
    """So many a second."""

    def __init__(self, most: int, clock: Clock = elapsed_us) -> None:
        self._most = most
        self._clock = clock
        self._second = -1
        self._taken = 0

    @property
    def room(self) -> int:
        """How many more there may be in this second."""
        second = self._clock() // SECOND_US
        if second != self._second:
            self._second, self._taken = second, 0
        return self._most - self._taken

    def take(self, wanted: int) -> int:
        """Takes as many as there are, `wanted` at most; returns how many these are."""
        taken = min(wanted, self.room)
        self._taken += taken
        return taken
