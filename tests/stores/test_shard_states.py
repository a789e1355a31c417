"""How the servers of a store stand, as people are told."""

from __future__ import annotations

import asyncio

from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.stores import ShardState
from ratelimit_service.stores.redis import Layout, RedisStore
from tests.servers.cluster import RedisCluster
from tests.servers.redis import RedisServer
from tests.stores.redis_store import started
from tests.waiting import PATIENCE_SECONDS, until


async def states(store: RedisStore) -> list[ShardState]:
    """Once each server that is there has answered a beat."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            found = store.shard_states()
            if all(each.round_trip_us is not None for each in found if each.address):
                return found
            await asyncio.sleep(0.01)


async def test_each_server_is_told(
    redis_server: RedisServer, ring_url: str, redis_cluster: RedisCluster
) -> None:
    """Each server says what it is, where, how long a beat takes, and how many count there."""
    redis_server.flush()
    redis_cluster.flush()
    await told(redis_server.url, "server", 1)
    await told(ring_url, "shard", 3)
    await told(redis_cluster.url, "cluster node", 3)


async def told(url: str, kind: str, count: int) -> None:
    store = RedisStore(url, 5_000_000, Stats(), Health())
    await started(store)
    found = await states(store)
    await store.close()

    assert len({each.name for each in found}) == len(found) == count
    for each in found:
        assert (each.kind, each.breaker_open, each.processes) == (kind, False, 1)
        assert each.address.startswith(("127.0.0.1:", "redis://127.0.0.1:"))
        assert each.round_trip_us is not None
        assert each.round_trip_us > 0
        assert (each.under_way, each.waiting) == (0, 0)


async def test_a_server_that_is_away_has_no_address(own_redis: RedisServer) -> None:
    """While a server is away it has neither address nor round trip; of two stores both are told."""
    store = RedisStore(
        own_redis.url,
        5_000_000,
        Stats(),
        Health(),
        layout=Layout(second_url=f"{own_redis.url[:-1]}1"),
    )
    await started(store)
    assert [each.kind for each in await states(store)] == ["server", "server, second store"]

    own_redis.kill()
    await until(lambda: not any(each.address for each in store.shard_states()))
    assert [each.round_trip_us for each in store.shard_states()] == [None, None]
    await store.close()
