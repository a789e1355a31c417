"""leaky_bucket: its ways to count, what each must answer, and what a counter may cost."""

from __future__ import annotations

from ratelimit_service.model import Limit, Unit
from tests.algorithms.asking import at, hit
from tests.algorithms.costs import PLENTY, Cost
from tests.stores.cases import SECOND, Case, T, over
from tests.stores.cases import ok as passed

METER = Limit(6, Unit.MINUTE, algorithm="leaky_bucket", burst=3)
QUEUE = Limit(6, Unit.MINUTE, algorithm="leaky_bucket", max_wait_us=30_000_000)

WAYS = [METER]

WALKED = [METER._replace(burst=number) for number in (3, 30)]

COSTS = {"leaky_bucket": Cost(f"{PLENTY}, algorithm: leaky_bucket")}

CASES = [
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
]
