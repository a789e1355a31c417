"""Processes that hold advances of leased limits, on a real Redis and a clock that a test sets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from ratelimit_service.algorithms import spec_of
from ratelimit_service.model import Hit, Limit
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.stores import Settled, unknown
from ratelimit_service.stores.redis import RedisStore
from ratelimit_service.stores.redis.advances import Advances
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisServer
from tests.stores.cases import T
from tests.stores.conftest import Time
from tests.stores.redis_store import started

__all__ = [
    "Behind",
    "Process",
    "behind_a_proxy",
    "counted",
    "hit",
    "processes_on",
    "two_processes",
]


class Process:
    """One process: its store, its balances, and what it counts for metrics."""

    def __init__(self, url: str, clock: Time) -> None:
        self.clock = clock
        self.stats = Stats()
        self.store = RedisStore(url, 10_000_000, self.stats, Health(), clock)
        self.advances = Advances(self.store, self.store, self.stats, unknown, clock)

    async def ask(self, *requests: Sequence[Hit]) -> list[Settled]:
        """Charges, and waits until all that was sent has its reply."""
        future: asyncio.Future[list[Settled]] = asyncio.get_running_loop().create_future()
        self.advances.charge(requests, future.set_result)
        settled = await future
        await self.quiet()
        return settled

    async def quiet(self) -> None:
        """Waits until the server has answered all."""
        while any(not shard.idle for shard in self.store.shards):
            await asyncio.sleep(0)

    async def admitted(self, times: int, *hits: Hit) -> int:
        """How many of so many equal requests pass, one after the other."""
        passed = 0
        for _ in range(times):
            (settled,) = await self.ask(hits)
            passed += settled.verdict.passes
        return passed


class Behind:
    """One process behind a proxy that loses things, and one that is not."""

    def __init__(self, proxy: Proxy, lossy: Process, other: Process) -> None:
        self.proxy = proxy
        self.lossy = lossy
        self.other = other

    async def lose(self) -> None:
        """Takes its server from the process behind the proxy."""
        self.proxy.refuse = True
        while any(shard.available for shard in self.lossy.store.shards):
            await asyncio.sleep(0.001)

    async def until_cut(self) -> None:
        """Waits until the proxy has lost what it was to lose."""
        while not self.proxy.refuse:
            await asyncio.sleep(0.001)
        await self.lossy.quiet()

    async def back(self) -> None:
        """Returns when the process behind the proxy is connected again, and owes nothing."""
        self.proxy.refuse, self.proxy.lose = False, None
        while not all(shard.available for shard in self.lossy.store.shards):
            await asyncio.sleep(0.001)
        await self.lossy.quiet()


@asynccontextmanager
async def behind_a_proxy(server: RedisServer, clock: Time) -> AsyncIterator[Behind]:
    """Two processes on one empty Redis, of which the first can lose its way."""
    server.flush()
    clock.now_us = T
    proxy = Proxy(server.port)
    port = await proxy.start()
    lossy = Process(f"redis://127.0.0.1:{port}/0", clock)
    other = Process(server.url, clock)
    await acquainted([lossy, other])
    try:
        yield Behind(proxy, lossy, other)
    finally:
        for each in (lossy, other):
            await each.advances.close()
        await proxy.close()


@asynccontextmanager
async def two_processes(server: RedisServer, clock: Time) -> AsyncIterator[list[Process]]:
    """Two processes on one empty Redis, which know of each other."""
    server.flush()
    clock.now_us = T
    async with processes_on(server.url, clock) as two:
        yield two


@asynccontextmanager
async def processes_on(url: str, clock: Time) -> AsyncIterator[list[Process]]:
    """Two processes on a store, which know of each other."""
    two = [Process(url, clock) for _ in range(2)]
    await acquainted(two)
    try:
        yield two
    finally:
        for each in two:
            await each.advances.close()


async def acquainted(processes: Sequence[Process]) -> None:
    """Starts them, and lets each know how many they are."""
    for each in processes:
        await started(each.store)
    for each in processes:  # the first beat of the first has not heard of the others
        while any(state.round_trip_us is None for state in each.store.shard_states()):
            await asyncio.sleep(0.001)
        for shard in each.store.shards:
            shard.processes = len(processes)


def hit(limit: Limit, addend: int = 1, key: str = "a", tag: int = 0xABCD) -> Hit:
    """A hit on a counter of this limit."""
    name = f"{{{tag:08x}}}{key}{limit.window_us}"
    return Hit(name.encode(), spec_of(limit), addend)


async def counted(process: Process, one: Hit) -> int:
    """How many hits lie on a counter, as the server says."""
    (look,) = await process.store.look([one._replace(addend=0)])
    assert look is not None
    return one.spec.limit - look.outcome.remaining
