"""What is done with calls that there is no time for: who is still counted, and who is not.

Calls wait in order, so under a lasting overload each of them waits longer than the one before.
If all were counted, all would be answered too late. So a call that has waited for a good part
of its caller's patience is decided without asking the store, which is cheaper: who is known to
be over is denied, for others a failure policy speaks. One whose caller is about to give up is
not answered at all, since that is cheaper still. It stays so until
the backlog is nearly gone: then calls are fresh again, and counted in time. This is the idea of
CoDel (RFC 8289): what matters is how long one waits, not how many do.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from ratelimit_service.clock import elapsed_us
from ratelimit_service.health import Health
from ratelimit_service.observer import Counters
from ratelimit_service.service import Ready

__all__ = ["FRESH_US", "PATIENCE_US", "Backlog", "Fate", "Haste", "Overload"]

PATIENCE_US: Final = 15_000
"""How long a caller is taken to wait that does not say so (`grpc-timeout`)."""

FRESH_US: Final = 500
"""A call that has waited for less is counted, if the last ones were."""

_CALM_US: Final = 5_000_000
"""A worker is not overloaded any more when all calls have been counted for so long."""


class Fate(IntEnum):
    """What becomes of a call."""

    COUNTED = 0
    HURRIED = 1
    """It is decided with what is known without waiting: over its limit, or by failure policy."""
    UNANSWERED = 2
    """Its caller is about to give up, or has given up."""


class Backlog:
    """How far behind one connection's calls are; each has its own, so that others do not suffer."""

    __slots__ = ("_fate", "behind", "timeout_us")

    def __init__(self) -> None:
        self._fate = Fate.COUNTED
        self.behind = False
        """Whether the last calls could not be counted."""
        self.timeout_us: int | None = None
        """How long the last callers wait."""

    def fate(self, waited_us: int, timeout_us: int | None) -> Fate:
        """What becomes of the next calls, which have waited so long, of callers that wait so long.

        `timeout_us` is None for callers that do not say; these are always answered.
        """
        patience_us = PATIENCE_US if timeout_us is None else timeout_us
        fate = Fate.COUNTED
        if waited_us * 10 > patience_us:
            if waited_us * 4 > patience_us * 3:
                fate = Fate.UNANSWERED
            elif waited_us * 10 > patience_us * 3:
                fate = Fate.HURRIED
            fate = max(fate, self._fate)
        self._fate = fate
        self.behind = fate is not Fate.COUNTED
        self.timeout_us = timeout_us
        if fate is Fate.UNANSWERED and timeout_us is None:
            return Fate.HURRIED
        return fate


class Haste:
    """What a connection may do by itself with calls that there is no time for.

    That is for calls of one path, of callers that wait for `timeout_us`. `answers` are those at
    hand by the calls' messages; `unanswered` says that there is not even time for these.
    """

    __slots__ = ("answers", "left", "path", "timeout_us", "unanswered")

    def __init__(self, path: bytes) -> None:
        self.path = path
        self.timeout_us: int | None = None
        self.answers: dict[bytes, Ready] = {}
        self.unanswered = False
        self.left = 0
        """Calls that were left unanswered."""


class Overload:
    """Whether this process has more calls than time: in health as `overloaded`, and in metrics."""

    def __init__(self, counters: Counters, health: Health) -> None:
        self._counters = counters
        self._health = health
        self._noted_us = 0

    def note(self, fate: Fate, calls: int) -> None:
        """So many calls could not be counted, since there was no time for them."""
        if not calls:
            return
        self._counters.overloaded[_NAMES[fate]] += calls
        self._noted_us = elapsed_us()
        self._health.degrade(
            "overloaded",
            "there are more calls than this process has time for: those that waited too long are "
            "not counted but decided by failure policy, or not answered before their callers give "
            "up; add cores (--workers) or instances",
        )

    def look(self) -> None:
        """Notices that it is over; to be called about once a second."""
        if self._noted_us and elapsed_us() - self._noted_us > _CALM_US:
            self._noted_us = 0
            self._health.recover("overloaded")


_NAMES: Final = ("counted", "hurried", "unanswered")
