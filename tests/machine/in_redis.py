"""Worlds in Redis: one, a ring, a cluster; and servers that are lost and found again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import redis

from ratelimit_service.health import Health
from ratelimit_service.model import (
    Hit,
)
from ratelimit_service.observer import Stats
from ratelimit_service.stores import (
    Store,
)
from ratelimit_service.stores.local import Local
from ratelimit_service.stores.local_cache import LocalCache
from ratelimit_service.stores.redis import RedisStore
from ratelimit_service.stores.redis.processes import PROCESSES
from tests.machine.meaning import Alone, Away, Identity
from tests.machine.ways import Way, until, well
from tests.machine.world import Told, World
from tests.servers.cluster import SLOTS, RedisCluster
from tests.servers.redis import RedisServer
from tests.stores.cases import T
from tests.stores.redis_store import started

LEAST_LIFE_S = 0.9
"""A key lives for a second at least in Redis, whose time is not the walk's."""


class InRedis(World):
    """In Redis: two processes, and keys that expire by the walk's clock instead of the server's."""

    def __init__(self, loop: asyncio.AbstractEventLoop, url: str, servers: Sequence[str]) -> None:
        super().__init__(loop)
        self._clients = [redis.Redis.from_url(server) for server in servers]
        self._expires: dict[bytes, int] = {}
        """When keys expire by the walk's clock."""
        self._places: dict[bytes, int] = {}
        """In which server they are."""
        self.hits: dict[bytes, Hit] = {}
        """The last hit on each key."""
        self._began = time.monotonic()
        """When the servers were asked last."""
        self._stats = [Stats(), Stats()]
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
            shard._debts._local = Local(Stats())
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
        hits = [hit for one in told for hit in one.hits]
        self._places.update({hit.key: self.place(hit) for hit in hits})
        self.hits.update({hit.key: hit for hit in hits})
        self.keep({hit.key for hit in hits})

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

    def find_way(self, way: Way, place: int, lost: str = "") -> bool:
        """Opens the way to a server, and waits until all is told that was counted without it.

        The first `call` that tells of it, or the `reply` to that, is lost with the connection.
        Returns whether the server was told twice.
        """
        twice = False
        if lost == "call":
            self.run(way.find_in_vain())
        elif lost == "reply":
            twice = self.run(way.find_untold())
        self.run(way.find())
        self._began = time.monotonic()
        self.run(way.told())
        counters = self.counters_in(place)
        self._places.update(dict.fromkeys(counters, place))
        self.keep(counters)
        return twice

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

    def __init__(self, loop: asyncio.AbstractEventLoop, url: str, servers: Sequence[str]) -> None:
        """Nodes wait for each other for longer than a busy machine can make them."""
        super().__init__(loop, url, servers)
        self._waited = [self._wait(client, "120000") for client in self._clients]

    def _wait(self, client: redis.Redis, timeout_ms: str) -> str:
        """Sets how long a node waits for others, and returns how long it did."""
        name = "cluster-node-timeout"
        before = client.config_get(name)[name]
        client.config_set(name, timeout_ms)
        return str(before)

    def close(self) -> None:
        for client, timeout_ms in zip(self._clients, self._waited, strict=True):
            self._wait(client, timeout_ms)
        super().close()

    def place(self, hit: Hit) -> int:
        return RedisCluster.slot(hit.key) * 3 // SLOTS


