"""What all algorithms must answer, for the table of cases in `cases`: their own, and mixed ones."""

from __future__ import annotations

from ratelimit_service.algorithms import spec_of
from ratelimit_service.model import MAX_ADDEND, Limit, Unit
from tests.algorithms import ways
from tests.algorithms.asking import at, hit
from tests.algorithms.ways.concurrency import LEASES
from tests.algorithms.ways.fixed_window import BERLIN_DAY, FIRST_HIT, UTC_MONTH
from tests.algorithms.ways.leaky_bucket import METER
from tests.algorithms.ways.sliding_log import LOG
from tests.algorithms.ways.sliding_window import (
    BRIEF_PARTS,
    PARTS,
    SLIDING,
    YEARLY_HITS,
    YEARLY_PARTS,
    YEARLY_SLIDING,
)
from tests.algorithms.ways.token_bucket import BURST_1000, PER_SECOND, STEPPED, TOKENS
from tests.stores.cases import MINUTE, SECOND, YEAR, Case, T, over
from tests.stores.cases import ok as passed

__all__ = [
    "ALGORITHM_CASES",
    "BERLIN_DAY",
    "BRIEF_PARTS",
    "EVERY_ALGORITHM",
    "FIRST_HIT",
    "LEASES",
    "LOG",
    "METER",
    "PARTS",
    "SLIDING",
    "STEPPED",
    "TOKENS",
    "UTC_MONTH",
    "YEARLY_SLIDING",
    "at",
    "hit",
]

EVERY_ALGORITHM = ways.WAYS

HUGE_TOKENS = Limit(1, Unit.YEAR, algorithm="token_bucket", burst=MAX_ADDEND)
HUGE_METER = HUGE_TOKENS._replace(algorithm="leaky_bucket")
HUGE_STEPPED = HUGE_TOKENS._replace(stepped=True)
YEARLY_TOKENS = Limit(MAX_ADDEND, Unit.YEAR, algorithm="token_bucket")
LAST_EXACT = 2**53 // (100 * SECOND) * 100 * SECOND

