"""The fields of `rate_limit`, and of each item of `rate_limits`: from YAML to a limit.

What has no meaning together is a problem that says what to use instead. What stands around a
limit is `schema`'s business.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple
from zoneinfo import ZoneInfo, available_timezones

from ratelimit_service.algorithms import ALGORITHMS, MAX_HITS, MAX_LEASES
from ratelimit_service.model import (
    BUCKETS,
    MAX_ADDEND,
    MAX_EXACT,
    SECOND_US,
    WEEKDAYS,
    Anchor,
    Calendar,
    Limit,
    Unit,
)
from ratelimit_service.rules.problem import did_you_mean, quoted
from ratelimit_service.rules.reader import Fields, listed

__all__ = ["LIMIT_KEYS", "limit_name", "read_limit"]

LIMIT_KEYS = (
    "unit",
    "unit_multiplier",
    "requests_per_unit",
    "unlimited",
    "name",
    "replaces",
    "algorithm",
    "count_denied",
    "failure_policy",
    "window",
    "per",
    "time_zone",
    "week_start",
    "anchor",
    "burst",
    "refill",
    "buckets",
    "max_wait",
    "soft",
)

_OF_NO_LIMIT = ("unlimited", "name", "replaces", "failure_policy")
"""Keys that mean something where there is no limit; the others do not."""

_UNITS = {unit.name.lower(): unit for unit in Unit}
_CALENDAR_UNITS = ("day", "week", "month", "year")
_UNSAFE_IN_NAME = re.compile(r'[^\x20-\x7e]|["\\]')
_WINDOW = re.compile(r"(\d{1,12})([smhdw])")
_WAIT = re.compile(r"(\d{1,12})(ms|[smhdw])")
_LETTERS_US = {
    "ms": 1_000,
    "s": SECOND_US,
    "m": 60 * SECOND_US,
    "h": 3_600 * SECOND_US,
    "d": 86_400 * SECOND_US,
    "w": 604_800 * SECOND_US,
}
_PERCENT = re.compile(r"(\d{1,3})(?:\.(\d{1,4}))?%")
_MOST_BUCKETS = 360

_ONLY_FOR = {
    "per": ("fixed_window",),
    "anchor": ("fixed_window",),
    "burst": BUCKETS,
    "refill": ("token_bucket",),
    "buckets": ("sliding_window",),
    "max_wait": ("leaky_bucket",),
    "count_denied": ("fixed_window", "sliding_window", "sliding_log"),
}
"""Keys that mean something for some algorithms only."""

_INSTEAD = {
    "per": "calendar periods are counted by fixed_window",
    "anchor": "a sliding window or a bucket has no beginning",
    "burst": "the others hold requests_per_unit",
    "refill": "to refill at once use token_bucket",
    "buckets": "sub-counters belong to sliding_window",
    "max_wait": "to delay hits use leaky_bucket",
    "count_denied": "a bucket or a lease takes only what has room; for budgets that are charged "
    "afterwards use fixed_window",
}


class _Window(NamedTuple):
    unit: Unit
    multiplier: int


def limit_name(fields: Fields) -> str:
    """A limit's name as callers see it."""
    name = fields.text("name")
    shown = _UNSAFE_IN_NAME.sub("_", name)
    if shown != name:
        fields.report(
            "name",
            "name is shown in headers: use printable ASCII without quotes and backslashes; "
            f"callers see {quoted(shown)}",
            value="name",
            tolerated=True,
        )
    return shown


