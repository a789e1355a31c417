"""What an overload does to callers and to this process: who is denied, and what health says.

What must not live here: which calls are counted (`admission`).
"""

from __future__ import annotations

from typing import Final

from ratelimit_service.eventloop.clock import elapsed_us
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats

__all__ = ["Overload"]

_LOOKS_EACH: Final = 4
_MOST_LOOKS: Final = 8_000
"""For each denial so many late calls are looked at, whether their callers are known to be over; as
many may be saved up."""

_LONG_US: Final = 1_000_000
"""Health tells of calls that wait for longer than this."""

_CALM_US: Final = 5_000_000
"""A worker is not overloaded any more when all calls have been counted for so long."""


class Overload:
    """Whether this process has more calls than time: in health as `overloaded`, and in metrics."""

    def __init__(self, stats: Stats, health: Health) -> None:
        self._stats = stats
        self._health = health
        self._noted_us = 0
        self._looks = self._denied = 0
        """How many late calls may be looked at whether their callers are known to be over, and how
        many requests had been denied when this was last reckoned."""

    def looks(self) -> int:
        """How many late calls may be looked at whether their callers are known to be over.

        Where nobody is over, nobody is looked at: to look costs a part of what counting does. So
        each denial lets the next few be looked at.
        """
        denied = self._stats.decisions["over_limit"]
        if denied != self._denied:
            newly = denied - self._denied if denied > self._denied else denied
            self._looks = min(self._looks + _LOOKS_EACH * newly, _MOST_LOOKS)
            self._denied = denied
        return self._looks

    def looked(self, calls: int) -> None:
        """Notes that so many late calls were looked at."""
        self._looks -= calls

    def turned_away(self, denied: int, refused: int) -> None:
        """Notes that there was no time to count calls: what became of so many of them."""
        if denied:
            self._stats.overloaded["denied"] += denied
        if refused:
            self._stats.overloaded["refused"] += refused
        self._noted_us = elapsed_us()
        self._health.degrade(
            "overloaded",
            "there are more calls than this process has time for: those that waited too long are "
            "not counted but refused (RESOURCE_EXHAUSTED), or denied if they are known to be over; "
            "add cores (--workers) or instances",
        )

    def waited(self, oldest_us: int) -> None:
        """Says in health if the oldest call that is to be counted has waited for long."""
        if oldest_us > _LONG_US:
            self._health.degrade(
                "waiting",
                f"calls wait to be counted for more than {oldest_us // 1_000_000} s: more come, "
                "from callers who name no deadline, than the store and this process have time for; "
                "add cores (--workers) or instances",
            )
        else:
            self._health.recover("waiting")

    def look(self) -> None:
        """Notices the end of an overload; to be called about once a second."""
        if self._noted_us and elapsed_us() - self._noted_us > _CALM_US:
            self._noted_us = 0
            self._health.recover("overloaded")
