"""Worlds in Redis in which processes lose servers, and find them again."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from ratelimit_service.model import Hit
from ratelimit_service.stores import Store
from ratelimit_service.stores.redis import RedisStore
from tests.machine.in_redis import InCluster, InRedis, InRing
from tests.machine.meaning import Alone, Away, Identity
from tests.machine.ways import Way
from tests.servers.cluster import SLOTS, SharedCluster
from tests.servers.process import wait_until
from tests.servers.redis import SharedRedis
from tests.stores.redis_store import started
from tests.waiting import until


class Failing(InRedis):
    """In a Redis that each of two processes can lose, and find again."""

    def __init__(self, loop: asyncio.AbstractEventLoop, server: SharedRedis) -> None:
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

    def lost(self, number: int) -> bool:
        """Whether a process has lost its way."""
        return self._ways[number].lost

    def find_in_vain(self, number: int, lost: str) -> bool:
        """Opens the way until the process tells what it has counted: returns whether it has.

        The first `call` that tells, or the `reply` to it, is lost with the connection.
        """
        return bool(self.run(self._ways[number].find_in_vain(lost)))

    def find(self, number: int) -> None:
        """Opens the way again, and waits until all is told that was counted without it."""
        self.run(self._ways[number].find())
        self.told(self._ways[number], 0)

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


class Losing(InRedis):
    """In several servers that each process can lose, one by one, and find again."""

    _ways: list[list[Way]]
    """Of each process to each server."""

    @property
    def _all_ways(self) -> list[Way]:
        return [way for ways in self._ways for way in ways]

    def _faults(self) -> list[int]:
        found = super()._faults()
        for number, ways in enumerate(self._ways if self._stores else ()):
            lost = [way for way in ways if not (way.shard.available or way.lost)]
            found[number] += len(lost) + sum(way.ended() for way in ways)
            found[number] -= self._stats[number].store_errors["disconnected"]
        return found

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """On a busy machine a process may have lost sight of a server between two steps."""
        unseen = self._stores and not all(way.lost or way.shard.available for way in self._all_ways)
        found = super().run(work)
        self.stood_still |= bool(unseen)
        return found

    def missing(self, number: int, hits: Sequence[Hit]) -> list[Away | None]:
        """Which of these hits have their counters in a server that a process has lost."""
        found: list[Away | None] = []
        for place in map(self.place, hits):
            way = self._ways[number][place]
            found.append(Away(number, place, way.shard.processes) if way.lost else None)
        return found

    def names_in(self, shard: int, keys: Mapping[Identity, bytes]) -> list[Identity]:
        """The counters that a server has."""
        there = set(self.counters_in(shard))
        return [name for name, key in keys.items() if key in there and not isinstance(name, Alone)]

    def lost(self, number: int, shard: int) -> bool:
        """Whether a process has lost a server."""
        return self._ways[number][shard].lost

    def lose(self, number: int, shard: int) -> None:
        """A process loses a server."""
        self.run(self._ways[number][shard].lose())

    def lose_next_reply(self, number: int, shard: int) -> None:
        """A process loses a server as soon as that has counted."""
        self._ways[number][shard].lose_next_reply(b"")

    def lose_no_reply(self, number: int, shard: int) -> None:
        self._ways[number][shard].lose_no_reply()

    def empty(self, shard: int) -> None:
        """A server loses its data."""
        self._clients[shard].flushdb()

    def find_in_vain(self, number: int, shard: int, lost: str) -> bool:
        """As `Failing.find_in_vain`."""
        return bool(self.run(self._ways[number][shard].find_in_vain(lost)))

    def find(self, number: int, shard: int) -> None:
        """A process finds a server again, and tells it what was counted without it."""
        self.run(self._ways[number][shard].find())
        self.told(self._ways[number][shard], shard)

    def forget_alone(self, number: int, shard: int, hit: Hit) -> None:
        """Drops a counter of a process that counts alone."""
        self.run(self._ways[number][shard].forget_alone([hit]))

    def stores(self) -> Sequence[Store]:
        for way in self._all_ways:
            if way.lost:
                way.forget()
                self.run(way.find())
        return super().stores()

    def close(self) -> None:
        super().close()
        for way in self._all_ways:
            self.run(way.proxy.close())


class LosingShards(Losing, InRing):
    """In a ring of three, of which each of two processes can lose shards."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, server: SharedRedis, directory: Path
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


class LosingNodes(Losing, InCluster):
    """In a cluster of three, of which a process can lose nodes: they say where it finds them."""

    def __init__(self, loop: asyncio.AbstractEventLoop, cluster: SharedCluster) -> None:
        self._cluster = cluster
        self._ways = [[Way(server.port) for server in cluster.servers]]
        servers = [server.url for server in cluster.servers]
        super().__init__(loop, "", servers, processes=1)

    async def _open(self, url: str) -> list[RedisStore]:
        (ways,) = self._ways
        ports = [await way.proxy.start() for way in ways]
        self._announce(ports)
        places = ",".join(f"127.0.0.1:{port}" for port in ports)
        store = self._store(f"redis+cluster://{places}", self._stats[0])
        await started(store)
        for shard in store.shards:
            ways[ports.index(int(shard.name.rpartition(":")[2]))].shard = shard
        return [store]

    def _announce(self, ports: Sequence[int]) -> None:
        """Has nodes name these ports as theirs, and waits until all know."""
        for client, port in zip(self._clients, ports, strict=True):
            client.config_set("cluster-announce-port", port)
        servers = self._cluster.servers
        wanted = [port or server.port for port, server in zip(ports, servers, strict=True)]
        wait_until(lambda: all(self._owners(n) == wanted for n in range(3)), "the new ports")

    def _owners(self, node: int) -> list[int]:
        """The ports of all nodes, as one of them knows them."""
        return [self._cluster.owner_port(slot, ask=node) for slot in (0, SLOTS // 2, SLOTS - 1)]

    def close(self) -> None:
        self._announce([0, 0, 0])
        super().close()