def read_limit(fields: Fields, around: Fields, key: str | None) -> Limit | None:
    """Reads a limit; None if it is unlimited.

    What is missing is reported at `key` of the mapping `around`, or else at the limit itself.
    """

    def missing(kind: str, message: str, *, tolerated: bool = False) -> None:
        if key is None:
            fields.report(kind, message, tolerated=tolerated)
        else:
            around.report(kind, message, key=key, tolerated=tolerated)

    if fields.switch("unlimited"):
        _check_unlimited(fields)
        return None
    algorithm = fields.one_of("algorithm", ALGORITHMS, "fixed_window")
    if not fields.given("algorithm") or algorithm == fields.raw("algorithm").lower():
        _check_algorithm(fields, algorithm)
    if not fields.given("unit") and not fields.given("window"):
        missing("unit", f"unit is missing: allowed are {listed(_UNITS)}; or window, as in 90s")
    if not fields.given("requests_per_unit"):
        missing(
            "requests_per_unit",
            "requests_per_unit is missing, which denies everything: write a number from 0 to "
            f"{MAX_ADDEND}, or unlimited: true",
            tolerated=True,
        )
    window = _window(fields)
    limit = Limit(
        fields.number("requests_per_unit", 0),
        window.unit,
        window.multiplier,
        limit_name(fields),
        algorithm,
        _anchor(fields, window),
        fields.number("burst", 1) if fields.given("burst") else None,
        fields.one_of("refill", ("continuous", "stepped"), "continuous") == "stepped",
        fields.number("buckets", 2, _MOST_BUCKETS) if fields.given("buckets") else 0,
        _max_wait_us(fields),
        _soft_ppm(fields),
        fields.switch("count_denied"),
    )
    _check_numbers(fields, limit)
    return limit


def _check_unlimited(fields: Fields) -> None:
    for name in LIMIT_KEYS:
        if name in fields and name not in _OF_NO_LIMIT:
            misspelt = name == "unit" and fields.raw(name).lower() not in _UNITS
            fields.report(
                "unlimited",
                f"{name} and unlimited: true exclude each other: remove one",
                key=name,
                tolerated=misspelt or name == "requests_per_unit",
            )


def _check_algorithm(fields: Fields, algorithm: str) -> None:
    for name, algorithms in _ONLY_FOR.items():
        if fields.given(name) and algorithm not in algorithms:
            fields.report(
                name,
                f"{name} means nothing with {algorithm}, only with {listed(algorithms)}: "
                f"{_INSTEAD[name]}",
                key=name,
            )


