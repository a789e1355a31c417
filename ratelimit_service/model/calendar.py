"""Where windows begin: by the clock, or by a calendar's days, weeks, months and years.

Pure arithmetic on dates; the zone's rules come from the time zone database (`zoneinfo`).
"""

from __future__ import annotations

import datetime
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

from ratelimit_service.model.unit import SECOND_US, Unit

__all__ = ["WEEKDAYS", "Anchor", "Calendar", "Periods", "zone"]

WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")

_MONTHS = 12
_WEEK_DAYS = 7


class Anchor(StrEnum):
    """Where windows begin, if not on a calendar."""

    CLOCK = "clock"
    """At the multiples of their length since the Unix epoch."""
    FIRST_HIT = "first_hit"
    """At the first hit after the one before is over."""


class Periods(NamedTuple):
    """Three periods in a row: before this one, this one, and after it.

    `number` is this one's. `starts_us` are the moments at which they begin, and the end of the
    last.
    """

    number: int
    starts_us: tuple[int, int, int, int]

    def at(self, now_us: int) -> tuple[int, int, int, int]:
        """The period at `now_us`, or the nearest of the three.

        It returns the period's number, start and end, and the end of the next one. If that is not
        known, the next one is taken to be as long. A moment after all three belongs to the last
        one, which then does not end. Only a clock that is far off asks for such a moment. To count
        in a period that is over denies too much; to count in none would admit everything.
        """
        first, this, following, end = self.starts_us
        if now_us < this:
            return self.number - 1, first, this, following
        if now_us < following:
            return self.number, this, following, end
        last = end if now_us < end else now_us + end - following
        return self.number + 1, following, last, last + end - following


class Calendar(NamedTuple):
    """Periods of a unit (day, week, month or year) in a zone of the time zone database.

    A period begins at the first moment of its first day, which is midnight unless the zone
    skips it. `week_start` is a day of the week, Monday being 0.
    """

    unit: Unit
    time_zone: str = "UTC"
    week_start: int = 0

    def periods(self, now_us: int) -> Periods:
        """The periods around a moment. Raises ZoneInfoNotFoundError for an unknown zone."""
        known = _recent.get(self)
        if known is None or not known.starts_us[1] <= now_us < known.starts_us[2]:
            if len(_recent) > _MAX_RECENT:
                _recent.clear()
            known = _recent[self] = self._periods(now_us)
        return known

    def _periods(self, now_us: int) -> Periods:
        moment = datetime.datetime.fromtimestamp(now_us // SECOND_US, zone(self.time_zone))
        number = self._number(moment.date())
        starts = [self._start_us(number + step) for step in (-1, 0, 1, 2)]
        return Periods(number, (starts[0], starts[1], starts[2], starts[3]))

    def _number(self, day: datetime.date) -> int:
        """The period of a day, counted from the year 1."""
        if self.unit is Unit.DAY:
            return day.toordinal()
        if self.unit is Unit.WEEK:
            return (day.toordinal() - 1 - self.week_start) // _WEEK_DAYS
        if self.unit is Unit.MONTH:
            return day.year * _MONTHS + day.month - 1
        return day.year

    def _start_us(self, number: int) -> int:
        if self.unit is Unit.DAY:
            day = datetime.date.fromordinal(number)
        elif self.unit is Unit.WEEK:
            day = datetime.date.fromordinal(number * _WEEK_DAYS + 1 + self.week_start)
        elif self.unit is Unit.MONTH:
            day = datetime.date(number // _MONTHS, number % _MONTHS + 1, 1)
        else:
            day = datetime.date(number, 1, 1)
        # A midnight that a zone skips is read with the offset before it: the moment of the skip.
        # One that comes twice is the first.
        midnight = datetime.datetime.combine(day, datetime.time(), zone(self.time_zone))
        return int(midnight.timestamp()) * SECOND_US


@lru_cache(maxsize=1024)
def zone(name: str) -> datetime.tzinfo:
    """The time zone of a name. Raises ZoneInfoNotFoundError if there is none."""
    return ZoneInfo(name)


_MAX_RECENT = 4_096
_recent: dict[Calendar, Periods] = {}
"""The periods last asked for: they hold for hours at least."""
