"""How exact each algorithm is: the real ones, on simulated traffic, against every window there is.

    .venv/bin/python -m benchmarks.accuracy

Prints tables in Markdown; docs/algorithms.md has them and says what they mean. Seeds are fixed, so
the numbers are the same each time. Nothing is measured: no clock and no machine plays a part.

A stream of hits is decided hit after hit. Two judges look on. The sweep counts what was admitted in
every window of the limit's length, wherever it begins. The log decides the same stream: it keeps
the time of every hit that it admits, in a few lines of its own.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import islice

from ratelimit_service.algorithms import ALGORITHMS, spec_of
from ratelimit_service.model import SECOND_US, Limit, State, Unit

__all__ = [
    "DEMANDS",
    "LIMIT",
    "LIMITS",
    "TRAFFIC",
    "Found",
    "exact_log",
    "judged",
    "stream",
]

LIMIT = 100
WINDOW_US = 60 * SECOND_US
HITS = 1_000_000
DEMANDS = (0.5, 0.9, 1.0, 2.0)
"""How many hits come in a window on average, in limits."""

START_US = 1_704_067_200 * SECOND_US
"""A Monday at midnight, at which a window begins."""

LIMITS = {
    "fixed_window": Limit(LIMIT, Unit.MINUTE),
    "sliding_window": Limit(LIMIT, Unit.MINUTE, algorithm="sliding_window"),
    "sliding_window, buckets: 60": Limit(
        LIMIT, Unit.MINUTE, algorithm="sliding_window", buckets=60
    ),
    "sliding_log": Limit(LIMIT, Unit.MINUTE, algorithm="sliding_log"),
    "token_bucket": Limit(LIMIT, Unit.MINUTE, algorithm="token_bucket"),
    "token_bucket, burst: 10": Limit(LIMIT, Unit.MINUTE, algorithm="token_bucket", burst=10),
}
"""All that count what comes in. A leaky bucket admits what a token bucket does; `concurrency`
counts what is under way, and has no windows."""


def poisson(rate: float, chance: random.Random) -> Iterator[float]:
    """Callers who know nothing of each other: the seconds at which they come."""
    now = 0.0
    while True:
        now += chance.expovariate(rate)
        yield now


def bursty(rate: float, chance: random.Random) -> Iterator[float]:
    """A page with its pictures: some 20 hits within 200 ms, then a pause."""
    most = 40
    now = 0.0
    while True:
        now += chance.expovariate(rate * 2 / (most + 1))
        yield from sorted(now + chance.random() * 0.2 for _ in range(chance.randint(1, most)))


def diurnal(rate: float, chance: random.Random) -> Iterator[float]:
    """Callers who sleep at night: at noon 1.8 times as many as on average, at midnight 0.2."""
    swing, day = 0.8, 86_400.0
    now = 0.0
    while True:
        now += chance.expovariate(rate * (1 + swing))
        share = (1 - swing * math.cos(2 * math.pi * now / day)) / (1 + swing)
        if chance.random() < share:
            yield now


def edge(rate: float, chance: random.Random) -> Iterator[float]:
    """Who knows when windows begin: half of two windows' hits just before one ends.

    The other half comes just after it one time, and spread over the next window another time.
    """
    window = WINDOW_US / SECOND_US
    hits = max(1, round(rate * window))
    start = 0.0
    while True:
        middle = start + window
        yield from sorted(middle - 0.001 - chance.random() * 0.01 for _ in range(hits))
        yield from sorted(middle + chance.random() * 0.01 for _ in range(hits))
        middle += 2 * window
        yield from sorted(middle - 0.001 - chance.random() * 0.01 for _ in range(hits))
        yield from (middle + window * number / hits for number in range(hits))
        start += 4 * window


TRAFFIC: dict[str, Callable[[float, random.Random], Iterator[float]]] = {
    "Poisson": poisson,
    "bursty": bursty,
    "diurnal": diurnal,
    "edge": edge,
}
"""Streams of hits: moments in seconds, from a mean rate a second."""


def stream(traffic: str, demand: float, hits: int = HITS) -> list[int]:
    """The times of hits in microseconds, never falling: the same ones each time."""
    rate = demand * LIMIT * SECOND_US / WINDOW_US
    moments = TRAFFIC[traffic](rate, random.Random(f"{traffic} {demand}"))
    last, times = START_US, []
    for moment in islice(moments, hits):
        last = max(last, START_US + round(moment * SECOND_US))
        times.append(last)
    return times


@dataclass(frozen=True, slots=True)
class Found:
    """What became of a stream."""

    hits: int
    admitted: int
    most: int
    """The most hits admitted in any window of the limit's length, wherever it begins."""
    above_rate: float
    """The most hits, over all spans of any length, above what comes back in that time."""
    differ: int
    """Decisions that the log did not make."""
    wrongly_allowed: int
    wrongly_denied: int
    """Decisions that are wrong by what was admitted in the window before."""

    @property
    def above(self) -> int:
        """The hits above the limit in the worst window."""
        return max(0, self.most - LIMIT)

    def of_a_million(self, decisions: int) -> float:
        """So many decisions of a million."""
        return decisions * 1_000_000 / self.hits


