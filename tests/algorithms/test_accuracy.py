"""What `python -m benchmarks.accuracy` says of each algorithm holds, on less traffic."""

from __future__ import annotations

from functools import cache
from itertools import compress

import pytest

from benchmarks.accuracy import (
    DEMANDS,
    LIMIT,
    LIMITS,
    TRAFFIC,
    WINDOW_US,
    Found,
    above_rate,
    decided,
    exact_log,
    judged,
    stream,
)
from ratelimit_service.algorithms import ALGORITHMS, capacity_of, spec_of
from ratelimit_service.model import State

HITS = 1_200

every_stream = pytest.mark.parametrize("traffic", TRAFFIC)


@cache
def found(name: str, traffic: str, demand: float) -> Found:
    times = stream(traffic, demand, HITS)
    return judged(decided(name, times), times, exact_log(times))


def rise(name: str, traffic: str, demand: float) -> float:
    times = stream(traffic, demand, HITS)
    return above_rate(decided(name, times), times)


@every_stream
@pytest.mark.parametrize("name", LIMITS)
def test_a_stream_is_decided_as_hit_after_hit(name: str, traffic: str) -> None:
    """What is decided of many hits at once is what the algorithm says of each, one by one."""
    limit = LIMITS[name]
    spec, charge = spec_of(limit), ALGORITHMS[limit.algorithm].charge
    for demand in DEMANDS:
        times = stream(traffic, demand, HITS)
        state: State | None = None
        each = []
        for now in times:
            step = charge(state, now, 1, spec, False, b"")
            state = step.state
            each.append(step.passed)
        assert decided(name, times) == each


@every_stream
def test_the_sweep_finds_the_fullest_window(traffic: str) -> None:
    """The most hits in a window are those that lie within its length behind one of them."""
    for demand in DEMANDS:
        times = stream(traffic, demand, 400)
        decisions = decided("fixed_window", times)
        admitted = list(compress(times, decisions))
        fullest = max(sum(now - WINDOW_US < at <= now for at in admitted) for now in admitted)
        assert judged(decisions, times, exact_log(times)).most == fullest


@every_stream
def test_a_log_is_exact(traffic: str) -> None:
    """A log admits no more than the limit in any window, and decides as an exact one."""
    for demand in DEMANDS:
        log = found("sliding_log", traffic, demand)

        assert (log.above, log.differ, log.wrongly_allowed, log.wrongly_denied) == (0, 0, 0, 0)


@every_stream
def test_buckets_of_a_window_never_admit_too_much(traffic: str) -> None:
    """With 60 sub-counters no window ever holds more than the limit: no hit is wrongly allowed."""
    for demand in DEMANDS:
        window = found("sliding_window, buckets: 60", traffic, demand)

        assert (window.above, window.wrongly_allowed) == (0, 0)


@every_stream
def test_windows_hold_twice_the_limit_at_most(traffic: str) -> None:
    """Fixed windows and two counters admit at most twice the limit in any window."""
    for demand in DEMANDS:
        assert found("fixed_window", traffic, demand).most <= 2 * LIMIT
        assert found("sliding_window", traffic, demand).most <= 2 * LIMIT


@every_stream
@pytest.mark.parametrize("name", ["token_bucket", "token_bucket, burst: 10"])
def test_buckets_hold_burst_and_rate(name: str, traffic: str) -> None:
    """In no span of any length does a bucket admit more than its burst and what comes back."""
    for demand in DEMANDS:
        assert rise(name, traffic, demand) <= capacity_of(LIMITS[name])


def test_the_edge_is_found() -> None:
    """The traffic at the edge shows the worst that there is, so that the bounds above are met."""
    assert found("fixed_window", "edge", 1.0).most == 2 * LIMIT
    assert rise("token_bucket", "edge", 1.0) > LIMIT - 1
    assert found("sliding_log", "edge", 1.0).most == LIMIT
