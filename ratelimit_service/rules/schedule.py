"""The keys `when` of a limit and `valid_until` of a descriptor: from YAML to times."""

from __future__ import annotations

import datetime
import re
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo, available_timezones

from ratelimit_service.model import DAY_MINUTES, DAYS, WEEKDAYS, Schedule
from ratelimit_service.rules.language import WHEN_KEYS
from ratelimit_service.rules.problem import did_you_mean, quoted

if TYPE_CHECKING:
    from ratelimit_service.rules.fields import Fields

__all__ = ["read_schedule", "read_time_zone", "read_valid_until"]

_CLOCK: Final = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])|24:00")


def read_schedule(fields: Fields) -> Schedule | None:
    """The times at which a limit holds; None for always."""
    if not fields.given("when"):
        return None
    inside = fields.mapping("when", WHEN_KEYS)
    if not inside.readable:
        return None
    if not any(inside.given(name) for name in ("days", "from", "to")):
        message = "when is empty: write days, from or to, as in {from: '08:00', to: '18:00'}"
        fields.report("when", message, key="when")
    begin = _minute(inside, "from", 0)
    end = _minute(inside, "to", DAY_MINUTES)
    return Schedule(_days(inside), begin % DAY_MINUTES, end, read_time_zone(inside))


def _days(fields: Fields) -> int:
    if not fields.given("days"):
        return Schedule().days
    days = 0
    if fields.node("days").value == []:
        fields.report("when", "days is empty: write some, as [mon-fri]", value="days")
    for text, node in fields.one_or_more("days"):
        first, dash, last = text.lower().partition("-")
        names = [_day(first), _day(last if dash else first)]
        if None in names:
            message = f"days {quoted(text)} is none: write {', '.join(DAYS)}, or a range as mon-fri"
            fields.report_at(node, "when", message)
            continue
        day, end = (0 if each is None else each for each in names)
        days |= 1 << end
        while day != end:
            days |= 1 << day
            day = (day + 1) % len(DAYS)
    return days or Schedule().days


def _day(text: str) -> int | None:
    for number, (short, full) in enumerate(zip(DAYS, WEEKDAYS, strict=True)):
        if text in {short, full}:
            return number
    return None


def _minute(fields: Fields, name: str, default: int) -> int:
    if not fields.given(name):
        return default
    text = fields.text(name)
    if not _CLOCK.fullmatch(text) or (name == "from" and text == "24:00"):
        message = f"{name} {quoted(text)} is no time of day: write hours and minutes, as '08:00'"
        fields.report("when", message, value=name)
        return default
    hours, _, minutes = text.partition(":")
    return int(hours) * 60 + int(minutes)


def read_time_zone(fields: Fields) -> str:
    """A name of the time zone database; UTC if none is given."""
    name = fields.text("time_zone") or "UTC"
    try:
        ZoneInfo(name)
    except (LookupError, ValueError, OSError):  # a directory of the database is an OSError
        hint = did_you_mean(name, available_timezones())
        message = f"time_zone {quoted(name)} is unknown: write a name such as Europe/Berlin{hint}"
        fields.report("time_zone", message, value="time_zone")
        return "UTC"
    return name


def read_valid_until(fields: Fields) -> int | None:
    """The minute from the Unix epoch in which a descriptor holds no more; None for never."""
    if not fields.given("valid_until"):
        return None
    text = fields.text("valid_until")
    try:
        moment = datetime.datetime.fromisoformat(text)
        whole = moment.tzinfo is not None and not moment.second and not moment.microsecond
        moment = moment.astimezone(datetime.UTC)
    except (ValueError, OverflowError):  # OverflowError: beyond the year 9999, or before 1
        whole = False
    if not whole or moment.second or moment.microsecond:  # an offset can have seconds
        message = (
            f"valid_until {quoted(text)} is no moment: write date, time of day to the minute, and "
            "offset, as 2027-01-31T18:00+01:00"
        )
        fields.report("valid_until", message, value="valid_until")
        return None
    since = moment - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return since // datetime.timedelta(minutes=1)
