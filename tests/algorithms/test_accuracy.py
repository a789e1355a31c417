"""What `python -m benchmarks.accuracy` says of each algorithm holds, on less traffic."""

from __future__ import annotations

from functools import cache

import pytest

from benchmarks.accuracy import DEMANDS, LIMIT, LIMITS, TRAFFIC, Found, exact_log, judged, stream
from ratelimit_service.algorithms import capacity_of

HITS = 1_200

every_stream = pytest.mark.parametrize("traffic", TRAFFIC)


@cache
def found(name: str, traffic: str, demand: float) -> Found:
    times = stream(traffic, demand, HITS)
    return judged(name, times, exact_log(times))


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
        assert found(name, traffic, demand).above_rate <= capacity_of(LIMITS[name])


def test_the_edge_is_found() -> None:
    """The traffic at the edge shows the worst that there is, so that the bounds above are met."""
    assert found("fixed_window", "edge", 1.0).most == 2 * LIMIT
    assert found("token_bucket", "edge", 1.0).above_rate > LIMIT - 1
    assert found("sliding_log", "edge", 1.0).most == LIMIT
