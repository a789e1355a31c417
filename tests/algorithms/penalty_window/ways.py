"""penalty_window: its ways to count, what each must answer, and what a counter may cost."""

from __future__ import annotations

from ratelimit_service.model import Limit, Unit
from tests.algorithms.asking import at, hit
from tests.algorithms.costs import PLENTY, Cost
from tests.stores.cases import MINUTE, SECOND, Case, T, over
from tests.stores.cases import ok as passed

PENALTY = Limit(2, Unit.MINUTE, algorithm="penalty_window", own=(90 * SECOND,))

WAYS = [PENALTY]

WALKED = [PENALTY._replace(requests_per_unit=number) for number in (2, 5, 9)]

COSTS = {"penalty_window": Cost(f"{PLENTY}, algorithm: penalty_window, penalty: 90s")}

CASES = [
    Case(
        "a denied hit begins a penalty, in which hits are denied and not counted",
        [
            at(T, passed(0, 2), hit(PENALTY, 2)),
            at(T + SECOND, over(0, 1, 90 * SECOND), hit(PENALTY)),
            at(T + MINUTE, over(0, 0, 31 * SECOND), hit(PENALTY)),
            at(T + 91 * SECOND - 1, over(0, 0, 1), hit(PENALTY)),
            at(T + 91 * SECOND, passed(1, 1, 29 * SECOND), hit(PENALTY)),
        ],
    ),
    Case(
        "a penalty window is refunded while its window lasts, and its penalty stays",
        [
            at(T, passed(0, 2), hit(PENALTY, 2)),
            at(T, passed(2, 2), hit(PENALTY, 2, refund=True)),
            at(T, over(2, 3), hit(PENALTY, 3)),
            at(T, passed(0, 3, 90 * SECOND), hit(PENALTY, 3, refund=True)),
            at(T + SECOND, over(0, 0, 89 * SECOND), hit(PENALTY)),
        ],
    ),
    Case(
        "a peek finds room where nothing has been denied, and begins no penalty",
        [
            at(T, passed(2, 0), hit(PENALTY, 0)),
            at(T, passed(0, 2), hit(PENALTY, 2)),
            at(T, passed(0, 0), hit(PENALTY, 0)),
        ],
    ),
]
