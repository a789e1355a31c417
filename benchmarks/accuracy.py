"""How exact each algorithm is: the real ones, on simulated traffic, against every window there is.

    .venv/bin/python -m benchmarks.accuracy

Prints tables in Markdown; docs/algorithms.md has them and says what they mean. Seeds are fixed, so
the numbers are the same each time. Nothing is measured: no clock and no machine plays a part.

An algorithm decides a stream of hits. Then two judges look at it. The sweep counts what was
admitted in every window of the limit's length, wherever it begins. The log decides the same stream:
it keeps the time of every hit that it admits, in a few lines of its own.
"""

from __future__ import annotations

import math
import random
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, compress, islice, repeat
from operator import gt, le, lt, mul, ne, sub

from ratelimit_service.algorithms import ALGORITHMS, spec_of
from ratelimit_service.model import SECOND_US, Limit, State, Unit

__all__ = [
    "DEMANDS",
    "LIMIT",
    "LIMITS",
    "TRAFFIC",
    "WINDOW_US",
    "Found",
    "above_rate",
    "decided",
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


def decided(name: str, times: Sequence[int]) -> list[bool]:
    """What an algorithm decides of a stream: the same as hit after hit, but sooner.

    While nothing is counted, no limit has less room later. So of a hit that passes, as many others
    as remain will pass too. They are charged at once where it leaves the same count: those of one
    part of time (`PARTS_US`), and what a bucket takes before it is empty again. Of a hit that is
    denied, the algorithm says until when others will be; the last hit before that is tried.
    """
    limit = LIMITS[name]
    charge, spec = ALGORITHMS[limit.algorithm].charge, spec_of(limit)
    part_us, leaks = PARTS_US.get(name, 0), ALGORITHMS[limit.algorithm].refills
    state: State | None = None
    decisions: list[bool] = []
    place, hits = 0, len(times)
    while place < hits:
        now = times[place]
        passed, state, remaining, reset_us, retry_us, _, _ = charge(state, now, 1, spec, False, b"")
        decisions.append(passed)
        place += 1
        if not passed:
            until = now + retry_us
        elif part_us:
            until = (now // part_us + 1) * part_us
        else:
            until = now + reset_us if leaks else now
        end = bisect_left(times, until, place, min(hits, place + remaining) if passed else hits)
        if end == place:
            continue
        together = end - place if passed else 1
        step = charge(state, times[end - 1], together, spec, False, b"")
        if step.passed is passed:
            state = step.state
            decisions += [passed] * (end - place)
            place = end
    return decisions


PARTS_US = {
    "fixed_window": WINDOW_US,
    "sliding_window": WINDOW_US,
    "sliding_window, buckets: 60": SECOND_US,
}
"""The parts of time in which an algorithm does not ask when a hit came."""


def judged(decisions: Sequence[bool], times: Sequence[int], log: Sequence[bool]) -> Found:
    """Sweeps over what was admitted of a stream, beside what a log decides."""
    admitted = list(compress(times, decisions))
    # When each hit that was admitted has left the window, that of the last `LIMIT`th first.
    gone = [0] * LIMIT + [at + WINDOW_US for at in admitted]
    before = accumulate(decisions, initial=0)  # how many were admitted before each hit
    room = list(map(le, map(gone.__getitem__, before), times))
    return Found(
        len(times),
        len(admitted),
        _most(admitted),
        sum(map(ne, decisions, log)),
        sum(map(gt, decisions, room)),
        sum(map(lt, decisions, room)),
    )


def _most(admitted: Sequence[int]) -> int:
    """The most hits in any window, wherever it begins."""

    def fit(hits: int) -> bool:
        """Whether any so many hits in a row lie within a window."""
        if hits > len(admitted):
            return False
        spans: Iterator[int] = map(sub, islice(admitted, hits - 1, None), admitted)
        return min(spans) < WINDOW_US

    few, many = 0, LIMIT
    while fit(many):
        few, many = many, many * 2
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (middle, many) if fit(middle) else (few, middle)
    return few


def above_rate(decisions: Sequence[bool], times: Sequence[int]) -> float:
    """The most admitted hits, over all spans of any length, above what comes back in that time.

    Hits times microseconds are exact integers. Hits that come at the rate add nothing to
    `levels`; a span from one hit to another is as far above it as these rise, and its own hit.
    """
    admitted = list(compress(times, decisions))
    rises = range(0, len(admitted) * WINDOW_US, WINDOW_US)
    levels = list(map(sub, rises, map(mul, admitted, repeat(LIMIT))))
    highest = max(map(sub, levels, accumulate(levels, min)), default=-WINDOW_US)
    return (highest + WINDOW_US) / WINDOW_US


def _case(case: tuple[str, float]) -> dict[str, Found]:
    times = stream(*case)
    log = exact_log(times)
    alike: list[tuple[list[bool], Found]] = []
    found: dict[str, Found] = {}
    for name in LIMITS:
        decisions = decided(name, times)
        known = [one for same, one in alike if same == decisions]
        found[name] = known[0] if known else judged(decisions, times, log)
        alike.append((decisions, found[name]))
    return found


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
