"""Every way to count, from a rule file to what is told of it."""

from __future__ import annotations

import pytest

from ratelimit_service.model import Anchor, Calendar, FailurePolicy, Limit, Reservations, Unit
from ratelimit_service.rules.dump import dump
from ratelimit_service.rules.schema import parse
from ratelimit_service.rules.texts import limit_text
from ratelimit_service.rules.tree import Domain, Level, Snapshot

CASES = [
    (
        "{unit: day, requests_per_unit: 9, reservations: true, max_reservation: 50%, "
        "max_reservation_ttl: 2m, on_expiry: charge}",
        Limit(9, Unit.DAY, reservations=Reservations(500_000, 120_000_000, charged=True)),
        "9 per day, takes reservations",
        "algorithm: fixed_window, reservations: true, max_reservation: 50%, "
        "max_reservation_ttl: 2m, on_expiry: charge",
    ),
    (
        "{window: 90s, requests_per_unit: 2, anchor: first_hit}",
        Limit(2, Unit.SECOND, 90, anchor=Anchor.FIRST_HIT),
        "2 per 90 seconds, from the first hit",
        "unit_multiplier: 90, algorithm: fixed_window, anchor: first_hit",
    ),
    (
        "{unit: week, requests_per_unit: 2, per: calendar, time_zone: Asia/Tokyo, "
        "week_start: Sunday, soft: 50%}",
        Limit(2, Unit.WEEK, anchor=Calendar(Unit.WEEK, "Asia/Tokyo", 6), soft_ppm=500_000),
        "2 per week, by the calendar of Asia/Tokyo from sunday, 1 more with a warning",
        "algorithm: fixed_window, per: calendar, time_zone: Asia/Tokyo, week_start: sunday, "
        "soft: 50%",
    ),
    (
        "{window: 2d, requests_per_unit: 9, algorithm: sliding_window, buckets: 48, name: n}",
        Limit(9, Unit.DAY, 2, "n", "sliding_window", buckets=48),
        "9 per 2 days, sliding_window, 48 buckets",
        "unit_multiplier: 2, algorithm: sliding_window, buckets: 48, name: n",
    ),
    (
        "{unit: hour, requests_per_unit: 9, algorithm: sliding_log, count_denied: true}",
        Limit(9, Unit.HOUR, algorithm="sliding_log", count_denied=True),
        "9 per hour, sliding_log, denied hits count",
        "algorithm: sliding_log, count_denied: true",
    ),
    (
        "{unit: hour, requests_per_unit: 9, sync: leased}",
        Limit(9, Unit.HOUR, advances=True),
        "9 per hour, leased",
        "algorithm: fixed_window, sync: leased",
    ),
    (
        "{unit: hour, requests_per_unit: 9, algorithm: token_bucket, burst: 90, sync: leased}",
        Limit(9, Unit.HOUR, algorithm="token_bucket", burst=90, advances=True),
        "9 per hour, token_bucket, burst 90, leased, at most 85 in one call",
        "algorithm: token_bucket, burst: 90, sync: leased",
    ),
    (
        "{unit: day, requests_per_unit: 9, algorithm: token_bucket, burst: 20, refill: stepped}",
        Limit(9, Unit.DAY, algorithm="token_bucket", burst=20, stepped=True),
        "9 per day, token_bucket, burst 20, refilled at once",
        "algorithm: token_bucket, burst: 20, refill: stepped",
    ),
    (
        "{unit: second, requests_per_unit: 9, algorithm: leaky_bucket, max_wait: 1500ms}",
        Limit(9, Unit.SECOND, algorithm="leaky_bucket", max_wait_us=1_500_000),
        "9 per second, leaky_bucket, a queue of at most 1.5 s",
        "algorithm: leaky_bucket, max_wait: 1500ms",
    ),
    (
        "{window: 1h, requests_per_unit: 9, algorithm: concurrency}",
        Limit(9, Unit.HOUR, algorithm="concurrency"),
        "9 at a time, a lease lives 1 hour",
        "algorithm: concurrency",
    ),
    (
        "{window: 2m, requests_per_unit: 9, algorithm: concurrency}",
        Limit(9, Unit.MINUTE, 2, algorithm="concurrency"),
        "9 at a time, a lease lives 2 minutes",
        "unit_multiplier: 2, algorithm: concurrency",
    ),
]


@pytest.mark.parametrize(("written", "limit", "explained", "dumped"), CASES)
def test_each_way_to_count(written: str, limit: Limit, explained: str, dumped: str) -> None:
    """Each key of a limit finds its place, and is told by explain and /rlconfig."""
    file = parse("f", f"domain: d\ndescriptors:\n  - {{key: k, rate_limit: {written}}}".encode())
    snapshot = Snapshot(1, {"d": Domain("d", Level.of(file.nodes))})

    (rule,) = snapshot.domains["d"].rules
    (line,) = dump(snapshot)

    assert not file.bad
    assert rule.limits == (limit,)
    assert limit_text(limit) == explained
    assert f"quota_mode: false, {dumped}, at f:3:" in line


def test_several_limits_are_told_each() -> None:
    """Limits of one descriptor stand in one line, in their order."""
    limits = "[{unit: second, requests_per_unit: 1}, {window: 3h, requests_per_unit: 2}]"
    file = parse("f", f"domain: d\ndescriptors:\n  - {{key: k, rate_limits: {limits}}}".encode())

    (line,) = dump(Snapshot(1, {"d": Domain("d", Level.of(file.nodes))}))

    assert line == (
        "d.k: unit=SECOND requests_per_unit=1, shadow_mode: false, quota_mode: false, "
        "algorithm: fixed_window, and unit=HOUR requests_per_unit=2, unit_multiplier: 3, "
        "algorithm: fixed_window, at f:3:14\n"
    )


@pytest.mark.parametrize("list_of_limits", [False, True])
def test_the_same_limit_many_times(list_of_limits: bool) -> None:
    """A limit that is written many times is read the same each time, with its mistakes."""
    good = "{name: n, unit: day, requests_per_unit: 3, failure_policy: closed}"
    bad = "{unit: fortnight, requests_per_unit: 3}"
    key, shown = ("rate_limits", "[{}]") if list_of_limits else ("rate_limit", "{}")
    lines = [
        f"  - {{key: k, value: v{number}, {more}{key}: {shown.format(limit)}}}\n"
        for number, (limit, more) in enumerate(
            [(good, ""), (bad, ""), (good, "shadow_mode: true, "), (bad, ""), (good, "")]
        )
    ]

    file = parse("f", f"domain: d\ndescriptors:\n{''.join(lines)}".encode())

    assert [(problem.source.line, problem.kind) for problem in file.problems] == [
        (4, "unit"),
        (6, "unit"),
    ]
    rules = [node.rule for node in file.nodes if node.value in {"v0", "v2", "v4"}]
    assert all(rule is not None for rule in rules)
    meanings = [(r.limits, [*r.names], r.failure_policy, r.shadow_mode) for r in rules if r]
    limits = (Limit(3, Unit.DAY, name="n"),)
    assert meanings == [
        (limits, ["n"], FailurePolicy.CLOSED, False),
        (limits, ["n"], FailurePolicy.CLOSED, True),
        (limits, ["n"], FailurePolicy.CLOSED, False),
    ]
