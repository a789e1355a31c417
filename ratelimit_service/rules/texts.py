"""Limits, schedules and groupings in words.

Workers tell limits while they serve, so nothing may be imported here that they do not have already:
an import in the middle of serving keeps calls waiting.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator

from ratelimit_service.algorithms import ALGORITHMS, DEFAULT, soft_of, spec_of, value_of
from ratelimit_service.model import DAYS, Grouping, Limit, Schedule

__all__ = ["grouping_text", "limit_text", "moment_text", "schedule_text"]


def limit_text(limit: Limit) -> str:
    """A limit in words: `500 per 5 minutes, token_bucket, burst 900`."""
    words = [*_algorithm_words(limit)]
    if limit.soft_ppm:
        words.append(f"{soft_of(limit)} more with a warning")
    if limit.grouping is not None:
        words.append(f"addresses grouped by {grouping_text(limit.grouping)}")
    if limit.count_by:
        words.append(f"counted by {', '.join(limit.count_by)}")
    if limit.pool:
        words.append(f"of pool {limit.pool}")
    if limit.reserved:
        words.append(f"without the {limit.reserved} that are left to others")
    if limit.schedule is not None:
        words.append(f"only when {schedule_text(limit.schedule)}")
    if limit.count_denied:
        words.append("denied hits count")
    if limit.advances:
        spec = spec_of(limit)
        words.append(f"leased, at most {spec.limit} in one call" if spec.rate else "leased")
    if limit.reservations is not None:
        words.append("takes reservations")
    return ", ".join(words)


def _algorithm_words(limit: Limit) -> Iterator[str]:
    """Its number and window, and what its algorithm has to say."""
    unit = limit.unit.name.lower()
    per = unit if limit.multiplier == 1 else f"{limit.multiplier} {unit}s"
    algorithm = ALGORITHMS[limit.algorithm]
    if algorithm.leases:
        lives = per if limit.multiplier > 1 else f"1 {per}"
        yield f"{limit.requests_per_unit} at a time, a lease lives {lives}"
    else:
        yield f"{limit.requests_per_unit} per {per}"
        if algorithm is not DEFAULT:
            yield algorithm.name
    for parameter in algorithm.parameters:
        if phrase := parameter.phrase_for(limit, value_of(limit, parameter)):
            yield phrase


def grouping_text(grouping: Grouping) -> str:
    """As it is written: `{ipv4: 24, ipv6: 64}`; without the families that stay whole."""
    whole = Grouping()
    parts = [
        f"{name}: {length}"
        for name, length, most in zip(Grouping._fields, grouping, whole, strict=True)
        if length != most
    ]
    return f"{{{', '.join(parts)}}}" if parts else "{ipv4: 32, ipv6: 128}"


def schedule_text(schedule: Schedule) -> str:
    """As it is written: `{days: [mon, tue], from: 08:00, to: 18:00, time_zone: Europe/Berlin}`."""
    days = [name for number, name in enumerate(DAYS) if schedule.days >> number & 1]
    parts = [] if len(days) == len(DAYS) else [f"days: [{', '.join(days)}]"]
    parts.append(f"from: {_clock(schedule.begin)}, to: {_clock(schedule.end)}")
    return f"{{{', '.join(parts)}, time_zone: {schedule.time_zone}}}"


def _clock(minute: int) -> str:
    return f"{minute // 60:02}:{minute % 60:02}"


def moment_text(minute: int) -> str:
    """A minute from the Unix epoch, as it is written."""
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    moment = epoch + datetime.timedelta(minutes=minute)
    return moment.isoformat(timespec="minutes").replace("+00:00", "Z")
