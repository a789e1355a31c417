"""Which calls are counted when there is no time for all: a table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.grpc.h2.admission import in_time, refused

ENVOYS_US, EACH_US = 20_000, 10


@pytest.mark.parametrize(
    ("calls", "oldest_us", "newest_us", "store_us", "counted"),
    [
        (100, 0, 0, 0, 100),
        (100, 13_000, 0, 0, 100),  # 65 % of the patience
        (100, 26_000, 0, 0, 50),  # those of the last 13 ms
        (100, 26_000, 13_000, 0, 0),
        (100, 20_000, 10_000, 0, 30),
        (1, 13_001, 0, 0, 0),
        (100, 10_000, 0, 3_000, 100),  # with what calls wait for a store
        (100, 10_000, 0, 8_000, 50),
        (100, 10_000, 0, 13_000, 0),
        (100, 500, 0, 30_000, 0),
        (5_000, 1_000, 0, 0, 650),  # as many as can be decided in half of 13 ms
        (5_000, 1_000, 3_000, 0, 500),
        (5_000, 1_000, 0, 7_000, 300),
    ],
)
def test_calls_in_time(
    calls: int, oldest_us: int, newest_us: int, store_us: int, counted: int
) -> None:
    """Of calls that came evenly the newest are counted that can be answered in time."""
    assert in_time(calls, oldest_us, newest_us, EACH_US, ENVOYS_US, store_us) == counted


@given(
    st.integers(1, 2_000),
    st.integers(0, 50_000),
    st.integers(0, 50_000),
    st.integers(0, 20_000),
    st.integers(0, 10_000),
)
def test_more_waiting_counts_no_more(
    calls: int, first_us: int, second_us: int, store_us: int, longer_us: int
) -> None:
    """Who has waited longer, here or in the store, is counted no more; and never more than came."""
    newest_us, oldest_us = sorted((first_us, second_us))

    counted = in_time(calls, oldest_us, newest_us, EACH_US, ENVOYS_US, store_us)
    older = in_time(
        calls, oldest_us + longer_us, newest_us + longer_us, EACH_US, ENVOYS_US, store_us
    )

    assert 0 <= older <= counted <= calls
    assert in_time(calls, oldest_us, newest_us, EACH_US, ENVOYS_US, store_us + longer_us) <= counted


@given(st.lists(st.integers(1, 100), min_size=1), st.integers(0, 50), st.integers(0, 1_000))
def test_the_oldest_are_refused(events: list[int], behind: int, counted: int) -> None:
    """However calls are parted, as many are counted in all, and these are the newest."""
    came = sum(events)
    total, before, left = came + behind, 0, list[int]()
    for calls in events:
        left.append(calls - refused(calls, before, total, counted))
        before += calls

    assert sum(left) == max(0, min(came, counted - behind))
    first = next((at for at, each in enumerate(left) if each), len(left))
    assert left[first + 1 :] == events[first + 1 :]