class Failing(InRedis):
    """In a Redis that each of two processes can lose, and find again."""

    def __init__(self, loop: asyncio.AbstractEventLoop, server: RedisServer) -> None:
        self._ways = [Way(server.port) for _ in range(2)]
        super().__init__(loop, "", [server.url])

    async def _open(self, url: str) -> list[RedisStore]:
        stores = []
        for way, stats in zip(self._ways, self._stats, strict=True):
            stores.append(self._store(f"redis://127.0.0.1:{await way.proxy.start()}/0", stats))
            await started(stores[-1])
            (way.shard,) = stores[-1].shards
        await until(lambda: all(way.shard.processes == len(stores) for way in self._ways))
        return stores

    def _lost(self, number: int) -> bool:
        return self._ways[number].lost

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Ends with no reply under way: whoever is not listened to for a second counts as hung."""
        found = super().run(work)
        self.loop.run_until_complete(self._quiet())
        return found

    async def _quiet(self) -> None:
        for way in self._ways:
            await way.quiet()

    def share(self, number: int) -> int:
        """How many processes a process knows of."""
        return self._ways[number].shard.processes

    def lose(self, number: int) -> None:
        """Cuts the way of a process."""
        self.run(self._ways[number].lose())

    def lose_next_reply(self, number: int, instead: bytes) -> None:
        """Cuts the way of a process as soon as the server has counted."""
        self._ways[number].lose_next_reply(instead)

    def lose_no_reply(self, number: int) -> None:
        """Leaves the way of a process as it is."""
        self._ways[number].lose_no_reply()

    def find(self, number: int, lost: str = "") -> bool:
        """Opens the way again; returns whether the server was told twice."""
        return self.find_way(self._ways[number], 0, lost)

    def stores(self) -> Sequence[Store]:
        for number, way in enumerate(self._ways):
            if way.lost:
                way.forget()
                self.find(number)
        return super().stores()

    def close(self) -> None:
        super().close()
        for way in self._ways:
            self.run(way.proxy.close())


class LosingShards(InRing):
    """In a ring of which each of two processes can lose single shards, and find them again."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, server: RedisServer, directory: Path
    ) -> None:
        self._ways = [[Way(server.port) for _ in range(3)] for _ in range(2)]
        self._directory = directory
        servers = [server.url.removesuffix("0") + str(number) for number in range(3)]
        super().__init__(loop, "", servers)

    async def _open(self, url: str) -> list[RedisStore]:
        stores = []
        for number, ways in enumerate(self._ways):
            file = self._directory / f"shards-{number}.yaml"
            lines = [
                f"- {{name: shard-{place}, store: 'redis://127.0.0.1:{port}/{place}'}}"
                for place, port in enumerate([await way.proxy.start() for way in ways])
            ]
            file.write_text("\n".join(["shards:", *lines]))
            stores.append(self._store(f"file:{file}", self._stats[number]))
            await started(stores[-1])
            for shard in stores[-1].shards:
                ways[int(shard.name.removeprefix("shard-"))].shard = shard
        await until(lambda: all(way.shard.processes == len(stores) for way in self._all_ways))
        return stores

    @property
    def _all_ways(self) -> list[Way]:
        return [way for ways in self._ways for way in ways]

    def _faults(self) -> list[int]:
        found = super()._faults()
        for number, ways in enumerate(self._ways if self._stores else ()):
            lost = [way for way in ways if not (way.shard.available or way.lost)]
            found[number] += len(lost) - self._stats[number].store_errors["disconnected"]
        return found

    def missing(self, number: int, hits: Sequence[Hit]) -> list[Away | None]:
        """Which of these hits have their counters in a shard that a process has lost."""
        found: list[Away | None] = []
        for place in map(self.place, hits):
            way = self._ways[number][place]
            found.append(Away(number, place, way.shard.processes) if way.lost else None)
        return found

    def names_in(self, shard: int, keys: Mapping[Identity, bytes]) -> list[Identity]:
        """The counters that a shard has."""
        there = set(self.counters_in(shard))
        return [name for name, key in keys.items() if key in there and not isinstance(name, Alone)]

    def lost(self, number: int, shard: int) -> bool:
        """Whether a process has lost a shard."""
        return self._ways[number][shard].lost

    def lose(self, number: int, shard: int) -> None:
        """A process loses a shard."""
        self.run(self._ways[number][shard].lose())

    def lose_next_reply(self, number: int, shard: int) -> None:
        """A process loses a shard as soon as that has counted."""
        self._ways[number][shard].lose_next_reply(b"")

    def lose_no_reply(self, number: int, shard: int) -> None:
        self._ways[number][shard].lose_no_reply()

    def empty(self, shard: int) -> None:
        """A shard loses its data."""
        self._clients[shard].flushdb()

    def find(self, number: int, shard: int, lost: str = "") -> bool:
        """A process finds a shard again; returns whether that was told twice."""
        return self.find_way(self._ways[number][shard], shard, lost)

    def forget_alone(self, number: int, shard: int, key: bytes) -> None:
        """Drops a counter of a process that counts alone."""
        self.run(self._ways[number][shard].forget_alone([self.hits[key]]))

    def stores(self) -> Sequence[Store]:
        for way in self._all_ways:
            if way.lost:
                way.forget()
                self.find_way(way, 0)
        return super().stores()

    def close(self) -> None:
        super().close()
        for way in self._all_ways:
            self.run(way.proxy.close())
