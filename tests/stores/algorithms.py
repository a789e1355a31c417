"""What each algorithm must answer, for the table of cases in `cases`."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from ratelimit_service.algorithms import measure_of, several
from ratelimit_service.model import (
    MAX_ADDEND,
    Anchor,
    Calendar,
    Hit,
    Limit,
    Mode,
    Outcome,
    Unit,
)
from tests.stores.cases import DAY, HOUR, MINUTE, SECOND, YEAR, Case, Charge, T, over
from tests.stores.cases import ok as passed

BUDGET = Limit(1_000, Unit.YEAR, algorithm="sliding_window")
FIRST_HIT = Limit(5, Unit.MINUTE, anchor=Anchor.FIRST_HIT)
SLIDING = Limit(7, Unit.MINUTE, algorithm="sliding_window")
PARTS = Limit(6, Unit.MINUTE, algorithm="sliding_window", buckets=6)
LOG = Limit(3, Unit.MINUTE, algorithm="sliding_log")
TOKENS = Limit(6, Unit.MINUTE, algorithm="token_bucket", burst=3)
STEPPED = Limit(2, Unit.MINUTE, algorithm="token_bucket", burst=5, stepped=True)
METER = Limit(6, Unit.MINUTE, algorithm="leaky_bucket", burst=3)
QUEUE = Limit(6, Unit.MINUTE, algorithm="leaky_bucket", max_wait_us=30_000_000)
LEASES = Limit(3, Unit.MINUTE, algorithm="concurrency")
MANY_PARTS = PARTS._replace(requests_per_unit=MAX_ADDEND)
BURST = Limit(100, Unit.SECOND, algorithm="token_bucket", burst=500)
PER_SECOND = Limit(100, Unit.SECOND, algorithm="token_bucket")
BURST_1000 = PER_SECOND._replace(burst=1_000)
STEPS_1000 = BURST_1000._replace(stepped=True)
DAILY = Limit(200, Unit.DAY, algorithm="token_bucket")
THIRDS = Limit(3, Unit.SECOND, algorithm="token_bucket")
MOST_TOKENS = Limit(MAX_ADDEND, Unit.MINUTE, algorithm="token_bucket")
HUGE_TOKENS = Limit(1, Unit.YEAR, algorithm="token_bucket", burst=MAX_ADDEND)
HUGE_METER = HUGE_TOKENS._replace(algorithm="leaky_bucket")
HUGE_STEPPED = HUGE_TOKENS._replace(stepped=True)
BERLIN_DAY = Limit(2, Unit.DAY, anchor=Calendar(Unit.DAY, "Europe/Berlin"))
YEARLY_SLIDING = Limit(MAX_ADDEND, Unit.YEAR, algorithm="sliding_window")
YEARLY_PARTS = YEARLY_SLIDING._replace(buckets=60)
YEARLY_TOKENS = Limit(MAX_ADDEND, Unit.YEAR, algorithm="token_bucket")
UTC_MONTH = Limit(2, Unit.MONTH, anchor=Calendar(Unit.MONTH))
UTC_YEAR = Limit(2, Unit.YEAR, anchor=Calendar(Unit.YEAR))
MONDAY_WEEK = Limit(2, Unit.WEEK, anchor=Calendar(Unit.WEEK))
SUNDAY_WEEK = Limit(2, Unit.WEEK, anchor=Calendar(Unit.WEEK, week_start=6))
BRIEF_PARTS = PARTS._replace(buckets=2)
EVERY_ALGORITHM = [
    Limit(5, Unit.MINUTE),
    FIRST_HIT,
    UTC_MONTH,
    SLIDING,
    PARTS,
    LOG,
    TOKENS,
    STEPPED,
    METER,
    LEASES,
]


def hit(
    limit: Limit,
    addend: int = 1,
    *,
    key: str = "a",
    mode: Mode = Mode.ENFORCED,
    count_denied: bool = False,
    refund: bool = False,
    lease: bytes = b"",
    joined: bool = False,
) -> Hit:
    measure = measure_of(limit)
    counted = f"{measure.key}{key}".encode()
    name = b"{%08x}%b" % (crc32(counted), counted)
    return Hit(name, measure, addend, mode, count_denied, refund, lease, joined)


def at(now_us: int, outcome: Outcome, *hits: Hit) -> Charge:
    """One hit, or several with the same outcome."""
    return Charge(now_us, hits, [outcome] * len(hits))


def spend(limit: Limit, now_us: int, outcomes: Sequence[Outcome]) -> list[Charge]:
    """One hit after the other at one moment."""
    return [at(now_us, outcome, hit(limit)) for outcome in outcomes]


FIXED = [
    Case(
        "a window that the first hit begins ends its length after it, to the microsecond",
        [
            at(T + 7, passed(5, 0, 0), hit(FIRST_HIT, 0)),
            at(T + 7, passed(1, 4), hit(FIRST_HIT, 4)),
            at(T + 8, passed(0, 1, MINUTE - 1), hit(FIRST_HIT)),
            at(T + MINUTE + 6, over(0, reset_us=1), hit(FIRST_HIT)),
            at(T + MINUTE + 7, passed(4), hit(FIRST_HIT)),
        ],
    ),
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
        "a window that the first hit begins is refunded while it lives, and counts what is denied",
        [
            at(T, over(5, 6), hit(FIRST_HIT, 6, count_denied=True)),
            at(T, over(0), hit(FIRST_HIT, 0)),
            at(T, passed(2, 3), hit(FIRST_HIT, 3, refund=True)),
            at(T + MINUTE, passed(5, 0, 0), hit(FIRST_HIT, 3, refund=True)),
        ],
    ),
    Case(
        "a window whose hits are all given back is as one that has not begun",
        [
            at(T, passed(3, 2), hit(FIRST_HIT, 2)),
            at(T + SECOND, passed(5, 2, 0), hit(FIRST_HIT, 2, refund=True)),
            at(T + SECOND, passed(5, 0, 0), hit(FIRST_HIT, 0)),
            at(T + SECOND, passed(4), hit(FIRST_HIT)),
        ],
    ),
    Case(
        "a window that the first hit begins goes on when the clock steps back by less than it",
        [
            at(T, passed(0, 5), hit(FIRST_HIT, 5)),
            at(T - MINUTE + 1, over(0, reset_us=2 * MINUTE - 1), hit(FIRST_HIT)),
            at(T - MINUTE, passed(4), hit(FIRST_HIT)),
        ],
    ),
]

SLIDING_WINDOW = [
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
]

SLIDING_LOG = [
    Case(
        "a log admits a hit when the oldest has left the window, to the microsecond",
        [
            at(T, passed(2), hit(LOG)),
            at(T + 10 * SECOND, passed(1), hit(LOG)),
            at(T + 20 * SECOND, passed(0), hit(LOG)),
            at(T + MINUTE - 1, over(0, reset_us=1), hit(LOG)),
            at(T + MINUTE, passed(0), hit(LOG)),
            at(T + MINUTE + 1, over(0, reset_us=20 * SECOND - 1), hit(LOG, 2)),
            at(T + 2 * MINUTE, passed(3, 0, 0), hit(LOG, 0)),
        ],
    ),
    Case(
        "a log is refunded from its newest hits",
        [
            at(T, passed(1, 2), hit(LOG, 2)),
            at(T + 10 * SECOND, passed(0), hit(LOG)),
            at(T + 10 * SECOND, passed(2, 2, 50 * SECOND), hit(LOG, 2, refund=True)),
            at(T + MINUTE, passed(3, 0, 0), hit(LOG, 2, refund=True)),
        ],
    ),
    Case(
        "a log with count_denied keeps what was denied",
        [
            at(T, over(3, 4), hit(LOG, 4, count_denied=True)),
            at(T + 1, over(0, 1, MINUTE - 1), hit(LOG, count_denied=True)),
            at(T + MINUTE - 1, over(0, reset_us=1), hit(LOG, 0)),
            at(T + MINUTE, passed(2, 0, 1), hit(LOG, 0)),
        ],
    ),
    Case(
        "a log goes on when the clock steps back by less than a window, else starts anew",
        [
            at(T, passed(0, 3), hit(LOG, 3)),
            at(T - 30 * SECOND, over(0, reset_us=90 * SECOND), hit(LOG)),
            at(T - MINUTE, passed(2), hit(LOG)),
        ],
    ),
]

BUCKETS = [
    Case(
        "a token comes back after its share of the unit, and fractions of one are kept",
        [
            at(T, passed(0, 3, 30 * SECOND), hit(TOKENS, 3)),
            at(T, over(0, reset_us=10 * SECOND), hit(TOKENS)),
            at(T + 10 * SECOND - 1, over(0, reset_us=1), hit(TOKENS)),
            at(T + 10 * SECOND, passed(0, 1, 30 * SECOND), hit(TOKENS)),
            at(T + 15 * SECOND, passed(0, 0, 25 * SECOND), hit(TOKENS, 0)),
            at(T + 15 * SECOND, over(0, reset_us=15 * SECOND), hit(TOKENS, 2)),
            at(T + 30 * SECOND, passed(0, 2, 30 * SECOND), hit(TOKENS, 2)),
            at(T + 2 * MINUTE, passed(3, 0, 0), hit(TOKENS, 0)),
        ],
    ),
    Case(
        "a burst of 500 with 100 a second is refilled in five seconds",
        [
            at(T, passed(0, 500, 5 * SECOND), hit(BURST, 500)),
            at(T + SECOND, passed(0, 100, 5 * SECOND), hit(BURST, 100)),
            at(T + SECOND + 9_999, over(0, reset_us=1), hit(BURST)),
        ],
    ),
    Case(
        "200 a day come back one at a time, every 432 seconds",
        [
            at(T, passed(0, 200, DAY), hit(DAILY, 200)),
            at(T + 432 * SECOND - 1, over(0, reset_us=1), hit(DAILY)),
            at(T + 432 * SECOND, passed(0, 1, DAY), hit(DAILY)),
        ],
    ),
    Case(
        "thirds of a second are never lost",
        [
            at(T, passed(0, 3, SECOND), hit(THIRDS, 3)),
            at(T + 333_333, over(0, reset_us=1), hit(THIRDS)),
            at(T + 333_334, passed(0, 1, SECOND), hit(THIRDS)),
            at(T + 666_666, over(0, reset_us=1), hit(THIRDS)),
            at(T + 666_667, passed(0, 1, SECOND), hit(THIRDS)),
            at(T + SECOND - 1, over(0, reset_us=1), hit(THIRDS)),
            at(T + SECOND, passed(0, 1, SECOND), hit(THIRDS)),
        ],
    ),
    Case(
        "a stepped refill adds all of a unit's tokens with the unit, and no more than fit",
        [
            at(T + 30 * SECOND, passed(0, 5, 150 * SECOND), hit(STEPPED, 5)),
            at(T + 30 * SECOND, over(0, reset_us=30 * SECOND), hit(STEPPED)),
            at(T + MINUTE - 1, over(0, reset_us=1), hit(STEPPED, 2)),
            at(T + MINUTE, over(2, reset_us=MINUTE), hit(STEPPED, 3)),
            at(T + MINUTE, passed(0, 2, 3 * MINUTE), hit(STEPPED, 2)),
            at(T + 9 * MINUTE, passed(5, 0, 0), hit(STEPPED, 0)),
        ],
    ),
    Case(
        "a leaky bucket is the mirror of a token bucket: what leaks has room again",
        [
            at(T, passed(0, 3, 30 * SECOND), hit(METER, 3)),
            at(T + 10 * SECOND - 1, over(0, reset_us=1), hit(METER)),
            at(T + 10 * SECOND, passed(0, 1, 30 * SECOND), hit(METER)),
        ],
    ),
    Case(
        "a queue holds what leaks in max_wait; a peek takes no slot",
        [
            at(T, passed(2, 1, 10 * SECOND), hit(QUEUE)),
            at(T, passed(2, 0, 10 * SECOND), hit(QUEUE, 0)),
            at(T, passed(1, 1, 20 * SECOND), hit(QUEUE)),
            at(T, passed(0, 1, 30 * SECOND), hit(QUEUE)),
            at(T, over(0, reset_us=10 * SECOND), hit(QUEUE)),
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
    Case(
        "a bucket takes only what has room, even where denied hits are counted",
        [
            at(T, over(3, 0, 0), hit(TOKENS, 4, count_denied=True)),
            at(T, passed(0, 3, 30 * SECOND), hit(TOKENS, 3, count_denied=True)),
            at(T, over(0, 0, 10 * SECOND), hit(TOKENS, count_denied=True)),
        ],
    ),
    Case(
        "a bucket goes on when the clock steps back by less than a window, else starts anew",
        [
            at(T, passed(0, 3, 30 * SECOND), hit(TOKENS, 3)),
            at(T - 30 * SECOND, over(0, reset_us=40 * SECOND), hit(TOKENS)),
            at(T - MINUTE, passed(2, 1, 10 * SECOND), hit(TOKENS)),
        ],
    ),
    Case(
        "a bucket whose rule has other numbers goes on from the same count",
        [
            at(T, passed(0, 3, 30 * SECOND), hit(TOKENS, 3)),
            at(
                T + 5 * SECOND,
                passed(6, 1, 15 * SECOND),
                hit(TOKENS._replace(burst=9, requests_per_unit=12)),
            ),
            at(T + 5 * SECOND, over(0, reset_us=10 * SECOND), hit(TOKENS)),
            at(T + 5 * SECOND, passed(MAX_ADDEND - 3, 0, 100), hit(MOST_TOKENS, 0)),
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
        "a lower rate of a stepped bucket is that of the last ten minutes at most",
        [
            at(T, passed(0, 1_000, 10 * SECOND), hit(STEPS_1000, 1_000)),
            at(
                T + 10 * MINUTE - 1,
                passed(599, 0, 401 * SECOND - 999_999),
                hit(STEPS_1000._replace(requests_per_unit=1), 0),
            ),
            at(
                T + 10 * MINUTE,
                passed(1_000, 0, 0),
                hit(STEPS_1000._replace(requests_per_unit=1), 0),
            ),
        ],
    ),
]

CONCURRENCY = [
    Case(
        "no more leases than the cap are out, and one that is not given back ends by itself",
        [
            at(T, passed(2), hit(LEASES, lease=b"lease--1")),
            at(T + SECOND, passed(0, 2), hit(LEASES, 2, lease=b"lease--2")),
            at(T + SECOND, over(0, reset_us=59 * SECOND), hit(LEASES, lease=b"lease--3")),
            at(T + SECOND, passed(0, 0), hit(LEASES, 0)),
            at(T + MINUTE - 1, over(0, reset_us=1), hit(LEASES, lease=b"lease--3")),
            at(T + MINUTE, passed(0, 1), hit(LEASES, lease=b"lease--3")),
        ],
    ),
    Case(
        "of several leases taken at once those are taken for which there is room",
        [
            at(
                T, passed(1, 2), hit(LEASES, 2, lease=several([(1, b"lease--1"), (1, b"lease--2")]))
            ),
            at(
                T + 1,
                passed(0, 1),
                hit(LEASES, 3, lease=several([(2, b"lease--3"), (1, b"lease--4")])),
            ),
            at(T + 1, passed(0, 0), hit(LEASES, 1, lease=several([(1, b"lease--5")]))),
            at(T + 1, passed(0, 0), hit(LEASES, 2, refund=True, lease=b"lease--3")),
            at(T + 1, passed(1, 1), hit(LEASES, refund=True, lease=b"lease--1")),
            at(T + 1, passed(2, 1, MINUTE - 1), hit(LEASES, refund=True, lease=b"lease--4")),
            at(T + 1, passed(3, 1, 0), hit(LEASES, refund=True, lease=b"lease--2")),
        ],
    ),
    Case(
        "a lease is given back by its id, an unknown id gives back nothing",
        [
            at(T, passed(2), hit(LEASES, lease=b"lease--1")),
            at(T + 1, passed(1), hit(LEASES, lease=b"lease--2")),
            at(T + 2, passed(0), hit(LEASES, lease=b"lease--3")),
            at(T + 2, passed(0, 0), hit(LEASES, refund=True, lease=b"lease--9")),
            at(T + 2, passed(1), hit(LEASES, refund=True, lease=b"lease--2")),
            at(T + 2, passed(1, 0), hit(LEASES, refund=True, lease=b"lease--2")),
            at(T + 2, passed(2, 1, MINUTE - 2), hit(LEASES, refund=True, lease=b"lease--3")),
            at(T + 2, passed(3, 1, 0), hit(LEASES, 5, refund=True, lease=b"lease--1")),
        ],
    ),
    Case(
        "without an id the oldest leases are given back",
        [
            at(T, passed(1, 2), hit(LEASES, 2, lease=b"lease--1")),
            at(T + 1, passed(0), hit(LEASES, lease=b"lease--2")),
            at(T + 1, passed(1), hit(LEASES, refund=True)),
            at(T + 1, passed(3, 2, 0), hit(LEASES, 9, refund=True)),
        ],
    ),
    Case(
        "a denied request takes no lease, whatever else it counts",
        [
            Charge(
                T,
                [hit(LEASES, lease=b"lease--1"), hit(TOKENS, 4, key="b")],
                [passed(3, 0, 0), over(3, 0, 0)],
            ),
            at(T, passed(0, 3), hit(LEASES, 3, lease=b"lease--2")),
        ],
    ),
    Case(
        "leases go on when the clock steps back by less than a window, else start anew",
        [
            at(T, passed(0, 3), hit(LEASES, 3, lease=b"lease--1")),
            at(T - 30 * SECOND, over(0, reset_us=90 * SECOND), hit(LEASES, lease=b"lease--2")),
            at(T - MINUTE, passed(2), hit(LEASES, lease=b"lease--3")),
        ],
    ),
]

SPRING = 1_774_738_800 * SECOND
"""29 March 2026 in Berlin begins, which has 23 hours."""
AUTUMN = 1_792_879_200 * SECOND
"""25 October 2026 in Berlin begins, which has 25 hours."""
FEBRUARY_2028 = 1_832_976_000 * SECOND
"""1 February 2028 begins in UTC, a Tuesday."""

CALENDAR = [
    Case(
        "a calendar's day has 23 hours when clocks go forward",
        [
            at(SPRING, passed(0, 2, 23 * HOUR), hit(BERLIN_DAY, 2)),
            at(SPRING + 23 * HOUR - 1, over(0, reset_us=1), hit(BERLIN_DAY)),
            at(SPRING + 23 * HOUR, passed(1, 1, DAY), hit(BERLIN_DAY)),
        ],
    ),
    Case(
        "a calendar's day has 25 hours when clocks go back",
        [
            at(AUTUMN, passed(0, 2, 25 * HOUR), hit(BERLIN_DAY, 2)),
            at(AUTUMN + 25 * HOUR - 1, over(0, reset_us=1), hit(BERLIN_DAY)),
            at(AUTUMN + 25 * HOUR, passed(1, 1, DAY), hit(BERLIN_DAY)),
        ],
    ),
    Case(
        "a calendar's February has 29 days in a leap year, and the year 366",
        [
            at(FEBRUARY_2028, passed(0, 2, 29 * DAY), hit(UTC_MONTH, 2)),
            at(FEBRUARY_2028 + 29 * DAY - 1, over(0, reset_us=1), hit(UTC_MONTH)),
            at(FEBRUARY_2028 + 29 * DAY, passed(1, 1, 31 * DAY), hit(UTC_MONTH)),
            at(FEBRUARY_2028 - 31 * DAY, passed(1, 1, 366 * DAY), hit(UTC_YEAR)),
        ],
    ),
    Case(
        "a calendar's week begins on the day that the rule names",
        [
            at(FEBRUARY_2028, passed(1, 1, 5 * DAY), hit(SUNDAY_WEEK)),
            at(FEBRUARY_2028, passed(1, 1, 6 * DAY), hit(MONDAY_WEEK)),
        ],
    ),
    Case(
        "a calendar's period goes on when the clock steps back into the one before",
        [
            at(FEBRUARY_2028, passed(0, 2, 29 * DAY), hit(UTC_MONTH, 2)),
            at(FEBRUARY_2028 - 1, over(0, reset_us=29 * DAY + 1), hit(UTC_MONTH)),
            at(FEBRUARY_2028, passed(2, 2, 29 * DAY), hit(UTC_MONTH, 2, refund=True)),
            at(FEBRUARY_2028 - 1, passed(1, 1, 1), hit(UTC_MONTH)),
        ],
    ),
]

YEARLY_HITS = MAX_ADDEND - 1
LAST_EXACT = 2**53 // (100 * SECOND) * 100 * SECOND
"""The last moment that is exact in a bucket with ticks of 100 seconds."""
EXACT = [
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
            at(T, passed(measure_of(limit).limit - 1, 1, used_us), hit(limit)),
            at(T, passed(measure_of(limit).limit, 1, empty_us), hit(limit, refund=True)),
            at(T - SECOND, passed(measure_of(limit).limit - 1, 1, anew_us), hit(limit)),
            at(T - SECOND, passed(measure_of(limit).limit, 1, left_us), hit(limit, refund=True)),
            at(T, passed(measure_of(limit).limit - 1, 1, used_us), hit(limit)),
            at(T - SECOND, passed(measure_of(limit).limit, 1, left_us), hit(limit, refund=True)),
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

ALGORITHM_CASES = [
    *FIXED,
    *SLIDING_WINDOW,
    *SLIDING_LOG,
    *BUCKETS,
    *CONCURRENCY,
    *CALENDAR,
    *EXACT,
    *EMPTY,
]