def _window(fields: Fields) -> _Window:
    if not fields.given("window"):
        unit = _UNITS[fields.one_of("unit", _UNITS, "second")]
        multiplier = fields.number("unit_multiplier", 1)
        if unit * multiplier * SECOND_US >= MAX_EXACT:
            message = (
                f"a window of {multiplier} {unit.name.lower()}s is too long: at most 285 years"
            )
            fields.report("unit_multiplier", message, value="unit_multiplier")
        return _Window(unit, multiplier)
    for name in ("unit", "unit_multiplier"):
        if fields.given(name):
            fields.report("window", f"{name} and window exclude each other: remove one", key=name)
    length_us = _length_us(fields.text("window"), _WINDOW)
    if not length_us:
        fields.report(
            "window",
            f"window {quoted(fields.raw('window'))} is none: write a number above 0 with s, m, h, "
            "d or w, as in 90s, at most 285 years",
            value="window",
        )
        return _Window(Unit.SECOND, 1)
    seconds = length_us // SECOND_US
    unit = max(unit for unit in Unit if seconds % unit == 0)
    return _Window(unit, seconds // unit)


def _length_us(text: str, pattern: re.Pattern[str]) -> int:
    """A length of time in microseconds; 0 if it is none, or too long to be exact."""
    found = pattern.fullmatch(text)
    length_us = int(found[1]) * _LETTERS_US[found[2]] if found else 0
    return length_us if length_us < MAX_EXACT else 0


def _anchor(fields: Fields, window: _Window) -> Anchor | Calendar:
    anchor = Anchor(fields.one_of("anchor", list(map(str, Anchor)), Anchor.CLOCK))
    if not fields.given("per"):
        for name in ("time_zone", "week_start"):
            if fields.given(name):
                fields.report(name, f"{name} means nothing without per: calendar", key=name)
        return anchor
    fields.one_of("per", ("calendar",), "calendar")
    for name in ("anchor", "window", "unit_multiplier"):
        if fields.given(name):
            fields.report(
                "per", f"{name} and per: calendar exclude each other: remove one", key=name
            )
    unit = window.unit.name.lower()
    if unit not in _CALENDAR_UNITS and fields.given("unit"):
        message = f"per: calendar needs a unit of {listed(_CALENDAR_UNITS)}, not {unit}"
        fields.report("per", message, value="unit")
    if fields.given("week_start") and unit != "week":
        message = "week_start means nothing without unit: week"
        fields.report("week_start", message, key="week_start")
    weekday = WEEKDAYS.index(fields.one_of("week_start", WEEKDAYS, "monday"))
    return Calendar(window.unit, _time_zone(fields), weekday if unit == "week" else 0)


def _time_zone(fields: Fields) -> str:
    name = fields.text("time_zone") or "UTC"
    try:
        ZoneInfo(name)
    except (LookupError, ValueError, OSError):  # a directory of the database is an OSError
        hint = did_you_mean(name, available_timezones())
        message = f"time_zone {quoted(name)} is unknown: write a name such as Europe/Berlin{hint}"
        fields.report("time_zone", message, value="time_zone")
        return "UTC"
    return name


def _max_wait_us(fields: Fields) -> int:
    if not fields.given("max_wait"):
        return 0
    wait_us = _length_us(fields.text("max_wait"), _WAIT)
    if not wait_us:
        fields.report(
            "max_wait",
            f"max_wait {quoted(fields.raw('max_wait'))} is none: write a number above 0 with ms, "
            "s, m, h, d or w, as in 500ms",
            value="max_wait",
        )
    return wait_us


def _soft_ppm(fields: Fields) -> int:
    if not fields.given("soft"):
        return 0
    found = _PERCENT.fullmatch(fields.text("soft"))
    ppm = int(found[1]) * 10_000 + int((found[2] or "").ljust(4, "0")) if found else 0
    if not 0 < ppm <= 1_000_000:
        text = quoted(fields.raw("soft"))
        message = f"soft {text} is none: write a part of the limit up to 100%, as 10%"
        fields.report("soft", message, value="soft")
        return 0
    return ppm


def _check_numbers(fields: Fields, limit: Limit) -> None:
    for kind, message, key in _contradictions(limit):
        fields.report(kind, message, key=key if key in fields else None)
    if limit.soft_ppm and limit.capacity and not limit.soft:
        least = -(-1_000_000 // limit.capacity) / 10_000
        message = f"soft comes to less than one of {limit.capacity} hits: {least:g}% would be one"
        fields.report("soft", message, key="soft", hint=True)
    if limit.max_wait_us and limit.capacity and limit.algorithm == "leaky_bucket":
        fields.report(
            "max_wait",
            "Envoy does not wait: to it this queue is a meter with a burst of "
            f"{limit.capacity}; callers that can wait find the delay in x-ratelimit-delay-ms",
            key="max_wait",
            hint=True,
        )


def _contradictions(limit: Limit) -> Iterator[tuple[str, str, str]]:
    hard = limit.capacity + limit.soft
    if limit.max_wait_us and limit.algorithm == "leaky_bucket":
        if limit.burst is not None:
            yield (
                "max_wait",
                "burst and max_wait exclude each other: max_wait is the burst",
                "burst",
            )
        if limit.soft_ppm:
            yield "soft", "soft and max_wait exclude each other: raise max_wait", "soft"
        if limit.requests_per_unit and not limit.capacity:
            most = -(-limit.window_us // limit.requests_per_unit // 1_000)
            message = f"max_wait is shorter than one hit takes: write at least {most}ms"
            yield "max_wait", message, "max_wait"
    if limit.burst is not None and not limit.requests_per_unit:
        message = "a burst needs requests_per_unit above 0, or it never comes back"
        yield "burst", message, "burst"
    if hard > MAX_ADDEND:
        key = "max_wait" if limit.max_wait_us else "soft"
        yield key, f"the limit comes to {hard} hits with this: at most {MAX_ADDEND}", key
    elif limit.algorithm == "sliding_log" and hard > MAX_HITS:
        message = (
            f"sliding_log keeps every hit, at most {MAX_HITS}: for more use sliding_window with "
            "buckets, which never admits more either"
        )
        yield "sliding_log", message, "requests_per_unit"
    elif limit.algorithm == "concurrency" and hard > MAX_LEASES:
        message = f"concurrency keeps every lease, at most {MAX_LEASES}"
        yield "concurrency", message, "requests_per_unit"
