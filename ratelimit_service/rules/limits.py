"""The fields of `rate_limit`, and of each item of `rate_limits`: from YAML to a limit.

Which keys there are is declared in `language`, or by the algorithms to which they mean something;
here stands how each kind of value is read. What has no meaning together is a problem
that says what to use instead. What stands around a limit is `schema`'s business.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from ratelimit_service.algorithms import (
    ALGORITHMS,
    DEFAULT,
    PARAMETERS,
    capacity_of,
    soft_of,
    with_parameter,
)
from ratelimit_service.model import (
    MAX_ADDEND,
    MAX_EXACT,
    SECOND_US,
    Algorithm,
    Anchor,
    Calendar,
    Contradiction,
    Denied,
    Limit,
    Parameter,
    Takes,
    Unit,
)
from ratelimit_service.rules.fields import Fields
from ratelimit_service.rules.grouping import read_grouping
from ratelimit_service.rules.language import (
    DURATION,
    LIMIT_KEYS,
    MAX_NAME,
    PERCENT,
    SYNCS,
    UNITS,
    WINDOW,
)
from ratelimit_service.rules.problem import listed, quoted
from ratelimit_service.rules.reservations import read_reservations
from ratelimit_service.rules.schedule import read_schedule, read_time_zone

__all__ = ["limit_name", "read_limit"]

_OF_NO_LIMIT = ("unlimited", "name", "replaces", "failure_policy")
"""Keys that mean something where there is no limit; the others do not."""

_CALENDAR_UNITS = ("day", "week", "month", "year")
_UNSAFE_IN_NAME = re.compile(r'[^\x20-\x7e]|["\\]')
_LETTERS_US = {
    "ms": 1_000,
    "s": SECOND_US,
    "m": 60 * SECOND_US,
    "h": 3_600 * SECOND_US,
    "d": 86_400 * SECOND_US,
    "w": 604_800 * SECOND_US,
}

_INSTEAD_OF_COUNT_DENIED = (
    "a bucket or a lease takes only what has room; for budgets that are charged "
    "afterwards use fixed_window"
)


class _Length(NamedTuple):
    unit: Unit
    multiplier: int


def limit_name(fields: Fields) -> str:
    """A limit's name as callers see it."""
    name = fields.text("name", most=MAX_NAME)
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


def read_limit(
    fields: Fields, around: Fields, key: str | None, *, reserves: bool = False
) -> Limit | None:
    """Reads a limit; None if it is unlimited.

    What is missing is reported at `key` of the mapping `around`, or else at the limit itself. In a
    file that `reserves` limits take reservations unless they say otherwise.
    """

    def missing(kind: str, message: str, *, tolerated: bool = False) -> None:
        if key is None:
            fields.report(kind, message, tolerated=tolerated)
        else:
            around.report(kind, message, key=key, tolerated=tolerated)

    if fields.switch("unlimited"):
        _check_unlimited(fields)
        return None
    algorithm = ALGORITHMS[fields.one_of("algorithm", ALGORITHMS, DEFAULT.name)]
    if not fields.given("algorithm") or algorithm.name == fields.raw("algorithm").lower():
        _check_algorithm(fields, algorithm)
    if not any(fields.given(name) or fields.misspelt(name) for name in ("unit", "window")):
        missing("unit", f"unit is missing: allowed are {listed(UNITS)}; or window, as in 90s")
    if not fields.given("requests_per_unit") and not fields.misspelt("requests_per_unit"):
        missing(
            "requests_per_unit",
            "requests_per_unit is missing, which denies everything: write a number from 0 to "
            f"{MAX_ADDEND}, or unlimited: true",
            tolerated=True,
        )
    window = _window(fields)
    values = {name: _value(fields, parameter) for name, parameter in PARAMETERS.items()}
    limit = Limit(
        fields.number("requests_per_unit", 0),
        window.unit,
        window.multiplier,
        limit_name(fields),
        algorithm.name,
        _anchor(fields, window),
        soft_ppm=_ppm(fields, "soft"),
        count_denied=fields.switch("count_denied"),
        own=tuple(
            values[parameter.name] for parameter in algorithm.parameters if not parameter.field
        ),
        grouping=read_grouping(fields),
        schedule=read_schedule(fields),
        pool=fields.text("pool", most=MAX_NAME),
        count_by=_count_by(fields),
        advances=fields.one_of("sync", SYNCS, SYNCS[0]) == "leased",
    )
    limit = limit._replace(**_in_fields(algorithm, values))
    most_ppm, ttl_us = _ppm(fields, "max_reservation"), _length(fields, "max_reservation_ttl")
    limit = limit._replace(
        reservations=read_reservations(fields, limit, most_ppm, ttl_us, every=reserves)
    )
    _check_numbers(fields, limit)
    return _within_reserve(fields, limit)


