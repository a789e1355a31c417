"""What leased limits admit and send, in simulated time: the real code, for 2 and 8 processes.

    .venv/bin/python -m benchmarks.leased_simulated

Processes, their local caches and their balances are the service's. The server is its arithmetic
(`algorithms.settle`) behind a round trip of 300 microseconds. One limit is met over some windows.
A row has the worst window: how much of what could be admitted was not (undershoot), and how much
more than the limit was. Beside it stands what was sent to the server for each admitted hit.
`benchmarks.scale` holds it against formulas, `benchmarks.regions` has a longer round trip.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from random import Random
from typing import NamedTuple

from ratelimit_service.algorithms import settle, spec_of
from ratelimit_service.model import Hit, Limit, Outcome, State, Step, Unit
from ratelimit_service.observability.stats import Stats
from ratelimit_service.stores import NEVER, Done, Look, Outcomes, Settled, Wanted, always, judge
from ratelimit_service.stores.local_cache import LocalCache
from ratelimit_service.stores.redis.advances import Advances

__all__ = ["DEMANDS", "Demand", "Found", "Load", "simulated"]

_LOOK_US = 100_000
_MOVED = 4
"""The part of a window after which demand that moves is on the next process: a fourth."""

_WINDOWS = 3
_SECOND_US = 1_000_000
_START_US = 19_675 * 86_400 * _SECOND_US

Demand = Callable[[Random, int, int], int]
"""Which process of so many gets the hit that comes at this hundredth of a window."""


def _even(chance: Random, processes: int, _at: int) -> int:
    return chance.randrange(processes)


def _zipf(chance: Random, processes: int, _at: int) -> int:
    weights = [1 / (number + 1) for number in range(processes)]
    return chance.choices(range(processes), weights)[0]


def _one(_chance: Random, _processes: int, _at: int) -> int:
    return 0


def _moving(_chance: Random, processes: int, at: int) -> int:
    return at * _MOVED // 100 % processes


DEMANDS: dict[str, Demand] = {"even": _even, "Zipf": _zipf, "all on one": _one, "moving": _moving}


class _World:
    """Simulated time, and what happens in it."""

    def __init__(self) -> None:
        self.now_us = _START_US
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()

    def clock(self) -> int:
        """The time for all."""
        return self.now_us

    def later(self, after_us: int, happens: Callable[[], None]) -> None:
        """Has something happen after a while."""
        heapq.heappush(self._due, (self.now_us + after_us, next(self._numbers), happens))

    def until(self, then_us: int) -> None:
        """Lets all happen that is due until then."""
        while self._due and self._due[0][0] <= then_us:
            self.now_us, _, happens = heapq.heappop(self._due)
            happens()
        self.now_us = then_us


class _Server:
    """A server as one process sees it: a store, and what gives advances."""

    waits = True

    def __init__(
        self, world: _World, states: dict[bytes, State | None], processes: int, round_trip_us: int
    ) -> None:
        self._world = world
        self._states = states
        self._processes = processes
        self._one_way_us = round_trip_us // 2
        self.sent = 0
        """Hits, advances and hand-backs."""

    def wait_us(self, priority: int) -> int:  # noqa: ARG002
        """Nothing waits."""
        return 0

    async def start(self) -> None:
        """Nothing to try."""

    async def close(self) -> None:
        """Nothing to let go of."""

    def _settle(self, hits: Sequence[Hit]) -> Outcomes:
        steps, changes, _ = settle(hits, self._states.get, self._world.now_us)
        self._states.update({key: step.state for key, (_, step) in changes.items()})
        return [_outcome(step) for step in steps]

    def charge(
        self,
        requests: Sequence[Sequence[Hit]],
        done: Done,
        wanted: Wanted = always,  # noqa: ARG002
        deadline_us: int = NEVER,  # noqa: ARG002
        priority: int = 0,  # noqa: ARG002
    ) -> None:
        """Settles them half a round trip later."""
        self.sent += sum(map(len, requests))

        def settled() -> None:
            found: list[Settled] = [judge(hits, self._settle(hits)) for hits in requests]
            self._world.later(self._one_way_us, lambda: done(found))

        self._world.later(self._one_way_us, settled)

    def advance(self, hit: Hit, heard: Callable[[Outcome | None, int], None], _rank: int) -> None:
        """Gives an advance half a round trip later."""
        self.sent += 1

        def given() -> None:
            (outcome,), at_us = self._settle([hit]), self._world.now_us
            self._world.later(self._one_way_us, lambda: heard(outcome, at_us))

        self._world.later(self._one_way_us, given)

    def hand_back(self, hit: Hit, told: Callable[[Outcomes | None], None]) -> None:
        """Takes hits back half a round trip later."""
        self.sent += 1
        self._world.later(self._one_way_us, lambda: told(self._settle([hit])))

    async def look(self, peeks: Sequence[Hit]) -> list[Look | None]:
        """Nobody looks."""
        return [None] * len(peeks)

    def processes(self, _hit: Hit) -> int:
        """All know how many they are."""
        return self._processes


def _outcome(step: Step) -> Outcome:
    until_us = step.reset_us if step.passed else step.retry_us
    return Outcome(not step.passed, step.remaining, until_us, step.counted)


class Load(NamedTuple):
    """What is asked in each window, and over which way."""

    demand: Demand
    offered: int
    """Hits, at random moments."""
    counters: int = 1
    """So many counters have the limit, each. They get equally many hits."""
    round_trip_us: int = 300
    seed: int = 1


class Found(NamedTuple):
    """What came of one simulation."""

    undershoot: float
    """Of the worst window, as a part of what could be admitted."""
    missing: int
    """The hits that this is."""
    over: int
    """How many more than the limits one window admitted."""
    sent: float
    """Hits, advances and hand-backs for each admitted hit."""
    waited: float
    """The share of calls that were answered only when the server had answered."""


def simulated(limit: Limit, processes: int, load: Load) -> Found:
    """Offers the load in each of some windows of the clock."""
    return asyncio.run(_simulated(limit, processes, load))


async def _simulated(limit: Limit, processes: int, load: Load) -> Found:
    world, chance = _World(), Random(load.seed)
    states: dict[bytes, State | None] = {}
    servers = [_Server(world, states, processes, load.round_trip_us) for _ in range(processes)]
    fronts = [_front(server, world) for server in servers]
    spec = spec_of(limit._replace(advances=True))
    hits = [Hit(b"{0000abcd}%d" % number, spec) for number in range(load.counters)]
    window_us, admitted = limit.window_us, Counter[int]()
    looks_us = _START_US
    calls, at_once = 0, 0

    def told(asked_us: int, settled: list[Settled]) -> None:
        nonlocal at_once
        at_once += world.now_us == asked_us
        (outcome,) = settled[0].outcomes
        if settled[0].verdict.passes and outcome is not None:
            # It may be the next window that counted it; clocks are not all of one moment.
            ends_us = asked_us + outcome.reset_us - window_us // 100
            admitted[(ends_us - _START_US) // window_us] += 1

    for begin in range(_START_US, _START_US + _WINDOWS * window_us, window_us):
        for at in sorted(chance.randrange(window_us) for _ in range(load.offered)):
            while looks_us + _LOOK_US <= begin + at:
                looks_us += _LOOK_US
                world.until(looks_us)
                for front in fronts:
                    front.hand_back_idle()
            world.until(begin + at)
            number = load.demand(chance, processes, at * 100 // window_us)
            hit = hits[chance.randrange(load.counters)] if load.counters > 1 else hits[0]
            calls += 1
            fronts[number].charge([[hit]], partial(told, begin + at))
    world.until(_START_US + _WINDOWS * window_us)
    limits = limit.requests_per_unit * load.counters
    could = min(limits, load.offered)
    missing = max(could - admitted[window] for window in range(_WINDOWS))
    over = max(admitted.values()) - limits
    sent = sum(server.sent for server in servers)
    waited = 1 - at_once / calls
    return Found(missing / could, missing, max(0, over), sent / admitted.total(), waited)


def _front(server: _Server, world: _World) -> Advances:
    stats = Stats()
    cache = LocalCache(server, 1 << 20, stats, world.clock)
    return Advances(cache, server, stats, cache.known_over, world.clock)


def main() -> None:
    """Prints the table."""
    print("| window | limit | processes | demand | offered | undershoot | over | sent |")
    print("|---|---|---|---|---|---|---|---|")
    for unit in (Unit.SECOND, Unit.MINUTE):
        for number in (20, 100, 1_000, 10_000, 100_000):
            for processes in (2, 8):
                for name, demand in DEMANDS.items():
                    for share in (95, 200):
                        limit = Limit(number, unit)
                        found = simulated(limit, processes, Load(demand, number * share // 100))
                        print(
                            f"| {unit.name.lower()} | {number:,} | {processes} | {name} "
                            f"| {share / 100:g} | {100 * found.undershoot:.1f} % "
                            f"({found.missing:,}) | {found.over} | {found.sent:.3f} |",
                            flush=True,
                        )


if __name__ == "__main__":
    main()
