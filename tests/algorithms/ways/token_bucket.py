"""token_bucket: its ways to count, what each must answer, and what a counter may cost."""

from __future__ import annotations

from ratelimit_service.model import MAX_ADDEND, Limit, Unit
from tests.algorithms.asking import at, hit
from tests.algorithms.costs import PLENTY, Cost
from tests.stores.cases import DAY, MINUTE, SECOND, Case, T, over
from tests.stores.cases import ok as passed

TOKENS = Limit(6, Unit.MINUTE, algorithm="token_bucket", burst=3)
STEPPED = Limit(2, Unit.MINUTE, algorithm="token_bucket", burst=5, stepped=True)
BURST = Limit(100, Unit.SECOND, algorithm="token_bucket", burst=500)
PER_SECOND = Limit(100, Unit.SECOND, algorithm="token_bucket")
BURST_1000 = PER_SECOND._replace(burst=1_000)
STEPS_1000 = BURST_1000._replace(stepped=True)
DAILY = Limit(200, Unit.DAY, algorithm="token_bucket")
THIRDS = Limit(3, Unit.SECOND, algorithm="token_bucket")
MOST_TOKENS = Limit(MAX_ADDEND, Unit.MINUTE, algorithm="token_bucket")

WAYS = [TOKENS, STEPPED]

WALKED = [
    *(TOKENS._replace(requests_per_unit=number) for number in (6, 7, 600, MAX_ADDEND)),
    *(STEPPED._replace(burst=number) for number in (5, 9)),
]

COSTS = {"token_bucket": Cost(f"{PLENTY}, algorithm: token_bucket")}

CASES = [
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