def _count_by(fields: Fields) -> tuple[str, ...]:
    """The keys of the entries that tell counters apart; none for all of them."""
    if not fields.given("count_by"):
        return ()
    keys = fields.texts("count_by")
    if not keys:
        fields.report("count_by", "count_by is a list of keys, as [org, team]", value="count_by")
    for name in ("group", "pool"):
        if fields.given(name):
            message = f"{name} and count_by exclude each other: remove one"
            fields.report("count_by", message, key=name)
    return tuple(dict.fromkeys(keys or ()))


def _value(fields: Fields, parameter: Parameter) -> int:
    """The value of a key; 0 if it is not given, or cannot be read, which is then reported."""
    name = parameter.name
    if not fields.given(name) or parameter.takes is Takes.ANCHOR:
        return 0
    if parameter.takes is Takes.NUMBER:
        return fields.number(name, parameter.least, parameter.most)
    if parameter.takes is Takes.WORD:
        words = parameter.words
        return words.index(fields.one_of(name, words, words[0]))
    return _length(fields, name)


def _length(fields: Fields, name: str) -> int:
    """A length of time in microseconds; 0 if it is not given, or is none, which is reported."""
    if not fields.given(name):
        return 0
    length_us = _length_us(fields.text(name), DURATION)
    if not length_us:
        fields.report(
            name,
            f"{name} {quoted(fields.raw(name))} is none: write a number above 0 with ms, "
            "s, m, h, d or w, as in 500ms",
            value=name,
        )
    return length_us


def _in_fields(algorithm: Algorithm, values: dict[str, int]) -> dict[str, Any]:
    """The values of an algorithm's parameters by the fields of `Limit` that keep them."""
    return {
        parameter.field: values[parameter.name] if parameter.takes is not Takes.WORD else True
        for parameter in algorithm.parameters
        if parameter.field and parameter.takes is not Takes.ANCHOR and values[parameter.name]
    }


def _check_unlimited(fields: Fields) -> None:
    for name in LIMIT_KEYS:
        if name in fields and name not in _OF_NO_LIMIT:
            misspelt = name == "unit" and fields.raw(name).lower() not in UNITS
            fields.report(
                "unlimited",
                f"{name} and unlimited: true exclude each other: remove one",
                key=name,
                tolerated=misspelt or name == "requests_per_unit",
            )


def _check_algorithm(fields: Fields, algorithm: Algorithm) -> None:
    """Reports the keys that mean nothing with this algorithm."""
    for parameter in PARAMETERS.values():
        if not (parameter.instead and fields.given(parameter.name)):
            continue  # the usual case: the look-up below takes long
        others = with_parameter(parameter.name)
        if algorithm not in others:
            _check_meaning(fields, parameter.name, algorithm, others, parameter.instead)
    counting = [other for other in ALGORITHMS.values() if other.denied >= Denied.COUNTED]
    if algorithm not in counting:
        _check_meaning(fields, "count_denied", algorithm, counting, _INSTEAD_OF_COUNT_DENIED)


def _check_meaning(
    fields: Fields, name: str, algorithm: Algorithm, others: Iterable[Algorithm], instead: str
) -> None:
    if fields.given(name):
        names = listed(other.name for other in others)
        message = f"{name} means nothing with {algorithm.name}, only with {names}: {instead}"
        fields.report(name, message, key=name)


