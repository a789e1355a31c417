"""What is known of callers in bounded memory, held against counting them all."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.containers.sketches import TopNames
from ratelimit_service.rule_lab.replay.sketches import CallerSample, hash_of
from ratelimit_service.rule_lab.replay.timeline import MOST_SPANS, Timeline

names = st.lists(st.sampled_from("abcdefghijkl"), max_size=200)


@given(names, st.integers(1, 12))
def test_top_names_are_off_by_no_more_than_they_say(added: list[str], most: int) -> None:
    """No count is too low, nor too high by more than its error, and errors are N / most at most.

    Every name that came more often than that is known.
    """
    counted, top = Counter(added), TopNames[str](most)
    for name in added:
        top.add(name)

    by_name = {each.name: each for each in top.top(most)}

    assert top.total == len(added)
    assert len(by_name) == min(most, len(counted))
    for name, each in by_name.items():
        assert each.times - each.error <= counted[name] <= each.times
        assert each.error * most <= len(added)
    assert {name for name, times in counted.items() if times * most > len(added)} <= set(by_name)


@given(names)
def test_top_names_are_exact_while_there_are_few(added: list[str]) -> None:
    """With room for every name the counts are those of the names, in order."""
    top = TopNames[str](12)
    for name in added:
        top.add(name)

    expected = sorted(Counter(added).items(), key=lambda each: (-each[1], each[0]))
    assert [(each.name, each.times, each.error) for each in top.top(12)] == [
        (name, times, 0) for name, times in expected
    ]


@given(st.lists(st.integers(0, 200)), st.integers(1, 50))
def test_who_is_in_a_sample_was_in_it_from_the_first_time(callers: list[int], most: int) -> None:
    """A sample holds so many callers at most, and of those that it holds it has missed nothing."""
    sample, counted = CallerSample[list[int]](most), Counter(callers)
    for caller in callers:
        key_hash = hash_of(str(caller).encode())
        if sample.wants(key_hash):
            if (times := sample.get(key_hash)) is None:
                sample.put(key_hash, times := [caller, 0])
            times[1] += 1

    members = {caller: times for caller, times in sample}  # noqa: C416 -- of lists
    assert len(members) == min(most, len(counted))
    assert sample.exact == (len(counted) <= most)
    assert all(counted[caller] == times for caller, times in members.items())
    assert sample.distinct() == len(counted) or not sample.exact


def test_sample_tells_how_many_there_were() -> None:
    """Beyond its size a sample of k tells the number of callers to within some 4 / sqrt(k)."""
    sample = CallerSample[None](1_000)
    for caller in range(20_000):
        key_hash = hash_of(caller.to_bytes(4, "big"))
        if sample.wants(key_hash):
            sample.put(key_hash, None)

    assert len(sample) == 1_000
    assert abs(sample.distinct() - 20_000) < 20_000 * 4 / 1_000**0.5


@given(st.lists(st.tuples(st.integers(0, 10**12), st.booleans())), st.integers(1, 300))
def test_timeline_loses_nothing(added: list[tuple[int, bool]], most: int) -> None:
    """Spans hold every request once, at its time; the busiest second is the one with the most."""
    timeline = Timeline()
    for at_us, denied in sorted(added):
        timeline.add(at_us, int(denied))

    busiest, busiest_us = timeline.busiest()
    spans = timeline.spans(most)

    assert len(spans) <= most
    assert sum(span.requests for span in spans) == len(added)
    assert sum(span.denied for span in spans) == sum(denied for _, denied in added)
    for span in spans:
        ends_us = span.start_us + timeline.width_us
        within = [each for each in added if span.start_us <= each[0] < ends_us]
        assert span.requests == len(within)
    seconds = Counter(at_us // 1_000_000 for at_us, _ in added)
    assert busiest == max(seconds.values(), default=0)
    assert not added or seconds[busiest_us // 1_000_000] == busiest


def test_timeline_is_bounded() -> None:
    """However long a log is, a timeline holds only so many spans."""
    timeline = Timeline()
    for second in range(0, 10_000_000, 1_000):
        timeline.add(second * 1_000_000)

    assert len(timeline.spans(10 * MOST_SPANS)) <= MOST_SPANS
