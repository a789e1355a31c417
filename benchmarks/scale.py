"""What leased limits send to Redis, by formulas: held against a simulation, then carried on.

    .venv/bin/python -m benchmarks.scale

The first table has hits, advances and hand-backs for each admitted hit: by the formulas, and as
`leased_simulated` finds them for 2, 8 and 100 processes. The second one is what the formulas say of
a hundred processes on thirty shards, which nobody has run. docs/scale.md explains both.
"""

from __future__ import annotations

from math import log
from typing import NamedTuple

from benchmarks.leased_simulated import DEMANDS, Load, simulated
from ratelimit_service.model import Limit, Unit

__all__ = ["Case", "sent"]

_TRIP_SECONDS = 0.0003
"""The way to a Redis in the same place and back."""

_LEAST = 4
_MARGIN_SECONDS = 0.002

_PROCESSES, _SHARDS, _BALANCES = 100, 30, 30_000
_CALL_US, _HIT_US = 50.0, 3.0
"""What a call of the script takes of Redis, and each hit in it. Measured, on one machine."""

_CALL_BYTES, _HIT_BYTES = 230, 100
"""There and back, with the packets' own."""

_DECISION_US = 1e6 / 136_382
"""What a decision takes of a process, compiled: docs/benchmarks.md."""


class Case(NamedTuple):
    """A limit, who asks, and for how much of it."""

    limit: int
    seconds: float
    """Of its window."""
    processes: int
    active: int
    """So many of them get hits of this limit, equally many each."""
    offered: float
    """Hits in a window, to the limit."""


def sent(case: Case) -> float:
    """Hits, advances and hand-backs sent to Redis in a window, for each admitted hit."""
    limit, seconds, processes, active, offered = case
    ahead = min(5.0, max(0.1, seconds / 10, 2 * _TRIP_SECONDS))
    rate = offered * limit / seconds
    left = max(0.0, limit - offered * limit)
    admitted = min(limit, offered * limit)
    # While the limit is used up, a hit is sent each time that its denial is forgotten.
    over_seconds = max(0.0, 1 - 1 / offered) * seconds
    asked = min(
        offered * limit - admitted, active * over_seconds / max(0.1, min(1.0, seconds / 50))
    )
    if ahead * rate / active < _LEAST:  # nothing is given ahead
        return 1 + asked / admitted
    # While much is left, each process asks when half of what it needs ahead is spent.
    shared = max(left, min(limit, ahead * rate * processes / active))
    asked += 2 * active * (limit - shared) / rate / ahead
    # Then it gets left / 2N, until that is less than 4 or than what comes in a round trip.
    least = min(limit, 2 * processes * max(_LEAST, rate / active * _TRIP_SECONDS))
    if shared > max(left, least):
        asked += 2 * processes * log(shared / max(left, least))
    # Then all is sent, and so is what comes about a window's turn: advances end a little before it.
    asked += max(0.0, least - left)
    margin = _MARGIN_SECONDS + ahead / 1_000 if offered <= 1 else 0
    asked += rate * (_TRIP_SECONDS + margin)
    return asked / admitted


def _compared(case: Case) -> None:
    demand = DEMANDS["even" if case.active > 1 else "all on one"]
    limit = Limit(case.limit, Unit.SECOND, int(case.seconds))
    found = simulated(limit, case.processes, Load(demand, int(case.offered * case.limit)))
    print(
        f"| {case.limit:,} | {case.seconds:g} s | {case.processes} | {case.active} "
        f"| {case.offered:g} | {sent(case):.4f} | {found.sent:.4f} "
        f"| {100 * found.undershoot:.1f} % | {found.over} |",
        flush=True,
    )


def _carried_on(rate: float, name: str, case: Case | None) -> None:
    each = sent(case) if case else 1.0
    calls = rate * each
    tenants = "any"
    if case:
        counters = rate * case.seconds / (case.offered * case.limit)
        tenants = f"{counters:,.0f}" + " (too many)" * (counters > _BALANCES)
    print(
        f"| {rate:,.0f} | {name} | {tenants} | {each:.4f} "
        f"| {calls * _HIT_US / 1e6:.1f} to {calls * (_CALL_US + _HIT_US) / 1e6:.1f} "
        f"| {calls * _HIT_BYTES * 8e-6:,.0f} to {calls * (_CALL_BYTES + _HIT_BYTES) * 8e-6:,.0f} "
        f"| {rate / _PROCESSES * _DECISION_US / 1e6:.2f} |"
    )


def main() -> None:
    """Prints both tables."""
    print(
        "| limit | window | processes | of them asked | offered | sent, predicted | simulated "
        "| undershoot | over |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for limit, seconds in ((1_000, 60), (10_000, 1), (10_000, 60), (100_000, 60)):
        for processes, active in ((2, 2), (8, 8), (8, 1)):
            for offered in (0.95, 2.0):
                _compared(Case(limit, seconds, processes, active, offered))
    for limit in (10_000, 100_000):
        _compared(Case(limit, 60, _PROCESSES, _PROCESSES, 0.95))
    print(
        "\n| decisions a second | limits | counters | sent for each | Redis, cores "
        "| network, Mbit/s | cores of a process |"
    )
    print("|---|---|---|---|---|---|---|")
    for rate in (1e6, 1e7):
        _carried_on(rate, "exact", None)
        for limit, seconds in ((10_000, 60), (100_000, 60), (1_000_000, 60), (100_000, 1)):
            case = Case(limit, seconds, _PROCESSES, _PROCESSES, 0.95)
            window = "a minute" if seconds == 60 else "a second"
            _carried_on(rate, f"leased, {limit:,} {window}", case)
    print(f"\n{_PROCESSES} processes, {_SHARDS} shards of a core each.")


if __name__ == "__main__":
    main()
