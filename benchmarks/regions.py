"""Three regions, each of two processes and 100 ms from the one Redis, with a leased limit.

    .venv/bin/python -m benchmarks.regions

Real services, Redis and callers, who wait for 300 ms; a proxy keeps all bytes back for 50 ms each
way. A tenant has 10,000 calls a minute, and makes 9,000: 70 % of them in the first region, 20 % in
the second, 10 % in the third. Another one has 1,000, and makes twice as many. Two regions are cut
off for ten seconds, one after the other, and the processes of the third are killed. It fails if a
window admits too much, if more than 1 % of the first tenant's calls wait, or if a region is not
whole two seconds after its network. That takes some two minutes. Then the share of calls that wait
is told for other limits, in simulated time and without faults. docs/regions.md has both.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from statistics import quantiles
from typing import NamedTuple

from benchmarks.leased_simulated import Load, simulated
from benchmarks.run import told
from ratelimit_client import Limiter, Reason, UnavailableError
from ratelimit_service.model import Limit, Unit
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisServer
from tests.servers.service import ServiceProcess

_SHARES = (70, 20, 10)
_PROCESSES = 2
"""Of each region."""

_ONE_WAY_SECONDS, _CALLER_SECONDS, _TIMEOUT = 0.05, 0.3, "180ms"
_WAITED_SECONDS = 2 * _ONE_WAY_SECONDS
"""An answer that took as long may have waited for Redis; any other has not."""

_MOST_WAITED, _WHOLE_SECONDS = 0.01, 2.0
_KNOWN_SECONDS = 3.0
"""Until all processes know of each other."""

_CUTS = ((20.0, 0), (50.0, 1))
_CUT_SECONDS = 10.0
_KILLED_AT, _STARTED_AT, _ENDS_AT = 80.0, 85.0, 120.0

_TENANTS = {"acme": (10_000, 9_000), "twice": (1_000, 2_000)}
"""What each may do in a minute, and does."""

_RULES = "domain: world\ndescriptors:\n" + "".join(
    f"- key: tenant\n  value: {name}\n  rate_limit: {{unit: minute, requests_per_unit: {limit}, "
    "sync: leased, failure_policy: closed}\n"
    for name, (limit, _) in _TENANTS.items()
)


class _Answer(NamedTuple):
    """`asked` is by the monotonic clock; no reason means that there was no answer."""

    tenant: str
    region: int
    asked: float
    took: float
    reason: Reason | None
    window: int
    """The number of the minute that a hit was counted in."""


class _Region:
    """Two processes behind a long way, and who calls them."""

    def __init__(self, directory: Path, rules: Path, redis_port: int) -> None:
        self._directory, self._rules = directory, rules
        self.proxy = Proxy(redis_port)
        self.proxy.delay_seconds = _ONE_WAY_SECONDS
        self.services: list[ServiceProcess] = []
        self.callers: list[Limiter] = []
        self.whole_from = 0.0
        """When its network was back."""

    async def start(self) -> None:
        url = f"redis://127.0.0.1:{await self.proxy.start()}/0?timeout={_TIMEOUT}"
        flags = ["--rules", str(self._rules), "--store", url]
        self.services = [ServiceProcess(self._directory, *flags) for _ in range(_PROCESSES)]
        await self.serve()

    async def serve(self) -> None:
        await asyncio.gather(*[asyncio.to_thread(each.start) for each in self.services])
        self.callers = [
            Limiter(
                each.address,
                domain="world",
                deadline=_CALLER_SECONDS,
                attempts=1,
                on_failure="raise",
            )
            for each in self.services
        ]

    async def cut(self) -> None:
        self.proxy.hold = True
        await asyncio.sleep(_CUT_SECONDS)
        self.proxy.hold = False
        self.whole_from = time.monotonic()

    def kill(self) -> None:
        for each in self.services:
            each.kill()

    async def close(self) -> None:
        for each in self.callers:
            await each.close()
        self.kill()
        await self.proxy.close()


async def _call(tenant: str, region: int, caller: Limiter) -> _Answer:
    asked, asked_at = time.monotonic(), time.time()
    try:
        decision = await caller.check(tenant=tenant)
    except UnavailableError:
        return _Answer(tenant, region, asked, time.monotonic() - asked, None, 0)
    took = time.monotonic() - asked
    # It says whole seconds; so the window's end is told within one.
    resets = decision.status.reset if decision.status else None
    window = int(asked_at + (resets or 0) - 2) // 60
    return _Answer(tenant, region, asked, took, decision.reason, window)


async def _load(regions: Sequence[_Region], tenant: str) -> list[_Answer]:
    """Calls at a steady rate, whatever becomes of those before."""
    chance, begun = Random(tenant), time.monotonic()
    rate = _TENANTS[tenant][1] / 60
    calls: list[asyncio.Task[_Answer]] = []
    while (elapsed := time.monotonic() - begun) < _ENDS_AT:
        while len(calls) < elapsed * rate:
            region = chance.choices(range(len(regions)), _SHARES)[0]
            caller = chance.choice(regions[region].callers)
            calls.append(asyncio.create_task(_call(tenant, region, caller)))
        await asyncio.sleep(0.005)
    return await asyncio.gather(*calls)


async def _faults(regions: Sequence[_Region]) -> None:
    begun = time.monotonic()
    for at, number in _CUTS:
        await asyncio.sleep(begun + at - time.monotonic())
        told(f"region {number + 1} is cut off")
        await regions[number].cut()
    await asyncio.sleep(begun + _KILLED_AT - time.monotonic())
    told(f"the processes of region {len(regions)} are killed")
    regions[-1].kill()
    await asyncio.sleep(begun + _STARTED_AT - time.monotonic())
    await regions[-1].serve()


async def _tried() -> tuple[list[_Answer], list[float]]:
    """All answers, and when the network of each region was back."""
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        rules = directory / "rules.yaml"
        rules.write_text(_RULES)
        server = RedisServer(directory)
        server.start()
        regions = [_Region(directory, rules, server.port) for _ in _SHARES]
        try:
            await asyncio.gather(*[each.start() for each in regions])
            await asyncio.sleep(_KNOWN_SECONDS)
            told("the trial begins")
            loads = [_load(regions, tenant) for tenant in _TENANTS]
            *answers, _ = await asyncio.gather(*loads, _faults(regions))
            return [one for each in answers for one in each or ()], [
                each.whole_from for each in regions
            ]
        finally:
            for each in regions:
                await each.close()
            server.kill()


def _judged(answers: Sequence[_Answer], whole_from: Sequence[float]) -> list[str]:
    """Prints what came of the trial; returns the bounds that do not hold."""
    problems = []
    print("\n| region | calls | waited | no answer | by policy | others, p50 | p99 | whole after |")
    print("|---|---|---|---|---|---|---|---|")
    first = [each for each in answers if each.tenant == "acme"]
    for number, share in enumerate(_SHARES):
        ours = [each for each in first if each.region == number]
        policy = [each for each in ours if each.reason is Reason.FAILURE_POLICY]
        at_once = [each.took for each in ours if each.reason and each.took < _WAITED_SECONDS]
        parts = quantiles(at_once, n=100)
        late = [each.asked + each.took - whole_from[number] for each in policy]
        whole = max(0.0, *late) if whole_from[number] and late else 0.0
        print(
            f"| {number + 1}, {share} % | {len(ours):,} | {_waited(ours):.2%} "
            f"| {sum(each.reason is None for each in ours)} | {len(policy):,} "
            f"| {1_000 * parts[49]:.1f} ms | {1_000 * parts[98]:.1f} ms | {whole:.2f} s |"
        )
        if whole > _WHOLE_SECONDS:
            problems.append(f"region {number + 1} is whole after {whole:.1f} s")
    print(f"\n{_waited(first):.2%} of all calls waited.")
    if _waited(first) > _MOST_WAITED:
        problems.append(f"{_waited(first):.2%} of all calls waited")
    for tenant, (limit, offered) in _TENANTS.items():
        admitted = Counter(
            each.window
            for each in answers
            if each.tenant == tenant and each.reason is Reason.WITHIN_LIMIT
        )
        over = max(0, *[each - limit for each in admitted.values()])
        print(
            f"{tenant}: {offered:,} offered a minute of {limit:,}; "
            f"admitted at most {max(admitted.values()):,}, {over} over"
        )
        if over:
            problems.append(f"{tenant} has {over} over")
    return problems


def _waited(answers: Sequence[_Answer]) -> float:
    """Of those that were answered."""
    answered = [each for each in answers if each.reason]
    return sum(each.took >= _WAITED_SECONDS for each in answered) / max(1, len(answered))


def _region(chance: Random, _processes: int, _at: int) -> int:
    """The process that gets a call."""
    return _PROCESSES * chance.choices(range(3), _SHARES)[0] + chance.randrange(_PROCESSES)


def _others() -> None:
    print("\n| limit | a second | ten seconds | a minute |")
    print("|---|---|---|---|")
    trip_us = int(1_000_000 * _WAITED_SECONDS)
    processes = _PROCESSES * len(_SHARES)
    for number in (100, 1_000, 10_000):
        cells = []
        for seconds in (1, 10, 60):
            load = Load(_region, number * 9 // 10, round_trip_us=trip_us)
            found = simulated(Limit(number, Unit.SECOND, seconds), processes, load)
            cells.append(f"{found.waited:.1%}")
        print(f"| {number:,} | {' | '.join(cells)} |")
    load = Load(_region, 20_000, counters=2_000, round_trip_us=trip_us)
    cold = simulated(Limit(10_000, Unit.MINUTE), processes, load)
    print(f"\n2,000 tenants of 10,000 a minute, 10 calls each: {cold.waited:.1%} of calls wait.")


def main() -> None:
    """Prints both tables."""
    problems = _judged(*asyncio.run(_tried()))
    _others()
    if problems:
        raise SystemExit("\n".join(["", "bounds that do not hold:", *problems]))
    print("\nEvery bound holds.")


if __name__ == "__main__":
    main()
