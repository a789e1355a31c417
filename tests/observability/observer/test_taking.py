"""What is counted in one process and added up in another."""

from __future__ import annotations

import json
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.observability.stats import Histogram, Stats, Tally

NUMBERS = st.lists(st.integers(1, 1 << 40), min_size=12, max_size=12)


LEVELS = {"overrides"}
"""What is not counted, but so many at a time."""


def names(counting: Tally | Stats) -> list[str]:
    """All that it counts."""
    return [
        name
        for name in dir(counting)
        if not name.startswith("_") and name not in LEVELS and not callable(getattr(counting, name))
    ]


def numbers(tally: Tally) -> dict[str, int]:
    return {name: getattr(tally, name) for name in names(tally)}


@given(NUMBERS, NUMBERS)
def test_tallies_add_up(mine: list[int], its: list[int]) -> None:
    """What is taken is added once, and gone where it was; nothing that was tallied is left out."""
    here, there, before = Tally(), Tally(), Tally()
    for index, name in enumerate(names(here)):
        setattr(here, name, mine[index])
        setattr(before, name, mine[index])
        setattr(there, name, its[index])
    counted = numbers(there)

    here.add(json.loads(json.dumps(there.take())))

    assert numbers(here) == {
        name: number + counted[name] for name, number in numbers(before).items()
    }
    assert set(numbers(there).values()) == {0}
    assert there.take() == []


def shown(stats: Stats) -> dict[str, object]:
    result: dict[str, object] = {}
    for name in names(stats):
        value = getattr(stats, name)
        result[name] = (value.sum_us, value.buckets) if isinstance(value, Histogram) else value
    return result


def test_counters_add_up() -> None:
    """Everything that a process counts arrives where it is added up, and starts again at zero."""
    here, there, twice = Stats(), Stats(), Stats()
    for stats, times in ((here, 1), (there, 1), (twice, 2)):
        stats.latency.add(300, 5 * times)
        for number, name in enumerate(names(stats), start=1):
            value = getattr(stats, name)
            if isinstance(value, Counter):
                value["one"] += number * times
            elif not isinstance(value, Histogram):
                setattr(stats, name, number * times)

    here.add(json.loads(json.dumps(there.take())))

    assert shown(here) == shown(twice)
    assert shown(there) == shown(Stats())


def test_what_another_version_counts() -> None:
    """A restart into an older version keeps all counts that it knows, and leaves out the rest."""
    stats, later = Stats(), Stats()
    later.given_back = 3
    later.decisions["ok"] = 4
    taken = later.take()
    taken["numbers"]["of_tomorrow"] = 1
    taken["labelled"]["of_tomorrow"] = {"x": 1}
    taken["latency"].append(1)
    tally = Tally()

    stats.add(taken)
    tally.add([1, 2, 3, 4, 5, 6, 7, 8, 9])

    assert (stats.given_back, stats.decisions) == (3, {"ok": 4})
    assert (tally.hits, tally.by_policy) == (1, 8)
