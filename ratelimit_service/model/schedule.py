"""Times of a week at which something holds, by the clocks of a time zone, to the minute."""

from __future__ import annotations

import datetime
from typing import Final, NamedTuple

from ratelimit_service.model.calendar import zone
from ratelimit_service.model.unit import SECOND_US

__all__ = ["DAYS", "DAY_MINUTES", "MINUTE_US", "Schedule"]

DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY_MINUTES: Final = 1_440
MINUTE_US: Final = 60 * SECOND_US

_EVERY_DAY: Final = (1 << len(DAYS)) - 1


class Schedule(NamedTuple):
    """From one time of day to another, on some days of the week.

    `days` has a bit for each day, the lowest for Monday. `begin` and `end` are minutes of the day.
    Where the end is not after the beginning it is on the next day; the day is then the one on which
    it begins. A time that clocks show twice counts twice, one that they skip not at all.
    """

    days: int = _EVERY_DAY
    begin: int = 0
    end: int = DAY_MINUTES
    time_zone: str = "UTC"

    def holds(self, minute: int) -> bool:
        """Whether it holds in a minute, counted from the Unix epoch."""
        now = datetime.datetime.fromtimestamp(minute * 60, zone(self.time_zone))
        today = now.weekday()
        at = now.hour * 60 + now.minute
        if self.begin < self.end:
            return self.begin <= at < self.end and bool(self.days >> today & 1)
        if at >= self.begin and self.days >> today & 1:
            return True
        return at < self.end and bool(self.days >> (today - 1) % 7 & 1)

    @property
    def always(self) -> bool:
        """Whether it holds at all times."""
        return self.days == _EVERY_DAY and self.begin == self.end % DAY_MINUTES

    @property
    def key(self) -> str:
        """What stands for it in the key of a counter."""
        return f"{self.days:x},{self.begin},{self.end},{self.time_zone}"
