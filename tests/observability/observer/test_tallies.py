"""A rule's series are bounded, in number and in bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.observability.stats import (
    MAX_SERIES,
    MAX_VALUE_BYTES,
    MAX_VALUES_BYTES,
    OTHER,
    Tallies,
)


def sized(tallies: Tallies) -> tuple[int, int]:
    """How many values there are beside the rule's own and `other`, and their bytes."""
    values = [value for value, _ in tallies.items() if value not in {"", OTHER}]
    return len(values), sum(len(value.encode()) for value in values)


def test_long_values_share_a_tally() -> None:
    """A value above the bound has no series of its own; bytes count, not characters."""
    tallies = Tallies()

    assert tallies.of("\u00e9" * (MAX_VALUE_BYTES // 2)) is not tallies.of(OTHER)
    assert tallies.of("\u00e9" * (MAX_VALUE_BYTES // 2) + "x") is tallies.of(OTHER)


def test_all_values_of_a_rule_have_a_bound() -> None:
    """When a rule's values have taken their bytes further ones share a tally; known ones stay."""
    tallies = Tallies()
    values = [f"{number:05}".ljust(1_000, "x") for number in range(10_000)]
    for value in values:
        tallies.of(value).hits += 1

    number, size = sized(tallies)
    assert (number, size) == (65, 65_000)
    assert tallies.of(OTHER).hits == 10_000 - 65
    assert tallies.of(values[64]).hits == 1
    assert tallies.of().hits == 0
    assert tallies.of("short") is not tallies.of(OTHER)


@given(st.lists(st.text(max_size=30) | st.integers(0, 3_000).map("v".__mul__), max_size=40))
def test_bounds_hold_whatever_comes(values: list[str]) -> None:
    """Neither bound is passed, and each value goes on to the same tally."""
    tallies = Tallies()
    result = [tallies.of(value) for value in values]

    number, size = sized(tallies)
    assert number < MAX_SERIES
    assert size <= MAX_VALUES_BYTES
    assert all(tallies.of(value) is tally for value, tally in zip(values, result, strict=True))
