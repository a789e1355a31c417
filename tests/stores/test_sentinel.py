"""A Redis that Sentinel watches over: found by name, and found again after a failover."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import redis

from ratelimit_service.health import Health
from ratelimit_service.observer import Counters
from ratelimit_service.stores.redis import RedisStore
from tests.conftest import need
from tests.servers.process import Process, free_port, listens, wait_until
from tests.servers.redis import RedisServer
from tests.stores.cases import charged, hit

NAME = "main"


class Watched:
    """A master, its replica, and a Sentinel that may replace the one by the other."""

    def __init__(self, directory: Path) -> None:
        self.servers: list[RedisServer] = []
        for number in range(2):
            place = directory / str(number)
            place.mkdir()
            flags = ("--replicaof", "127.0.0.1", str(self.servers[0].port)) if number else ()
            self.servers.append(RedisServer(place, *flags))
        self.port = free_port()
        config = directory / "sentinel.conf"
        config.write_text(
            f"port {self.port}\ndir {directory}\n"
            f"sentinel monitor {NAME} 127.0.0.1 {self.servers[0].port} 1\n"
            f"sentinel down-after-milliseconds {NAME} 500\n"
            f"sentinel failover-timeout {NAME} 2000\n"
        )
        command = ["redis-server", str(config), "--sentinel"]
        self._sentinel = Process(command, directory / "sentinel.log")
        self.url = f"redis+sentinel://127.0.0.1:{self.port}/{NAME}"

    def start(self) -> None:
        for server in self.servers:
            server.start()
        self._sentinel.spawn()
        self._sentinel.wait_ready(lambda: listens(self.port))
        wait_until(lambda: self._asked().sentinel_slaves(NAME), "the replica to be known")

    def fail_over(self) -> None:
        """Asks Sentinel to; the old master lives on as a replica."""
        before = self.master
        wait_until(self._accepted, "a replica that is good enough")
        wait_until(lambda: self.master != before, "the failover")

    def _accepted(self) -> bool:
        try:
            self._asked().execute_command("SENTINEL FAILOVER", NAME)  # type: ignore[no-untyped-call]
        except redis.ResponseError:
            return False
        return True

    @property
    def master(self) -> int:
        """The master's port."""
        found = self._asked().sentinel_get_master_addr_by_name(NAME)
        assert isinstance(found, tuple)
        return int(found[1])

    def kill(self) -> None:
        self._sentinel.kill()
        for server in self.servers:
            server.kill()

    def _asked(self) -> redis.Redis:
        return redis.Redis(port=self.port)


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
    store = RedisStore(watched.url, 5_000_000, Counters(), health)
    await store.start()
    yield store
    await store.close()


async def until_counted(store: RedisStore) -> int:
    """Charges until Redis answers; what is left then."""
    async with asyncio.timeout(25):
        while True:
            ((outcome,),) = await charged(store, [[hit(limit=1_000, window_us=10**12)]])
            if outcome is not None:
                return outcome.left
            await asyncio.sleep(0.01)


async def test_master_is_found_by_its_name(
    store: RedisStore, watched: Watched, health: Health
) -> None:
    """Counters lie in the master that Sentinel names."""
    assert await until_counted(store) == 999

    assert redis.Redis(port=watched.servers[0].port).exists(hit().key)
    assert health.faults == {}


async def test_failover(store: RedisStore, watched: Watched, health: Health) -> None:
    """When the master dies its replica counts on, and everything is well again."""
    assert await until_counted(store) == 999
    with redis.Redis(port=watched.servers[0].port) as master:
        assert master.wait(1, 5_000) == 1

    watched.servers[0].kill()

    left = await until_counted(store)
    assert watched.master == watched.servers[1].port
    assert left == 998
    assert health.faults == {}


async def test_a_master_that_becomes_a_replica_is_left(store: RedisStore, watched: Watched) -> None:
    """After a failover that was asked for nobody counts on the old master."""
    assert await until_counted(store) == 999

    watched.fail_over()

    master = redis.Redis(port=watched.master)
    async with asyncio.timeout(25):
        while not master.exists(hit(key="new").key):
            await charged(store, [[hit(key="new")]])
            await asyncio.sleep(0.01)


async def test_nobody_knows_the_master(watched: Watched) -> None:
    """A name that no Sentinel knows is a fault in health that names it, and whom was asked."""
    health = Health()
    url = watched.url.replace(NAME, "other")
    store = RedisStore(url, 10_000, Counters(), health)
    await store.start()

    assert await charged(store, [[hit()]]) == [[None]]
    assert f"other (by Sentinel at 127.0.0.1:{watched.port})" in health.faults["store"]
    await store.close()
