"""How exactly processes keep to a leased limit, and what they send for it, in simulated time."""

from __future__ import annotations

import pytest

from benchmarks.leased_simulated import DEMANDS, Load, simulated
from benchmarks.scale import Case, sent
from ratelimit_service.model import Limit, Unit

_every_demand = pytest.mark.parametrize("demand", DEMANDS)
_every_number = pytest.mark.parametrize("processes", [2, 8])


@_every_demand
@_every_number
@pytest.mark.parametrize("number", [5, 20, 100, 1_000])
@pytest.mark.parametrize("share", [95, 200])
def test_no_window_admits_too_much_or_much_too_little(
    number: int, processes: int, demand: str, share: int
) -> None:
    """Never above the limit. At most 5 % of what could be admitted is not, and at most one hit."""
    limit = Limit(number, Unit.MINUTE)

    found = simulated(limit, processes, Load(DEMANDS[demand], number * share // 100))

    assert found.over == 0
    assert found.missing <= max(1, number * 5 // 100)


@pytest.mark.parametrize("demand", ["even", "all on one"])
@pytest.mark.parametrize("unit", [Unit.SECOND, Unit.MINUTE])
@pytest.mark.parametrize(
    ("number", "processes", "below", "above"),
    [(1_000, 2, 0.08, 0.15), (1_000, 8, 0.3, 0.45), (5_000, 2, 0.03, 0.06), (5_000, 8, 0.06, 0.12)],
)
def test_few_hits_are_sent(
    number: int, processes: int, below: float, above: float, unit: Unit, demand: str
) -> None:  # fmt: skip
    """What is sent for each admitted hit, below the limit and when twice as much is offered."""
    limit = Limit(number, unit)

    assert simulated(limit, processes, Load(DEMANDS[demand], number * 95 // 100)).sent <= below
    assert simulated(limit, processes, Load(DEMANDS[demand], number * 2)).sent <= above


@pytest.mark.parametrize("seconds", [1, 60])
@pytest.mark.parametrize("number", [1_000, 10_000])
@pytest.mark.parametrize(("processes", "active"), [(2, 2), (2, 1), (8, 8), (8, 1)])
@pytest.mark.parametrize("share", [95, 200])
def test_formulas_say_what_is_sent(
    number: int, seconds: int, processes: int, active: int, share: int
) -> None:
    """By docs/scale.md's formulas two thirds to one and a half times as much is sent as it is."""
    load = Load(DEMANDS["even" if active > 1 else "all on one"], number * share // 100)

    found = simulated(Limit(number, Unit.SECOND, seconds), processes, load)

    predicted = sent(Case(number, seconds, processes, active, share / 100))
    assert 2 / 3 <= predicted / found.sent <= 3 / 2