def _window(fields: Fields) -> _Length:
    if not fields.given("window"):
        if _length_us(length := fields.raw("unit"), WINDOW):
            fields.report("unit", f"unit is a word: write window: {length} instead", value="unit")
            return _Length(Unit.SECOND, 1)
        unit = UNITS[fields.one_of("unit", UNITS, "second")]
        multiplier = fields.number("unit_multiplier", 1)
        if unit * multiplier * SECOND_US >= MAX_EXACT:
            message = (
                f"a window of {multiplier} {unit.name.lower()}s is too long: at most 285 years"
            )
            fields.report("unit_multiplier", message, value="unit_multiplier")
        return _Length(unit, multiplier)
    for name in ("unit", "unit_multiplier"):
        if fields.given(name):
            fields.report("window", f"{name} and window exclude each other: remove one", key=name)
    length_us = _length_us(fields.text("window"), WINDOW)
    if not length_us:
        fields.report(
            "window",
            f"window {quoted(fields.raw('window'))} is none: write a number above 0 with s, m, h, "
            "d or w, as in 90s, at most 285 years",
            value="window",
        )
        return _Length(Unit.SECOND, 1)
    seconds = length_us // SECOND_US
    unit = max(unit for unit in Unit if seconds % unit == 0)
    return _Length(unit, seconds // unit)


def _length_us(text: str, pattern: re.Pattern[str]) -> int:
    """A length of time in microseconds; 0 if it is none, or too long to be exact."""
    parsed = pattern.fullmatch(text)
    length_us = int(parsed[1]) * _LETTERS_US[parsed[2]] if parsed else 0
    return length_us if length_us < MAX_EXACT else 0


def _anchor(fields: Fields, window: _Length) -> Anchor | Calendar:
    anchor = Anchor(_word(fields, "anchor"))
    if not fields.given("per"):
        for name, parameter in PARAMETERS.items():
            if parameter.beside == "per" and fields.given(name):
                fields.report(name, f"{name} means nothing without per: calendar", key=name)
        return anchor
    _word(fields, "per")
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
    weekday = PARAMETERS["week_start"].words.index(_word(fields, "week_start"))
    return Calendar(window.unit, read_time_zone(fields), weekday if unit == "week" else 0)


def _word(fields: Fields, name: str) -> str:
    words = PARAMETERS[name].words
    return fields.one_of(name, words, words[0])


def _ppm(fields: Fields, name: str) -> int:
    """A part of the limit in millionths; 0 if it is not given, or is none, which is reported."""
    if not fields.given(name):
        return 0
    parsed = PERCENT.fullmatch(fields.text(name))
    ppm = int(parsed[1]) * 10_000 + int((parsed[2] or "").ljust(4, "0")) if parsed else 0
    if not 0 < ppm <= 1_000_000:
        text = quoted(fields.raw(name))
        whole = fields.raw(name)
        example = f"{whole}%" if re.fullmatch("[1-9][0-9]?|100", whole) else "10%"
        message = f"{name} {text} is none: write a part of the limit up to 100%, as {example}"
        fields.report(name, message, value=name)
        return 0
    return ppm


def _within_reserve(fields: Fields, limit: Limit) -> Limit:
    """The limit without what it leaves to the others of its pool."""
    ppm = _ppm(fields, "reserve")
    if fields.given("pool") and fields.given("group"):
        message = "group means nothing in a pool, which counts all callers together"
        fields.report("pool", message, key="group")
    if not fields.given("reserve"):
        return limit
    if not limit.pool:
        message = "reserve leaves a part of a shared limit to others: name it, as pool: fleet"
        fields.report("reserve", message, key="reserve")
    for name in ("soft", "max_wait"):
        if fields.given(name):
            message = f"{name} and reserve exclude each other: remove one"
            fields.report("reserve", message, key=name)
            return limit
    whole = capacity_of(limit)
    reserved = -(-whole * ppm // 1_000_000)
    if not ALGORITHMS[limit.algorithm].refills:
        return limit._replace(requests_per_unit=whole - reserved, reserved=reserved)
    if reserved > limit.requests_per_unit:
        message = (
            f"reserve comes to {reserved} hits: of a bucket at most what comes back in a window, "
            f"{limit.requests_per_unit}"
        )
        fields.report("reserve", message, key="reserve")
    return limit._replace(burst=whole - reserved, reserved=reserved)


def _why_exact(algorithm: Algorithm, limit: Limit) -> str:
    """Why a limit cannot be leased; empty if it can."""
    if algorithm.advance is None:
        return algorithm.exact_why or "leave sync out"
    if limit.buckets and limit.window_us // limit.buckets < SECOND_US:
        return (
            "a hit that is counted ahead is spent in its part of the window, and these parts are "
            "shorter than a second: write fewer buckets, or leave sync out"
        )
    return ""


def _check_numbers(fields: Fields, limit: Limit) -> None:
    for kind, message, key, hint in _contradictions(limit):
        fields.report(kind, message, key=key if key in fields else None, hint=hint)


def _contradictions(limit: Limit) -> Iterator[Contradiction]:
    algorithm, capacity, soft = ALGORITHMS[limit.algorithm], capacity_of(limit), soft_of(limit)
    yield from algorithm.contradictions(limit)
    if limit.advances and (why := _why_exact(algorithm, limit)):
        yield Contradiction("sync", f"sync: leased is not for {algorithm.name}: {why}", "sync")
    if limit.soft_ppm and capacity and not soft:
        least = -(-1_000_000 // capacity) / 10_000
        message = f"soft comes to less than one of {capacity} hits: {least:g}% would be one"
        yield Contradiction("soft", message, "soft", hint=True)
    hard = capacity + soft
    if hard > MAX_ADDEND:
        key = "max_wait" if limit.max_wait_us else "soft"
        message = f"the limit comes to {hard} hits with this: at most {MAX_ADDEND}"
        yield Contradiction(key, message, key)
    elif hard > algorithm.most:
        message = f"{algorithm.name} {algorithm.most_why}"
        yield Contradiction(algorithm.name, message, "requests_per_unit")
