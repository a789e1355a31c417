"""What each algorithm promises in its own sense, whatever comes when."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.algorithms import ALGORITHMS, capacity_of, spec_of
from ratelimit_service.model import Anchor, Calendar, Limit, Receipt, State, Step, Unit
from tests.algorithms.ways import WAYS
from tests.stores.cases import DAY, MINUTE, SECOND, T

WINDOW = MINUTE
MOMENTS = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 99, 999_999, SECOND, 7 * SECOND, 31 * SECOND]), st.integers(0, 4)
    ),
    max_size=60,
)
"""Pauses, and the hits asked for after each."""


class Admitted(NamedTuple):
    time: int
    hits: int


class Counter:
    """One counter and its history."""

    def __init__(self, limit: Limit) -> None:
        self.spec = spec_of(limit)
        self.algorithm = ALGORITHMS[limit.algorithm]
        self.state: State | None = None
        self.now = T
        self.admitted: list[Admitted] = []

    def charge(self, addend: int, pause: int = 0) -> Step:
        self.now += pause
        step = self.algorithm.charge(
            self.state, self.now, addend, self.spec, False, self.now.to_bytes(8, "big")
        )
        self.state = step.state
        if step.passed:
            self.admitted.append(Admitted(self.now, addend))
        return step

    def peek(self) -> Step:
        return self.algorithm.charge(self.state, self.now, 0, self.spec, False, b"")

    def undo(self, addend: int, receipt: Receipt, lease: bytes) -> None:
        self.state = self.algorithm.refund(
            self.state, self.now, addend, self.spec, lease, receipt
        ).state

    def refund(self, addend: int) -> int:
        step = self.algorithm.refund(self.state, self.now, addend, self.spec, b"", None)
        self.state = step.state
        return step.counted


def total(admitted: Iterable[Admitted]) -> int:
    return sum(hits for _, hits in admitted)


@given(MOMENTS)
@pytest.mark.parametrize(
    "limit",
    [
        Limit(5, Unit.MINUTE, algorithm="sliding_log"),
        Limit(5, Unit.MINUTE, algorithm="sliding_window", buckets=6),
        Limit(5, Unit.MINUTE, algorithm="sliding_window", buckets=7),
    ],
    ids=["sliding_log", "6 buckets", "7 buckets"],
)
def test_no_window_ever_holds_more(limit: Limit, moments: list[tuple[int, int]]) -> None:
    """In no window of that length, wherever it begins, pass more than the limit."""
    counter = Counter(limit)
    for pause, addend in moments:
        counter.charge(addend, pause)

    for start, _ in counter.admitted:
        within = [one for one in counter.admitted if start <= one.time < start + WINDOW]
        assert total(within) <= 5


@given(MOMENTS)
def test_a_log_denies_only_what_would_be_too_much(moments: list[tuple[int, int]]) -> None:
    """A log admits exactly what leaves no more than the limit in the window before it."""
    counter = Counter(Limit(5, Unit.MINUTE, algorithm="sliding_log"))
    for pause, addend in moments:
        before = list(counter.admitted)
        step = counter.charge(addend, pause)

        recent = total(one for one in before if one.time > counter.now - WINDOW)
        assert step.passed == (recent + addend <= 5)
        assert step.remaining == 5 - recent - (addend if step.passed else 0)


@given(MOMENTS)
def test_fixed_windows_hold_the_limit(moments: list[tuple[int, int]]) -> None:
    """No fixed window, whatever begins it, admits more than the limit."""
    clock = Counter(Limit(5, Unit.MINUTE))
    month = Counter(Limit(5, Unit.DAY, anchor=Calendar(Unit.DAY, "Asia/Kathmandu")))
    for pause, addend in moments:
        clock.charge(addend, pause)
        month.charge(addend, pause * 1_000)

    for number in {one.time // WINDOW for one in clock.admitted}:
        assert total(one for one in clock.admitted if one.time // WINDOW == number) <= 5
    offset = (5 * 3_600 + 45 * 60) * SECOND
    for number in {(one.time + offset) // DAY for one in month.admitted}:
        assert total(one for one in month.admitted if (one.time + offset) // DAY == number) <= 5


@given(MOMENTS)
def test_windows_from_the_first_hit_hold_the_limit(moments: list[tuple[int, int]]) -> None:
    """A window from its first hit on admits the limit, and the next begins with a hit."""
    counter = Counter(Limit(5, Unit.MINUTE, anchor=Anchor.FIRST_HIT))
    start, held = -WINDOW, 0
    for pause, addend in moments:
        step = counter.charge(addend, pause)

        if counter.now >= start + WINDOW:
            start, held = counter.now if addend and addend <= 5 else -WINDOW, 0
        assert step.passed == (held + addend <= 5)
        held += addend if step.passed else 0


@given(MOMENTS)
def test_two_counters_hold_their_own_sum(moments: list[tuple[int, int]]) -> None:
    """This window's count and the weighted one before never come to more than the limit."""
    counter = Counter(Limit(7, Unit.MINUTE, algorithm="sliding_window"))
    for pause, addend in moments:
        before = list(counter.admitted)
        step = counter.charge(addend, pause)

        number, elapsed = divmod(counter.now, WINDOW)
        now = total(one for one in before if one.time // WINDOW == number)
        last = total(one for one in before if one.time // WINDOW == number - 1)
        weighed = last * (WINDOW - elapsed) // WINDOW + now
        assert step.passed == (weighed + addend <= 7)


RATES = st.sampled_from([1, 3, 7, 60, 1_000_003])
BUCKETS = st.sampled_from(["token_bucket", "leaky_bucket"])


@given(BUCKETS, RATES, st.integers(1, 9), MOMENTS)
def test_buckets_are_exact(
    algorithm: str, rate: int, burst: int, moments: list[tuple[int, int]]
) -> None:
    """A bucket holds what it would with fractions of any size."""
    counter = Counter(Limit(rate, Unit.MINUTE, algorithm=algorithm, burst=burst))
    used = Fraction(0)
    for pause, addend in moments:
        step = counter.charge(addend, pause)

        used = max(Fraction(0), used - Fraction(pause * rate, WINDOW))
        assert step.passed == (used + addend <= burst)
        used += addend if step.passed else 0
        assert step.remaining == max(0, int(burst - used))


KEPT = 600 * SECOND
"""For how long a bucket that is as new by its own rate is kept for another one."""

CHANGING = st.lists(
    st.tuples(
        st.sampled_from(
            [0, 1, SECOND // 3, SECOND, 7 * SECOND, MINUTE, KEPT - SECOND, KEPT - 1, KEPT]
        ),
        st.booleans(),
        st.sampled_from(["charge", "charge", "charge", "refund"]),
        st.sampled_from([0, 1, 1, 2, 9, 100, 101]),
    ),
    max_size=40,
)
"""Pauses, which of two rates is the rule's after each, and what is done with how many hits."""


@given(
    BUCKETS,
    st.sampled_from([Unit.SECOND, Unit.MINUTE]),
    st.lists(st.sampled_from([1, 3, 7, 60, 100]), min_size=2, max_size=2),
    st.sampled_from([3, 9, 100]),
    CHANGING,
)
def test_buckets_are_exact_while_their_rate_changes(
    algorithm: str,
    unit: Unit,
    rates: list[int],
    burst: int,
    moments: list[tuple[int, bool, str, int]],
) -> None:
    """A new rate counts from the last change on, refunds are whole, and all is exact.

    What had leaked away by the rate of the last change is forgotten ten minutes after it.
    """
    counters = [Counter(Limit(rate, unit, algorithm=algorithm, burst=burst)) for rate in rates]
    window = unit * SECOND
    state: State | None = None
    held, changed, rate_then, now = Fraction(0), T, 0, T
    for pause, second, does, hits in moments:
        counter, rate = counters[second], rates[second]
        now += pause
        counter.state, counter.now = state, now
        since = now - changed
        used = max(Fraction(0), held - Fraction(since * rate, window))
        if (
            rate_then
            and rate_then != rate
            and since >= max(Fraction(KEPT), held * window / rate_then)
        ):
            used = Fraction(0)

        if does == "charge":
            step = counter.charge(hits)
            assert step.passed == (used + hits <= burst)
            used += hits if step.passed else 0
            assert step.remaining == max(0, int(burst - used))
        else:
            step = counter.algorithm.refund(state, now, hits, counter.spec, b"", None)
            used = max(Fraction(0), used - hits)
            assert step.remaining == int(burst - used)
        state = step.state
        if step.counted:
            held, changed, rate_then = used, now, rate


@given(st.integers(1, 5), MOMENTS)
def test_a_stepped_bucket_is_refilled_by_whole_units(
    rate: int, moments: list[tuple[int, int]]
) -> None:
    """Each multiple of the unit brings the whole rate, up to the burst."""
    counter = Counter(Limit(rate, Unit.MINUTE, algorithm="token_bucket", burst=6, stepped=True))
    used, number = 0, T // WINDOW
    for pause, addend in moments:
        step = counter.charge(addend, pause)

        used = max(0, used - rate * (counter.now // WINDOW - number))
        number = counter.now // WINDOW
        assert step.passed == (used + addend <= 6)
        used += addend if step.passed else 0


def test_nothing_is_lost_in_many_steps() -> None:
    """Asked all the time, a bucket has given at any moment exactly the hits that its rate says."""
    rate, steps, pause = 7, 100_000, 1_333_333
    spec = spec_of(Limit(rate, Unit.MINUTE, algorithm="token_bucket", burst=100))
    charge = ALGORITHMS["token_bucket"].charge
    state, passed = charge(None, T, 100, spec, False, b"").state, 0
    for number in range(1, steps + 1):
        step = charge(state, T + number * pause, 1, spec, False, b"")
        state = step.state
        passed += step.passed
        assert passed == number * pause * rate // WINDOW


LIMITS = [
    Limit(5, Unit.MINUTE),
    Limit(5, Unit.MINUTE, algorithm="sliding_window", buckets=6),
    Limit(5, Unit.MINUTE, algorithm="sliding_log"),
    Limit(5, Unit.MINUTE, algorithm="concurrency"),
]
WAITING = [
    *LIMITS,
    Limit(5, Unit.MINUTE, anchor=Anchor.FIRST_HIT),
    Limit(5, Unit.MINUTE, algorithm="sliding_window"),
    Limit(7, Unit.MINUTE, algorithm="token_bucket", burst=5),
    Limit(2, Unit.MINUTE, algorithm="token_bucket", burst=5, stepped=True),
    Limit(7, Unit.MINUTE, algorithm="leaky_bucket", burst=5),
]


@given(MOMENTS, st.data())
@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.algorithm)
def test_refunds_admit_no_more_than_they_give_back(
    limit: Limit, moments: list[tuple[int, int]], data: st.DataObject
) -> None:
    """In any window, what was admitted is at most the limit and what was given back in it."""
    counter = Counter(limit)
    given_back: list[Admitted] = []
    for pause, addend in moments:
        counter.charge(addend, pause)
        if data.draw(st.booleans()):
            given_back.append(Admitted(counter.now, counter.refund(data.draw(st.integers(0, 3)))))

    aligned = limit.algorithm == "fixed_window"
    for start in {one.time - one.time % WINDOW * aligned for one in counter.admitted}:
        admitted = total(one for one in counter.admitted if start <= one.time < start + WINDOW)
        refunded = total(one for one in given_back if start <= one.time < start + WINDOW)
        assert admitted <= 5 + refunded


ROOMY = [limit._replace(requests_per_unit=9_000, burst=None) for limit in [*WAITING, *WAYS]]
ROOMY.append(Limit(9_000, Unit.MINUTE, algorithm="leaky_bucket", max_wait_us=MINUTE))


@given(st.sampled_from(ROOMY), MOMENTS, MOMENTS, st.integers(1, 9), st.integers(0, 9 * SECOND))
def test_an_undone_charge_leaves_no_trace(
    limit: Limit,
    before: list[tuple[int, int]],
    between: list[tuple[int, int]],
    addend: int,
    pause: int,
) -> None:
    """A counter in which a charge was undone is as one without it; a bucket is never fuller.

    And at most emptier by what has leaked since; a queue by the charge, if others are behind it.
    """
    counter, without = Counter(limit), Counter(limit)
    for moment, hits in before:
        for each in (counter, without):
            each.charge(hits, moment)
    step = counter.charge(addend, pause)
    without.now = charged_at = counter.now
    opened = limit.anchor is Anchor.FIRST_HIT and without.peek().remaining == 9_000
    for moment, hits in between:
        for each in (counter, without):
            each.charge(hits, moment)

    receipt = Receipt(charged_at, charged_at + step.reset_us)
    counter.undo(addend, receipt, charged_at.to_bytes(8, "big"))

    missing = without.peek().remaining - counter.peek().remaining
    if counter.spec.rate:
        leaked = -(-9_000 * (counter.now - charged_at) // MINUTE)
        behind = addend if counter.spec.form.queue and total(without.admitted) else 0
        assert 0 <= missing <= max(leaked, behind)
    elif not opened:  # then the hits behind it lie in a window that else began later
        assert missing == 0


@given(st.sampled_from([*WAITING, *WAYS]), MOMENTS)
def test_a_wait_that_is_told_is_exact(limit: Limit, moments: list[tuple[int, int]]) -> None:
    """Denied hits pass after the wait that is told, and not a microsecond before."""
    counter = Counter(limit)
    for pause, addend in moments:
        step = counter.charge(addend, pause)
        if step.passed or addend > capacity_of(limit):
            continue
        for early, passes in ((1, False), (0, True)):
            again = counter.algorithm.charge(
                counter.state,
                counter.now + step.retry_us - early,
                addend,
                counter.spec,
                False,
                b"later---",
            )
            assert again.passed == passes


@given(st.sampled_from(WAYS), MOMENTS)
def test_a_peek_changes_nothing(limit: Limit, moments: list[tuple[int, int]]) -> None:
    """A peek tells what is left and leaves the state as it was; so does a denied charge."""
    counter = Counter(limit)
    for pause, addend in moments:
        before = counter.state
        step = counter.charge(addend, pause)
        if not step.passed:
            assert (step.counted, step.state) == (0, before)

        peek = counter.peek()

        assert (peek.passed, peek.counted, peek.state) == (True, 0, counter.state)
        assert peek.remaining == (step.remaining if step.passed else peek.remaining)
