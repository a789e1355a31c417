"""fixed_window: its ways to count, what each must answer, and what a counter may cost."""

from __future__ import annotations

from ratelimit_service.model import MAX_ADDEND, Anchor, Calendar, Limit, Unit
from tests.algorithms.asking import at, hit
from tests.algorithms.costs import PLENTY, Cost
from tests.stores.cases import DAY, HOUR, MINUTE, SECOND, Case, T, over
from tests.stores.cases import ok as passed

FIRST_HIT = Limit(5, Unit.MINUTE, anchor=Anchor.FIRST_HIT)
BERLIN_DAY = Limit(2, Unit.DAY, anchor=Calendar(Unit.DAY, "Europe/Berlin"))
UTC_MONTH = Limit(2, Unit.MONTH, anchor=Calendar(Unit.MONTH))
UTC_YEAR = Limit(2, Unit.YEAR, anchor=Calendar(Unit.YEAR))
MONDAY_WEEK = Limit(2, Unit.WEEK, anchor=Calendar(Unit.WEEK))
SUNDAY_WEEK = Limit(2, Unit.WEEK, anchor=Calendar(Unit.WEEK, week_start=6))

WAYS = [Limit(5, Unit.MINUTE), FIRST_HIT, UTC_MONTH]

WALKED = [
    *(Limit(number, Unit.MINUTE) for number in (0, 1, 5, 10, 10, 10, MAX_ADDEND)),
    *(FIRST_HIT._replace(requests_per_unit=number) for number in (4, 9)),
    *(UTC_MONTH._replace(requests_per_unit=number) for number in (3, 9_999)),
]

COSTS = {
    "fixed_window": Cost(PLENTY),
    "fixed_window, anchor: first_hit": Cost(f"{PLENTY}, anchor: first_hit"),
    "fixed_window, per: calendar": Cost(
        "unit: day, requests_per_unit: 200000000, per: calendar, time_zone: Europe/Berlin"
    ),
}

SPRING = 1_774_738_800 * SECOND
"""29 March 2026 in Berlin begins, which has 23 hours."""
AUTUMN = 1_792_879_200 * SECOND
"""25 October 2026 in Berlin begins, which has 25 hours."""
FEBRUARY_2028 = 1_832_976_000 * SECOND
"""1 February 2028 begins in UTC, a Tuesday."""

CASES = [
    Case(
        "a window that the first hit begins ends its length after it, to the microsecond",
        [
            at(T + 7, passed(5, 0, 0), hit(FIRST_HIT, 0)),
            at(T + 7, passed(1, 4), hit(FIRST_HIT, 4)),
            at(T + 8, passed(0, 1, MINUTE - 1), hit(FIRST_HIT)),
            at(T + MINUTE + 6, over(0, reset_us=1), hit(FIRST_HIT)),
            at(T + MINUTE + 7, passed(4), hit(FIRST_HIT)),
        ],
    ),
    Case(
        "a window that the first hit begins is refunded while it lives, and counts what is denied",
        [
            at(T, over(5, 6), hit(FIRST_HIT, 6, count_denied=True)),
            at(T, over(0), hit(FIRST_HIT, 0)),
            at(T, passed(2, 3), hit(FIRST_HIT, 3, refund=True)),
            at(T + MINUTE, passed(5, 0, 0), hit(FIRST_HIT, 3, refund=True)),
        ],
    ),
    Case(
        "a window whose hits are all given back is as one that has not begun",
        [
            at(T, passed(3, 2), hit(FIRST_HIT, 2)),
            at(T + SECOND, passed(5, 2, 0), hit(FIRST_HIT, 2, refund=True)),
            at(T + SECOND, passed(5, 0, 0), hit(FIRST_HIT, 0)),
            at(T + SECOND, passed(4), hit(FIRST_HIT)),
        ],
    ),
    Case(
        "a window that the first hit begins goes on when the clock steps back by less than it",
        [
            at(T, passed(0, 5), hit(FIRST_HIT, 5)),
            at(T - MINUTE + 1, over(0, reset_us=2 * MINUTE - 1), hit(FIRST_HIT)),
            at(T - MINUTE, passed(4), hit(FIRST_HIT)),
        ],
    ),
    Case(
        "a calendar's day has 23 hours when clocks go forward",
        [
            at(SPRING, passed(0, 2, 23 * HOUR), hit(BERLIN_DAY, 2)),
            at(SPRING + 23 * HOUR - 1, over(0, reset_us=1), hit(BERLIN_DAY)),
            at(SPRING + 23 * HOUR, passed(1, 1, DAY), hit(BERLIN_DAY)),
        ],
    ),
    Case(
        "a calendar's day has 25 hours when clocks go back",
        [
            at(AUTUMN, passed(0, 2, 25 * HOUR), hit(BERLIN_DAY, 2)),
            at(AUTUMN + 25 * HOUR - 1, over(0, reset_us=1), hit(BERLIN_DAY)),
            at(AUTUMN + 25 * HOUR, passed(1, 1, DAY), hit(BERLIN_DAY)),
        ],
    ),
    Case(
        "a calendar's February has 29 days in a leap year, and the year 366",
        [
            at(FEBRUARY_2028, passed(0, 2, 29 * DAY), hit(UTC_MONTH, 2)),
            at(FEBRUARY_2028 + 29 * DAY - 1, over(0, reset_us=1), hit(UTC_MONTH)),
            at(FEBRUARY_2028 + 29 * DAY, passed(1, 1, 31 * DAY), hit(UTC_MONTH)),
            at(FEBRUARY_2028 - 31 * DAY, passed(1, 1, 366 * DAY), hit(UTC_YEAR)),
        ],
    ),
    Case(
        "a calendar's week begins on the day that the rule names",
        [
            at(FEBRUARY_2028, passed(1, 1, 5 * DAY), hit(SUNDAY_WEEK)),
            at(FEBRUARY_2028, passed(1, 1, 6 * DAY), hit(MONDAY_WEEK)),
        ],
    ),
    Case(
        "a calendar's period goes on when the clock steps back into the one before",
        [
            at(FEBRUARY_2028, passed(0, 2, 29 * DAY), hit(UTC_MONTH, 2)),
            at(FEBRUARY_2028 - 1, over(0, reset_us=29 * DAY + 1), hit(UTC_MONTH)),
            at(FEBRUARY_2028, passed(2, 2, 29 * DAY), hit(UTC_MONTH, 2, refund=True)),
            at(FEBRUARY_2028 - 1, passed(1, 1, 1), hit(UTC_MONTH)),
        ],
    ),
]
