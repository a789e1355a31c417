"""When rules that depend on the time come to hold, and when they end.

What must not live here: how a snapshot is looked at in a minute (`moment`).
"""

from __future__ import annotations

from collections.abc import Iterable

from ratelimit_service.model import Limit, Schedule

__all__ = ["Times"]

_MOST_TIMES = 1_000
"""Where more times matter, other rules may hold in any minute."""


class Times:
    """The times at which other rules hold than before."""

    def __init__(self) -> None:
        self._schedules: dict[Schedule, None] = {}
        self._ends: dict[int, None] = {}

    def __bool__(self) -> bool:
        return bool(self._schedules or self._ends)

    def add(self, valid_until: int | None, limits: Iterable[Limit]) -> None:
        """Adds those of a node, by the minute in which it ends, and the limits of its rule."""
        if valid_until is not None:
            self._ends[valid_until] = None
        for limit in limits:
            if limit.schedule is not None:
                self._schedules[limit.schedule] = None

    def merge(self, other: Times) -> None:
        """Adds those of another domain."""
        self._schedules |= other._schedules
        self._ends |= other._ends

    def phase(self, minute: int) -> object:
        """What tells one minute from another in which other rules hold."""
        if len(self._schedules) + len(self._ends) > _MOST_TIMES:
            return minute
        held = tuple(schedule.holds(minute) for schedule in self._schedules)
        return held, sum(end <= minute for end in self._ends)
