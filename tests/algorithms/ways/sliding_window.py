"""sliding_window: its ways to count, what each must answer, and what a counter may cost."""

from __future__ import annotations

from ratelimit_service.model import MAX_ADDEND, Limit, Unit
from tests.algorithms.asking import at, hit
from tests.algorithms.costs import PLENTY, Cost
from tests.stores.cases import MINUTE, SECOND, YEAR, Case, T, over
from tests.stores.cases import ok as passed

BUDGET = Limit(1_000, Unit.YEAR, algorithm="sliding_window")
SLIDING = Limit(7, Unit.MINUTE, algorithm="sliding_window")
PARTS = Limit(6, Unit.MINUTE, algorithm="sliding_window", buckets=6)
MANY_PARTS = PARTS._replace(requests_per_unit=MAX_ADDEND)
BRIEF_PARTS = PARTS._replace(buckets=2)
YEARLY_SLIDING = Limit(MAX_ADDEND, Unit.YEAR, algorithm="sliding_window")
YEARLY_PARTS = YEARLY_SLIDING._replace(buckets=60)
YEARLY_HITS = MAX_ADDEND - 1

WAYS = [SLIDING, PARTS]

WALKED = [
    *(SLIDING._replace(requests_per_unit=number) for number in (7, 20, MAX_ADDEND)),
    *(PARTS._replace(requests_per_unit=number) for number in (6, 300, 70_000)),
]

COSTS = {
    "sliding_window": Cost(f"{PLENTY}, algorithm: sliding_window"),
    "sliding_window, buckets: 60": Cost(
        f"{PLENTY}, algorithm: sliding_window, buckets: 60", 500, 10_000, 400, 480
    ),
}

