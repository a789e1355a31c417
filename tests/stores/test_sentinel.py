"""A Redis that Sentinel watches over: found by name, and found again after a failover."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import redis

from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.stores.redis import RedisStore
from ratelimit_service.stores.redis.overrides import OverridesInRedis
from tests.conftest import need
from tests.servers.sentinel import NAME, Watched
from tests.service.overriding import BAN, LIMIT, override
from tests.stores.cases import charged, hit
from tests.stores.conftest import Time
from tests.stores.overriding import Process
from tests.stores.redis_store import started
from tests.waiting import PATIENCE_SECONDS


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    need("redis-server", "sudo apt install redis-server")
    watched = Watched(tmp_path)
    watched.start()
    yield watched
    watched.kill()


@pytest.fixture
def health() -> Health:
    return Health()


@pytest.fixture
async def store(watched: Watched, health: Health) -> AsyncIterator[RedisStore]:
    store = RedisStore(watched.url, 5_000_000, Stats(), health)
    await store.start()
    yield store
    await store.close()


async def until_counted(store: RedisStore) -> int:
    """Charges until Redis answers; what is left then."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            ((outcome,),) = await charged(store, [[hit(limit=1_000, window_us=10**12)]])
            if outcome is not None:
                return outcome.remaining
            await asyncio.sleep(0.01)


async def test_master_is_found_by_its_name(
    store: RedisStore, watched: Watched, health: Health
) -> None:
    """Counters lie in the master that Sentinel names."""
    assert await until_counted(store) == 999

    assert redis.Redis(port=watched.servers[0].port).exists(hit().key)
    assert health.faults == {}
    (state,) = store.shard_states()
    assert state.kind == "server, by Sentinel"
    assert state.address == f"127.0.0.1:{watched.servers[0].port}/0"


async def test_other_sentinels_are_asked(watched: Watched) -> None:
    """A Sentinel that is away, and one that never answers, keep nobody from asking the next."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        others = f"127.0.0.1:1,127.0.0.1:{silent.getsockname()[1]},"
        url = watched.url.replace("127.0.0.1:", f"{others}127.0.0.1:")
        store = RedisStore(url, 5_000_000, Stats(), Health())
        await started(store)

        assert await until_counted(store) == 999

        await store.close()


async def test_failover(store: RedisStore, watched: Watched, health: Health) -> None:
    """When the master dies its replica counts on, and everything is well again."""
    assert await until_counted(store) == 999
    with redis.Redis(port=watched.servers[0].port) as master:
        master.set("later", 1)  # WAIT is for a client's own writes, and what was written before
        assert master.wait(1, 5_000) == 1

    watched.lose_master()

    remaining = await until_counted(store)
    assert watched.master == watched.servers[1].port
    assert remaining == 998
    assert health.faults == {}


async def test_overrides_outlive_a_failover(
    store: RedisStore, watched: Watched, clock: Time
) -> None:
    """What one process has changed another one knows, before and after the master dies."""
    await until_counted(store)
    one, other = (Process(OverridesInRedis(store, Health()), clock) for _ in range(2))
    ban, limit = override(BAN), override(LIMIT, number=5)
    await one.overrides.change([ban], [], "first")
    await other.overrides.refresh()
    assert other.known == [ban]
    with redis.Redis(port=watched.servers[0].port) as master:
        master.set("later", 1)
        assert master.wait(1, 5_000) == 1

    watched.lose_master()
    await until_counted(store)
    await other.overrides.refresh()
    assert other.known == [ban]
    await other.overrides.change([limit], [ban.id], "second")
    await one.overrides.refresh()
    assert one.known == other.known == [limit]
    assert (await one.overrides.kept.audited(9)).lines == ["second", "first"]


async def test_a_master_that_becomes_a_replica_is_left(store: RedisStore, watched: Watched) -> None:
    """After a failover that was asked for nobody counts on the old master."""
    assert await until_counted(store) == 999

    watched.fail_over()

    master = redis.Redis(port=watched.master)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not master.exists(hit(key="new").key):
            await charged(store, [[hit(key="new")]])
            await asyncio.sleep(0.01)


async def test_nobody_knows_the_master(watched: Watched) -> None:
    """A name that no Sentinel knows is a fault in health that names it, and whom was asked."""
    health = Health()
    url = watched.url.replace(NAME, "other")
    store = RedisStore(url, 10_000, Stats(), health)
    await store.start()

    assert await charged(store, [[hit()]]) == [[None]]
    assert f"other (by Sentinel at 127.0.0.1:{watched.port})" in health.faults["store"]
    await store.close()
