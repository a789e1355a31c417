"""Both stores behind one fixture, with a clock that the test sets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.stores import Store
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.stores.redis import RedisStore
from tests.servers.cluster import RedisCluster
from tests.servers.redis import RedisServer
from tests.stores.cases import T
from tests.stores.redis_store import started


class Time:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now_us = T

    def __call__(self) -> int:
        return self.now_us


@pytest.fixture
def clock() -> Time:
    return Time()


@pytest.fixture
def stats() -> Stats:
    """Of every store of a test."""
    return Stats()


@pytest.fixture
def memory(clock: Time, stats: Stats) -> MemoryStore:
    return MemoryStore(10_000, stats, Health(), clock)


@pytest.fixture
async def redis_store(
    redis_server: RedisServer, clock: Time, stats: Stats
) -> AsyncIterator[RedisStore]:
    redis_server.flush()
    store = RedisStore(redis_server.url, 10_000_000, stats, Health(), clock)
    await started(store)
    yield store
    await store.close()


@pytest.fixture
def ring_url(redis_server: RedisServer, tmp_path: Path) -> str:
    """Three shards, which are databases of one server."""
    file = tmp_path / "shards.yaml"
    lines = [
        f"- {{name: shard-{number}, store: '{redis_server.url.removesuffix('0')}{number}'}}"
        for number in range(3)
    ]
    file.write_text("\n".join(["shards:", *lines]))
    return f"file:{file}"


@pytest.fixture
async def ring_store(
    redis_server: RedisServer, ring_url: str, clock: Time, stats: Stats
) -> AsyncIterator[RedisStore]:
    redis_server.flush()
    store = RedisStore(ring_url, 10_000_000, stats, Health(), clock)
    await started(store)
    yield store
    await store.close()


@pytest.fixture
async def cluster_store(
    redis_cluster: RedisCluster, clock: Time, stats: Stats
) -> AsyncIterator[RedisStore]:
    redis_cluster.flush()
    store = RedisStore(redis_cluster.url, 10_000_000, stats, Health(), clock)
    await started(store)
    yield store
    await store.close()


STORES = ["memory", "redis", "ring", "cluster"]
"""What the table of cases and all laws hold for."""


def store_named(name: str, request: pytest.FixtureRequest) -> Store:
    """One of them, started only for a test that is run over it."""
    store: Store = request.getfixturevalue(name if name == "memory" else f"{name}_store")
    return store


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> Store:
    return store_named(request.param, request)
