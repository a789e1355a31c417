"""Hits that pass are counted by a short way: it says the same as the long one."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratelimit_service.algorithms import ALGORITHMS, fixed_window, sliding_window, spec_of
from ratelimit_service.model import Algorithm, CounterSpec, Limit, State, Unit
from tests.examples import up_to

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


NUMBERED = st.builds(
    lambda ahead, count: (NOW_US // WINDOW_US + ahead) % 2**28 << 32 | count,
    st.integers(-3, 3) | st.sampled_from([1_023, 1_024, 2**27]),
    COUNTS,
)
"""States of the clock's windows."""
SINCE = st.integers(0, WINDOW_US - 1) | st.sampled_from([0, 1, WINDOW_US - 1])
ADDENDS = st.integers(0, 12) | st.just(2**32 - 1)
LIMITS = st.sampled_from([0, 1, 10, 2**32 - 1])


@given(STATES, SINCE, ADDENDS, LIMITS, st.booleans())
@settings(max_examples=up_to(400), deadline=None)
def test_two_counters(
    state: State | None, since_us: int, addend: int, most: int, force: bool
) -> None:
    """A sliding window of two counters, from any state, damaged and foreign ones too."""
    spec = spec_of(Limit(most, Unit.MINUTE, algorithm="sliding_window"))
    now_us = NOW_US + since_us

    step = sliding_window.charge(state, now_us, addend, spec, force, b"")

    assert step == sliding_window.charge_any(state, now_us, addend, spec, force)


@given(STATES | NUMBERED, SINCE, ADDENDS, LIMITS, st.booleans())
@settings(max_examples=up_to(400), deadline=None)
def test_windows_of_the_clock(
    state: State | None, since_us: int, addend: int, most: int, force: bool
) -> None:
    """A window of the clock, from any state, damaged and foreign ones too."""
    spec = spec_of(Limit(most, Unit.MINUTE))
    now_us = NOW_US + since_us

    step = fixed_window.charge(state, now_us, addend, spec, force, b"")

    assert step == fixed_window.charge_any(state, now_us, addend, spec, force)


@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=str)
@given(state=NUMBERED | STATES, since_us=SINCE, addend=ADDENDS, most=LIMITS)
@settings(max_examples=up_to(100), deadline=None)
def test_whoever_declares_a_short_way_takes_it(
    algorithm: Algorithm, state: State | None, since_us: int, addend: int, most: int
) -> None:
    """Who says that hits add up (`adds`), or that a state is two counts (`paired`), charges so.

    Stores charge such counters by `passing`, and do not ask the algorithm. They do ask it for a
    peek, which is over where a counter is at its top.
    """
    spec, now_us = CounterSpec(algorithm, most, WINDOW_US), NOW_US + since_us
    after = state
    if spec.adds:
        number = state if isinstance(state, int) else -1
        counted, remaining, reset_us = fixed_window.passing(number, now_us, addend, most, WINDOW_US)
        if remaining >= 0 and addend:
            after = counted
    elif spec.paired:
        counts = sliding_window.unpacked(state)
        *pair, remaining, reset_us = sliding_window.passing(*counts, now_us, addend, spec)
        if state is not None and counts[0] < 0:
            return  # no pair, and nobody takes it for one
        if remaining >= 0 and addend:
            after = sliding_window.packed(*pair)
    else:
        return

    if remaining >= 0 and (addend or remaining):
        charged = algorithm.charge(state, now_us, addend, spec, False, b"")
        assert charged == (True, after, remaining, reset_us, 0, addend, False)
