"""Who came most often in bounded memory, held against counting them all."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.containers.sketches import TopNames

additions = st.lists(st.tuples(st.sampled_from("abcdefghijklmnop"), st.integers(1, 50)))


def sketch(added: list[tuple[str, int]], most: int) -> TopNames[str]:
    top = TopNames[str](most)
    for name, times in added:
        top.add(name, times)
    return top


def counted(added: list[tuple[str, int]]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for name, times in added:
        counts[name] += times
    return counts


def assert_law(top: TopNames[str], truth: Counter[str], most: int) -> None:
    """What the class says of itself."""
    total = truth.total()
    by_name = {each.name: each for each in top.top(most)}
    assert top.total == total
    assert len(top.counts) <= 2 * top.most
    assert top.error * most <= total
    for name, each in by_name.items():
        assert each.times - each.error <= truth[name] <= each.times
    for name, times in truth.items():
        assert name in by_name or times * most <= total
        assert name in top.counts or times <= top.error


@given(additions, st.integers(1, 8))
def test_no_count_is_off_by_more_than_the_bound(added: list[tuple[str, int]], most: int) -> None:
    """Additions of any weight: the error is known, below N / most, and all above that are there."""
    assert_law(sketch(added, most), counted(added), most)


@given(additions, additions, additions, st.integers(1, 8))
def test_merged_sketches_keep_the_bound(
    one: list[tuple[str, int]],
    other: list[tuple[str, int]],
    later: list[tuple[str, int]],
    most: int,
) -> None:
    """What two processes have noted, put together, is as good as if one had noted all of it."""
    top, second = sketch(one, most), sketch(other, most)
    top.merge(second.counts.items(), second.error, second.total)
    for name, times in later:
        top.add(name, times)
    assert_law(top, counted(one + other + later), most)


@given(additions, additions, st.integers(1, 8), st.integers(1, 8))
def test_lowered_room_lowers_the_bound_with_it(
    before: list[tuple[str, int]], after: list[tuple[str, int]], most: int, fewer: int
) -> None:
    """A sketch that may hold fewer names from now on is as good as one that never held more."""
    top = sketch(before, max(most, fewer))
    top.most = min(most, fewer)
    for name, times in after:
        top.add(name, times)
    top.purge()
    assert_law(top, counted(before + after), min(most, fewer))
