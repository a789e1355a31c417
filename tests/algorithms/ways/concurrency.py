"""concurrency: its ways to count, what each must answer, and what a counter may cost."""

from __future__ import annotations

from ratelimit_service.algorithms.concurrency import several
from ratelimit_service.model import Limit, Unit
from tests.algorithms.asking import at, hit
from tests.algorithms.costs import Cost
from tests.stores.cases import MINUTE, SECOND, Case, Charge, T, over
from tests.stores.cases import ok as passed

LEASES = Limit(3, Unit.MINUTE, algorithm="concurrency")

WAYS = [LEASES]

WALKED = [LEASES._replace(requests_per_unit=number) for number in (3, 9)]

COSTS = {
    "concurrency": Cost(
        "unit: hour, requests_per_unit: 100, algorithm: concurrency", most_usage=200, most_used=270
    ),
}

CASES = [
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
                [hit(LEASES, lease=b"lease--1"), hit(Limit(3, Unit.MINUTE), 4, key="b")],
                [passed(3, 0, 0), over(3)],
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