def exact_log(times: Sequence[int]) -> list[bool]:
    """What a log decides: a hit passes if fewer than the limit did in the window before it."""
    admitted: list[int] = []
    decisions = []
    for now in times:
        passed = len(admitted) < LIMIT or admitted[-LIMIT] <= now - WINDOW_US
        if passed:
            admitted.append(now)
        decisions.append(passed)
    return decisions


def judged(name: str, times: Sequence[int], log: Sequence[bool]) -> Found:
    """Lets an algorithm decide a stream, and sweeps over what it has admitted."""
    limit = LIMITS[name]
    charge, spec = ALGORITHMS[limit.algorithm].charge, spec_of(limit)
    state: State | None = None
    admitted: list[int] = []
    oldest = most = differ = allowed = denied = 0
    level = highest = last = 0
    for now, logged in zip(times, log, strict=True):
        step = charge(state, now, 1, spec, False, b"")
        state = step.state
        while oldest < len(admitted) and admitted[oldest] <= now - WINDOW_US:
            oldest += 1
        room = len(admitted) - oldest < LIMIT
        differ += step.passed != logged
        allowed += step.passed and not room
        denied += room and not step.passed
        if step.passed:
            admitted.append(now)
            most = max(most, len(admitted) - oldest)
            # Of all spans that end here, the most above the rate; in hits times microseconds.
            level = max(0, level - (now - last) * LIMIT) + WINDOW_US
            highest, last = max(highest, level), now
    return Found(len(times), len(admitted), most, highest / WINDOW_US, differ, allowed, denied)


def _case(case: tuple[str, float]) -> dict[str, Found]:
    times = stream(*case)
    log = exact_log(times)
    return {name: judged(name, times, log) for name in LIMITS}


def _row(cells: Sequence[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _share(found: Found, decisions: int) -> str:
    number = found.of_a_million(decisions)
    return "0" if not decisions else f"{number:,.0f}"


def report(found: dict[tuple[str, float], dict[str, Found]]) -> Iterator[str]:
    """The tables, line by line."""
    yield f"Most hits above the limit of {LIMIT} in any window, of all demands.\n"
    yield _row(["algorithm", *TRAFFIC])
    yield _row(["---"] * (len(TRAFFIC) + 1))
    for name in LIMITS:
        worst = [max(found[kind, demand][name].above for demand in DEMANDS) for kind in TRAFFIC]
        yield _row([name, *worst])
    yield "\nDecisions of a million that differ from an exact log's, by demand in limits.\n"
    yield _row(["algorithm", "traffic", *DEMANDS])
    yield _row(["---"] * (len(DEMANDS) + 2))
    for name in LIMITS:
        for kind in TRAFFIC:
            each = [found[kind, demand][name] for demand in DEMANDS]
            yield _row([name, kind, *(_share(one, one.differ) for one in each)])
    yield "\nThe two counters: decisions of a million that are wrong by what they have admitted.\n"
    yield _row(["traffic", "", *DEMANDS])
    yield _row(["---"] * (len(DEMANDS) + 2))
    for kind in TRAFFIC:
        each = [found[kind, demand]["sliding_window"] for demand in DEMANDS]
        yield _row([kind, "allowed", *(_share(one, one.wrongly_allowed) for one in each)])
        yield _row([kind, "denied", *(_share(one, one.wrongly_denied) for one in each)])


def main() -> None:
    cases = [(kind, demand) for kind in TRAFFIC for demand in DEMANDS]
    found = {}
    with ProcessPoolExecutor() as pool:
        for case, result in zip(cases, pool.map(_case, cases), strict=True):
            print(f"{case[0]}, demand {case[1]:g}", file=sys.stderr)
            found[case] = result
    print("\n".join(report(found)))


if __name__ == "__main__":
    main()
