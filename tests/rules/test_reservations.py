"""Which limits take reservations, and what is wrong with those that cannot."""

from __future__ import annotations

import pytest

from ratelimit_service.model import Reservations
from ratelimit_service.rules.schema import RuleFile, parse


def read(limit: str, head: str = "") -> RuleFile:
    """A file with one limit."""
    text = (
        f"domain: d\n{head}\ndescriptors:\n- key: k\n"
        f"  rate_limit: {{unit: minute, requests_per_unit: 10, {limit}}}\n"
    )
    return parse("file.yaml", text.encode())


@pytest.mark.parametrize(
    ("limit", "head", "reservations"),
    [
        ("name: n", "", None),
        ("reservations: true", "", Reservations()),
        ("name: n", "reservations: true", Reservations()),
        ("reservations: false", "reservations: true", None),
        ("algorithm: concurrency", "reservations: true", None),
        ("algorithm: leaky_bucket, max_wait: 1m", "reservations: true", None),
        (
            "reservations: true, max_reservation: 12.5%, max_reservation_ttl: 90s, "
            "on_expiry: charge",
            "",
            Reservations(125_000, 90_000_000, charged=True),
        ),
    ],
)
def test_limits_say_it_or_their_file_does(
    limit: str, head: str, reservations: Reservations | None
) -> None:
    """Under a file's head those limits take reservations that can, unless they say otherwise."""
    file = read(limit, head)

    assert [problem for problem in file.problems if not problem.hint] == []
    rule = file.nodes[0].rule
    assert rule is not None
    assert rule.limits[0].reservations == reservations


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        (
            "reservations: true, algorithm: concurrency",
            "reservations means nothing with concurrency: a request that reserves takes one place "
            "under its id, and settle gives it back",
        ),
        (
            "reservations: true, algorithm: leaky_bucket, max_wait: 1m",
            "max_wait and reservations exclude each other: remove one; what waits in a queue has "
            "its place already",
        ),
        ("on_expiry: charge", "on_expiry means nothing without reservations: true"),
        ("max_reservation: 50%", "max_reservation means nothing without reservations: true"),
        (
            "reservations: true, max_reservation_ttl: soon",
            "max_reservation_ttl 'soon' is none: write a number above 0 with ms, s, m, h, d or w, "
            "as in 500ms",
        ),
    ],
)
def test_what_means_nothing_is_a_problem(limit: str, message: str) -> None:
    """The message says what is wrong, and what to write."""
    problems = read(limit).problems
    assert [each.message for each in problems if not each.hint] == [message]