MIXED = [
    Case(
        "more hits than the limit never pass, and are told to wait one window",
        [
            at(T + 1, over(5, reset_us=MINUTE), hit(FIRST_HIT, 6)),
            at(T + 1, over(7, reset_us=MINUTE), hit(SLIDING, 8)),
            at(T + 1, over(6, reset_us=MINUTE), hit(PARTS, 7)),
            at(T + 1, over(3, reset_us=MINUTE), hit(LOG, 4)),
            at(T + 1, over(3, reset_us=MINUTE), hit(LEASES, 4)),
            at(T + 1, over(3, reset_us=0), hit(TOKENS, 4)),
            at(T + 1, passed(2, 1, 10 * SECOND), hit(TOKENS)),
            at(T + 1, over(2, reset_us=10 * SECOND), hit(TOKENS, 4)),
        ],
    ),
    Case(
        "buckets are refunded up to full, and fractions of a hit too",
        [
            at(T, passed(1, 2, 20 * SECOND), hit(TOKENS, 2)),
            at(T + 5 * SECOND, passed(2, 1, 5 * SECOND), hit(TOKENS, refund=True)),
            at(T + 5 * SECOND, passed(3, 1, 0), hit(TOKENS, 7, refund=True)),
            at(T + 5 * SECOND, passed(3, 0, 0), hit(TOKENS, 7, refund=True)),
            at(T, passed(0, 3, 30 * SECOND), hit(METER, 3)),
            at(T, passed(2, 2, 10 * SECOND), hit(METER, 2, refund=True)),
        ],
    ),
    *(
        Case(
            f"a {limit.algorithm} whose rate was lowered goes on from its last hit",
            [
                at(T, passed(0, 100, SECOND), hit(limit, 100)),
                at(
                    T + 2_200_000,
                    passed(2, 0, 98 * SECOND - 200_000 * (not limit.stepped)),
                    hit(limit._replace(requests_per_unit=1, burst=100), 0),
                ),
            ],
        )
        for limit in (PER_SECOND, PER_SECOND._replace(algorithm="leaky_bucket"))
    ),
    *(
        Case(
            f"a lower rate is that of the last ten minutes at most ({name})",
            [
                at(T, passed(0, 1_000, 10 * SECOND), hit(limit, 1_000)),
                at(T + 10 * MINUTE - 1, passed(599, 0, 400 * SECOND + 1), hit(slow, 0)),
                at(T + 10 * MINUTE, passed(1_000, 0, 0), hit(slow, 0)),
                at(T + 10 * MINUTE, passed(0, 1_000, 1_000 * SECOND), hit(slow, 1_000)),
                at(T + 20 * MINUTE, over(600, reset_us=100 * SECOND), hit(slow, 700)),
                at(T + 20 * MINUTE, passed(1_000, 0, 0), hit(limit, 0)),
            ],
        )
        for name, limit, slow in (
            ("a token bucket", BURST_1000, BURST_1000._replace(requests_per_unit=1)),
            (
                "a leaky bucket",
                BURST_1000._replace(algorithm="leaky_bucket"),
                BURST_1000._replace(algorithm="leaky_bucket", requests_per_unit=1),
            ),
        )
    ),
    Case(
        "the largest limit in a year is exact in sub-counters and in a bucket",
        [
            at(
                YEAR * 60, passed(1, YEARLY_HITS, YEAR + YEAR // 60), hit(YEARLY_PARTS, YEARLY_HITS)
            ),
            at(YEAR * 60, passed(0, 1, YEAR + YEAR // 60), hit(YEARLY_PARTS)),
            at(YEAR * 60, over(0, reset_us=YEAR + YEAR // 60), hit(YEARLY_PARTS)),
            at(YEAR * 60, passed(1, YEARLY_HITS, YEAR), hit(YEARLY_TOKENS, YEARLY_HITS)),
            at(YEAR * 60, passed(0, 1, YEAR), hit(YEARLY_TOKENS)),
            at(YEAR * 60, over(0, reset_us=100 * SECOND), hit(YEARLY_TOKENS)),
            at(YEAR * 60 + YEAR // 2, passed(2**31 - 1, 0, YEAR // 2), hit(YEARLY_TOKENS, 0)),
        ],
    ),
    Case(
        "a bucket that is as new in more than 285 years is told to be so in the last exact tick",
        [
            at(T, passed(MAX_ADDEND - 2, 2, 2 * YEAR - 40 * SECOND), hit(HUGE_TOKENS, 2)),
            at(T, passed(1, MAX_ADDEND - 3, LAST_EXACT - T), hit(HUGE_TOKENS, MAX_ADDEND - 3)),
            at(T, over(1, reset_us=LAST_EXACT - T), hit(HUGE_TOKENS, 300)),
            at(T, passed(0, 1, LAST_EXACT - T), hit(HUGE_TOKENS)),
            at(T, over(0, reset_us=YEAR - 40 * SECOND), hit(HUGE_TOKENS)),
            at(
                T,
                passed(MAX_ADDEND - 7, MAX_ADDEND - 7, 7 * YEAR - 40 * SECOND),
                hit(HUGE_TOKENS, MAX_ADDEND - 7, refund=True),
            ),
            at(T + 6 * YEAR, passed(MAX_ADDEND - 1, 0, YEAR - 40 * SECOND), hit(HUGE_TOKENS, 0)),
            at(T, passed(0, MAX_ADDEND, LAST_EXACT - T), hit(HUGE_METER, MAX_ADDEND)),
            at(T, passed(0, MAX_ADDEND, LAST_EXACT - T), hit(HUGE_STEPPED, MAX_ADDEND)),
        ],
    ),
]

EMPTY = [
    Case(
        f"{place}: what counts nothing is new, also when the clock has stepped back",
        [
            at(T, passed(spec_of(limit).limit - 1, 1, used_us), hit(limit)),
            at(T, passed(spec_of(limit).limit, 1, empty_us), hit(limit, refund=True)),
            at(T - SECOND, passed(spec_of(limit).limit - 1, 1, anew_us), hit(limit)),
            at(T - SECOND, passed(spec_of(limit).limit, 1, left_us), hit(limit, refund=True)),
            at(T, passed(spec_of(limit).limit - 1, 1, used_us), hit(limit)),
            at(T - SECOND, passed(spec_of(limit).limit, 1, left_us), hit(limit, refund=True)),
        ],
    )
    for place, (limit, used_us, empty_us, anew_us, left_us) in enumerate(
        [
            (Limit(5, Unit.MINUTE), MINUTE, MINUTE, SECOND, SECOND),
            (FIRST_HIT, MINUTE, 0, MINUTE, 0),
            (SLIDING, MINUTE, MINUTE, SECOND, SECOND),
            (PARTS, 70 * SECOND, 0, 61 * SECOND, 0),
            (LOG, MINUTE, 0, MINUTE, 0),
            (TOKENS, 10 * SECOND, 0, 10 * SECOND, 0),
            (STEPPED, MINUTE, 0, SECOND, 0),
            (METER, 10 * SECOND, 0, 10 * SECOND, 0),
            (LEASES, MINUTE, 0, MINUTE, 0),
        ]
    )
]

ALGORITHM_CASES = [*ways.CASES, *MIXED, *EMPTY]