CASES = [
    Case(
        "5 before and 3 now, 30 % into the minute, are 6.5, rounded down: one of 7 more passes",
        [
            at(T, passed(2, 5, MINUTE), hit(SLIDING, 5)),
            at(
                T + MINUTE + 18 * SECOND,
                passed(1, 3, 42 * SECOND),
                hit(SLIDING, 3),
            ),
            at(
                T + MINUTE + 18 * SECOND,
                passed(0, 1, 42 * SECOND),
                hit(SLIDING, 1),
            ),
            # 3.5 of the minute before weigh 3 until they weigh less than 3, at 24 s.
            at(T + MINUTE + 18 * SECOND, over(0, reset_us=6 * SECOND + 1), hit(SLIDING)),
            at(T + MINUTE + 24 * SECOND, over(0, reset_us=1), hit(SLIDING)),
            at(
                T + MINUTE + 24 * SECOND + 1,
                passed(0, 1, 36 * SECOND - 1),
                hit(SLIDING),
            ),
        ],
    ),
    Case(
        "two windows later nothing of a count is left",
        [
            at(T, passed(2, 5, MINUTE), hit(SLIDING, 5)),
            at(T + 2 * MINUTE, passed(7, 0), hit(SLIDING, 0)),
        ],
    ),
    Case(
        "a sliding window is refunded from this window first, then from the one before",
        [
            at(T, passed(2, 5, MINUTE), hit(SLIDING, 5)),
            at(T + MINUTE, passed(1), hit(SLIDING)),
            at(T + MINUTE, passed(4, 3), hit(SLIDING, 3, refund=True)),
            at(T + MINUTE, passed(7, 3), hit(SLIDING, 9, refund=True)),
        ],
    ),
    Case(
        "of the window before nothing is given back that weighs nothing",
        [
            at(T, passed(6), hit(SLIDING)),
            at(T + MINUTE, passed(7, 1), hit(SLIDING, refund=True)),
            at(T + MINUTE, passed(6), hit(SLIDING)),
            at(T + 2 * MINUTE + 1, passed(7, 0, MINUTE - 1), hit(SLIDING, refund=True)),
        ],
    ),
    Case(
        "a window in which nothing counts is new: hits that weighed nothing cannot be given back",
        [
            at(T, passed(6), hit(SLIDING)),
            at(T + MINUTE + 1, passed(5, 2, MINUTE - 1), hit(SLIDING, 2)),
            at(T + MINUTE + 1, passed(7, 2, MINUTE - 1), hit(SLIDING, 9, refund=True)),
        ],
    ),
    Case(
        "a sliding window whose clock steps back goes on at its beginning, and no further back",
        [
            at(T, passed(0, 7), hit(SLIDING, 7)),
            at(T - 1, over(0, reset_us=MINUTE + 2), hit(SLIDING)),
            at(T - MINUTE - 1, passed(6, 1, 1), hit(SLIDING)),
        ],
    ),
    Case(
        "a sliding window with count_denied counts past its limit",
        [
            at(T, over(7, 9), hit(SLIDING, 9, count_denied=True)),
            at(T, over(0, reset_us=MINUTE + 6_666_667), hit(SLIDING, 0)),
            at(T + MINUTE + 30 * SECOND, passed(3, 0, 30 * SECOND), hit(SLIDING, 0)),
        ],
    ),
    Case(
        "a sliding window with count_denied keeps what is far above its limit, to be given back",
        [
            at(YEAR * 60, over(1_000, 5_000, YEAR), hit(BUDGET, 5_000, count_denied=True)),
            at(YEAR * 60, passed(500, 4_500, YEAR), hit(BUDGET, 4_500, refund=True)),
            at(
                YEAR * 61 - 1,
                over(500, MAX_ADDEND, YEAR),
                hit(BUDGET, MAX_ADDEND, count_denied=True),
            ),
            # 4,294,967,295 of the year before weigh 1,001 until 7,349,889.7 us before its end.
            at(YEAR * 61, over(0, reset_us=YEAR - 7_349_880), hit(BUDGET, 0)),
            at(YEAR * 62 - 7_349_890, over(0, reset_us=10), hit(BUDGET, 0)),
            at(YEAR * 62 - 7_349_880, passed(0, 0, 7_349_880), hit(BUDGET, 0)),
            at(YEAR * 62 - 3_675_000, passed(500, 0, 3_675_000), hit(BUDGET, 0)),
        ],
    ),
    Case(
        "sub-counters count the oldest part whole until the window has left it",
        [
            at(T + 5 * SECOND, passed(2, 4, 65 * SECOND), hit(PARTS, 4)),
            at(T + 12 * SECOND, passed(0, 2, 68 * SECOND), hit(PARTS, 2)),
            at(T + 12 * SECOND, over(0, reset_us=58 * SECOND), hit(PARTS)),
            at(T + 12 * SECOND, over(0, reset_us=68 * SECOND), hit(PARTS, 5)),
            at(T + 70 * SECOND - 1, over(0, reset_us=1), hit(PARTS)),
            at(T + 70 * SECOND, passed(3, 1, 70 * SECOND), hit(PARTS)),
            at(T + 10 * MINUTE, passed(6, 0, 0), hit(PARTS, 0)),
        ],
    ),
    Case(
        "sub-counters are refunded from the newest to the oldest",
        [
            at(T, passed(2, 4, 70 * SECOND), hit(PARTS, 4)),
            at(T + 10 * SECOND, passed(0, 2, 70 * SECOND), hit(PARTS, 2)),
            at(T + 10 * SECOND, passed(3, 3, 60 * SECOND), hit(PARTS, 3, refund=True)),
            at(T + 70 * SECOND, passed(6, 0, 0), hit(PARTS, 3, refund=True)),
        ],
    ),
    Case(
        "sub-counters hold any number of hits",
        [
            at(T, passed(MAX_ADDEND - 300, 300, 70 * SECOND), hit(MANY_PARTS, 300)),
            at(
                T + MINUTE,
                passed(MAX_ADDEND - 70_300, 70_000, 70 * SECOND),
                hit(MANY_PARTS, 70_000),
            ),
            at(T + 70 * SECOND, passed(MAX_ADDEND - 70_001, 1, 70 * SECOND), hit(MANY_PARTS)),
        ],
    ),
    Case(
        "sub-counters go on when the clock steps back by less than a window, else start anew",
        [
            at(T, passed(0, 6, 70 * SECOND), hit(PARTS, 6)),
            at(T - 50 * SECOND, over(0, reset_us=120 * SECOND), hit(PARTS)),
            at(T - MINUTE, passed(5, 1, 70 * SECOND), hit(PARTS)),
        ],
    ),
    Case(
        "the largest limit in a year is exact in a sliding window",
        [
            at(YEAR * 60, passed(1, YEARLY_HITS, YEAR), hit(YEARLY_SLIDING, YEARLY_HITS)),
            at(YEAR * 60, passed(0, 1, YEAR), hit(YEARLY_SLIDING)),
            at(YEAR * 60, over(0, reset_us=YEAR + 100 * SECOND), hit(YEARLY_SLIDING)),
            # Half of it, 2147483647.5, is rounded down.
            at(YEAR * 61 + YEAR // 2, passed(2**31, 0, YEAR // 2), hit(YEARLY_SLIDING, 0)),
        ],
    ),
]
