"""Worlds in Redis: one, a ring, a cluster; and servers that are lost and found again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import redis

from ratelimit_service.model import Hit, Hold
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.stores import (
    Store,
)
from ratelimit_service.stores.local import Local
from ratelimit_service.stores.local_cache import LocalCache
from ratelimit_service.stores.redis import RedisStore
from ratelimit_service.stores.redis.processes import PROCESSES
from tests.machine.ways import Way, well
from tests.machine.world import Told, World
from tests.servers.cluster import SLOTS, SharedCluster
from tests.stores.cases import T
from tests.stores.redis_store import started
from tests.waiting import until

LEAST_LIFE_S = 0.9
"""A key lives for a second at least in Redis, whose time is not the walk's."""


class InRedis(World):
    """In Redis: two processes, and keys that expire by the walk's clock instead of the server's."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        url: str,
        servers: Sequence[str],
        processes: int = 2,
    ) -> None:
        super().__init__(loop)
        self._clients = [redis.Redis.from_url(server) for server in servers]
        self._expires: dict[bytes, int] = {}
        """When keys expire by the walk's clock."""
        self._places: dict[bytes, int] = {}
        """In which server they are."""
        self._began = time.monotonic()
        """When the servers were asked last."""
        self._stats = [Stats() for _ in range(processes)]
        """What the store of each process counts of itself."""
        self._stores: Sequence[RedisStore] = ()
        self._stores = self.run(self._open(url))

    async def _open(self, url: str) -> list[RedisStore]:
        stores = [self._store(url, stats) for stats in self._stats]
        for store in stores:
            await started(store)
        return stores

    def _store(self, url: str, stats: Stats) -> RedisStore:
        return RedisStore(url, 10_000_000, stats, Health(), self.clock)

    def _faults(self) -> list[int]:
        """For each process how many hits its servers did not count, though nothing was done to it.

        If there are more of them, the machine stood still.
        """
        errors = [stats.store_errors for stats in self._stats]
        return [each.total() - each["internal"] for each in errors]

    def _lost(self, number: int) -> bool:
        """Whether the walk has taken its server from a process."""
        return False

    async def _calm(self) -> None:
        """Returns when all servers can be asked, and are owed nothing."""
        for shard in [shard for store in self._stores for shard in store.shards]:
            shard._resyncs._local = Local(Stats())
            await until(partial(well, shard))

    def stores(self) -> Sequence[Store]:
        self.run(self._calm())
        for client in self._clients:
            client.flushdb()
        self._expires.clear()
        return self._stores

    def place(self, hit: Hit) -> int:
        """The number of the server in which a counter is."""
        return 0

    def asked(self, told: Sequence[Told]) -> None:
        places: dict[bytes, int] = {}
        for hit in [hit for one in told for hit in one.hits]:
            keys = [hit.key]
            if hit.spec.holds or isinstance(hit.receipt, Hold):
                keys += [hit.key + b"~h", hit.key + b"~a"]
            places.update(dict.fromkeys(keys, self.place(hit)))
        self._places.update(places)
        self.keep(places)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        self._began, faults = time.monotonic(), self._faults()
        found = super().run(work)
        more = map(int.__gt__, self._faults(), faults)
        self.stood_still = any(each and not self._lost(number) for number, each in enumerate(more))
        return found

    def keep(self, keys: Iterable[bytes]) -> None:
        """Takes from the server's clock what expires, and notes when it does by the walk's."""
        for client, there in self._by_place(keys):
            pipeline = client.pipeline(transaction=False)
            for key in there:
                pipeline.pttl(key)
                pipeline.persist(key)
            for key, left_ms in zip(there, pipeline.execute()[::2], strict=True):
                if left_ms > 0:
                    passed_us = int((time.monotonic() - self._began) * 1_000_000)
                    self._expires[key] = self.clock.now_us + left_ms * 1_000 + passed_us
                elif left_ms == -2:
                    self._expires.pop(key, None)
        self.stood_still |= time.monotonic() - self._began > LEAST_LIFE_S

    def moved(self) -> None:
        now = self.clock.now_us
        self._drop([key for key, expires_us in self._expires.items() if expires_us <= now])

    def forget(self, key: bytes) -> None:
        self._drop([key])

    def _drop(self, keys: Iterable[bytes]) -> None:
        for client, there in self._by_place(keys):
            pipeline = client.pipeline(transaction=False)
            for key in there:
                pipeline.delete(key)
                self._expires.pop(key, None)
            pipeline.execute()

    def _by_place(self, keys: Iterable[bytes]) -> Iterator[tuple[redis.Redis, list[bytes]]]:
        """Keys with the server in which they are; to ask it once is quick."""
        found: dict[int, list[bytes]] = {}
        for key in keys:
            found.setdefault(self._places[key], []).append(key)
        for number, there in found.items():
            yield self._clients[number], there

    def counters_in(self, place: int) -> list[bytes]:
        """The counters that a server has."""
        keys = [key for key in self._clients[place].scan_iter() if isinstance(key, bytes)]
        return [key for key in keys if key != PROCESSES.encode()]

    def told(self, way: Way, place: int) -> None:
        """Waits until all is told to a server that was counted without it."""
        self._began = time.monotonic()
        self.run(way.told())
        counters = self.counters_in(place)
        self._places.update(dict.fromkeys(counters, place))
        self.keep(counters)

    async def forget_at(self, number: int, hit: Hit) -> None:
        await self._stores[number].forget([hit])
        self._expires.pop(hit.key, None)

    has_scripts = True

    def forget_scripts(self) -> None:
        for client in self._clients:
            client.script_flush()

    def close(self) -> None:
        for store in self._stores:
            self.run(store.close())
        for client in self._clients:
            client.close()


class InRing(InRedis):
    """In a ring of databases of one server."""

    settles_in_order = False

    def place(self, hit: Hit) -> int:
        return int(self._stores[0].shard_of(hit).removeprefix("shard-"))


class Cached(InRing):
    """In a ring, with what each of two processes knows to be over in front of it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, url: str, servers: Sequence[str]) -> None:
        self.elapsed_us = 0
        """What processes measure time by, which never goes back."""
        self._latest_us = T
        super().__init__(loop, url, servers)

    def stores(self) -> Sequence[Store]:
        super().stores()
        self._latest_us = T
        self._cached = [Stats() for _ in self._stores]
        self._known = [0 for _ in self._stores]
        caches = []
        for store, stats in zip(self._stores, self._cached, strict=True):
            caches.append(LocalCache(store, 1 << 20, stats, lambda: self.elapsed_us))
            store.tell_of_give_backs(caches[-1].given_back)
        return caches

    def moved(self) -> None:
        self.elapsed_us += max(0, self.clock.now_us - self._latest_us)
        self._latest_us = self.clock.now_us
        super().moved()

    def knew(self, number: int) -> bool:
        """Whether the last request of a process was answered without asking the ring."""
        before, self._known[number] = self._known[number], self._cached[number].local_cache["hit"]
        return self._known[number] > before

    @property
    def cached(self) -> int:
        """How many requests were answered without asking the ring."""
        return sum(self._known)


class InCluster(InRedis):
    """In a cluster of three, each of which has a third of the slots."""

    settles_in_order = False

    def place(self, hit: Hit) -> int:
        return SharedCluster.slot(hit.key) * 3 // SLOTS
