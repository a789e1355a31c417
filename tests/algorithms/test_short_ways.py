"""Hits that pass are counted by a short way: it says the same as the long one."""

from __future__ import annotations

import struct

from hypothesis import given, settings
from hypothesis import strategies as st

from ratelimit_service.algorithms import spec_of
from ratelimit_service.algorithms.sliding_window import charge, charge_any
from ratelimit_service.model import Limit, State, Unit

WINDOW_US = 60_000_000
NOW_US = 29_000_000 * WINDOW_US
COUNTS = st.integers(0, 12) | st.sampled_from([2**31, 2**32 - 1])
STATES = st.one_of(
    st.none(),
    st.integers(0, 2**60),
    st.binary(max_size=20),
    st.builds(
        lambda ahead, before, now: struct.pack(
            ">cdII", b"w", NOW_US // WINDOW_US + ahead, before, now
        ),
        st.integers(-3, 3),
        COUNTS,
        COUNTS,
    ),
)


@given(
    STATES,
    st.integers(0, WINDOW_US - 1) | st.sampled_from([0, 1, WINDOW_US - 1]),
    st.integers(0, 12) | st.just(2**32 - 1),
    st.sampled_from([0, 1, 10, 2**32 - 1]),
    st.booleans(),
)
@settings(max_examples=400, deadline=None)
def test_two_counters(
    state: State | None, since_us: int, addend: int, most: int, force: bool
) -> None:
    """A sliding window of two counters, from any state, damaged and foreign ones too."""
    spec = spec_of(Limit(most, Unit.MINUTE, algorithm="sliding_window"))
    now_us = NOW_US + since_us

    found = charge(state, now_us, addend, spec, force, b"")

    assert found == charge_any(state, now_us, addend, spec, force)
