"""sliding_log: its ways to count, what each must answer, and what a counter may cost."""

from __future__ import annotations

from ratelimit_service.model import Limit, Unit
from tests.algorithms.asking import at, hit
from tests.algorithms.costs import Cost
from tests.stores.cases import MINUTE, SECOND, Case, T, over
from tests.stores.cases import ok as passed

LOG = Limit(3, Unit.MINUTE, algorithm="sliding_log")

WAYS = [LOG]

WALKED = [LOG._replace(requests_per_unit=number) for number in (3, 12)]

COSTS = {
    "sliding_log": Cost(
        "unit: hour, requests_per_unit: 500, algorithm: sliding_log", 500, 2_000, 2_700, 2_900
    ),
}

CASES = [
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
