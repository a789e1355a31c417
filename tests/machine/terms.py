"""A limit as the documents tell of it, and the windows of the clock and of the calendar."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from zoneinfo import ZoneInfo

SECOND = 1_000_000
UNIT_SECONDS = {
    "second": 1,
    "minute": 60,
    "hour": 3_600,
    "day": 86_400,
    "week": 604_800,
    "month": 30 * 86_400,
    "year": 365 * 86_400,
}
"""`month` has 30 days, `year` 365."""

BUCKETS = ("token_bucket", "leaky_bucket")


@dataclass(frozen=True)
class Terms:
    """A limit as a rule file writes it."""

    requests_per_unit: int
    unit: str
    algorithm: str = "fixed_window"
    first_hit: bool = False
    time_zone: str = ""
    burst: int | None = None
    stepped: bool = False
    parts: int = 0
    max_wait_us: int = 0
    soft_percent: int = 0
    count_denied: bool = False
    name: str = ""
    share: int = 1
    """Of how many processes each gets its part."""
    units: int = 1
    """How many of its unit a window is long."""
    reservations: bool = False
    """Whether hits can be held beside it."""
    most_percent: int = 100
    """The part of it that one reservation may hold."""
    longest_us: int = 0
    """The longest that one may hold, if it says so."""
    charged_at_end: bool = False
    """Whether what is held counts on where nobody settles."""

    @property
    def window_us(self) -> int:
        return self.units * UNIT_SECONDS[self.unit] * SECOND

    @property
    def spans_us(self) -> tuple[int, int]:
        """The shortest and the longest that a window can be, which differ on a calendar only."""
        slack = {"day": 3_600, "week": 3_600, "month": 2 * 86_400, "year": 86_400}
        longer = slack[self.unit] * SECOND if self.time_zone else 0
        return self.window_us - longer, self.window_us + longer

    @property
    def capacity(self) -> int:
        """What `remaining` counts down from.

        "A bucket holds `burst` tokens (by default `requests_per_unit`)"; "With `max_wait` it is a
        queue: the bucket holds what leaks in that time".
        """
        if self.max_wait_us:
            return self.max_wait_us * self.requests_per_unit // self.window_us
        return self.requests_per_unit if self.burst is None else self.burst

    @property
    def soft(self) -> int:
        """`soft: 10%` lets a tenth more pass. "Buckets grow their burst, not their rate."."""
        return self.capacity * self.soft_percent // 100

    @property
    def hard(self) -> int:
        """The most hits; "where N processes count [...] the limit divided by N, rounded up"."""
        return -(-(self.capacity + self.soft) // self.share)

    @property
    def weighs(self) -> bool:
        """Whether hits of an earlier window count by a share, so that one given back is less."""
        return self.algorithm == "sliding_window" and not self.parts

    @property
    def rate(self) -> int:
        return -(-self.requests_per_unit // self.share)

    @property
    def identity(self) -> tuple[object, ...]:
        """What of it is part of a counter's name.

        "A counter is what it counts: [...] the window (with its anchor, calendar, zone and parts)
        and the algorithm. Neither the rule's place nor its numbers are part of it".
        """
        return self.algorithm, self.unit, self.first_hit, self.time_zone, self.parts, self.stepped


def period(terms: Terms, now: int) -> tuple[int, int]:
    """The window of the clock, or of the calendar, that a moment is in.

    "days, weeks, months or years as people have them, in a `time_zone`"; weeks begin on Monday.
    """
    if not terms.time_zone:
        start = now // terms.window_us * terms.window_us
        return start, start + terms.window_us
    zone = ZoneInfo(terms.time_zone)
    today = datetime.datetime.fromtimestamp(now // SECOND, zone).date()
    if terms.unit == "day":
        first, after = today, today + datetime.timedelta(days=1)
    elif terms.unit == "week":
        first = today - datetime.timedelta(days=today.weekday())
        after = first + datetime.timedelta(days=7)
    elif terms.unit == "month":
        first = today.replace(day=1)
        after = (first + datetime.timedelta(days=31)).replace(day=1)
    else:
        first, after = today.replace(month=1, day=1), datetime.date(today.year + 1, 1, 1)
    return _midnight(first, zone), _midnight(after, zone)


def _midnight(day: datetime.date, zone: ZoneInfo) -> int:
    moment = datetime.datetime.combine(day, datetime.time(), zone)
    return int(moment.timestamp()) * SECOND
