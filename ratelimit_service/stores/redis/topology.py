"""Servers that have the counters between them: what a store asks of a ring or a cluster."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Collection, Sequence
from os import urandom
from typing import Protocol

from ratelimit_service.model import Hit
from ratelimit_service.stores.keys import partition_of, partitions_of, slot_of
from ratelimit_service.stores.redis.address import Ring
from ratelimit_service.stores.redis.config import ShardConfig
from ratelimit_service.stores.redis.processes import Process
from ratelimit_service.stores.redis.ring import fingerprint, owners
from ratelimit_service.stores.redis.shard import Home, Shard

__all__ = ["RingOfShards", "Topology"]


class Topology(Protocol):
    """Where each counter lies."""

    kind: str
    """What a server of it is called."""

    @property
    def shards(self) -> Collection[Shard]:
        """All servers that have counters now."""

    def find(self, hit: Hit) -> Home:
        """The home of a hit's counter; the same object for all that one script call may settle."""

    def find_all(self, hits: Sequence[Hit]) -> list[Home]:
        """As `find`, for each of many hits."""

    def follow(self, shard: Shard, error: str, /) -> Shard | None:
        """Hears that a server has sent a command elsewhere: homes are to be looked up again.

        Returns the server that takes the command already, if it is told ASKING first.
        """

    async def start(self) -> None:
        """Tries every server once, in bounded time, and keeps them connected from then on."""

    async def close(self) -> None:
        """Disconnects for good."""


class RingOfShards:
    """A ring, or a single server: the shards' names and weights alone place the counters."""

    def __init__(self, ring: Ring, config: ShardConfig) -> None:
        alone = len(ring.members) == 1
        weights = {member.name: member.weight for member in ring.members}
        # Who has one server finds all counters there, whatever it calls the server.
        process = Process(urandom(8).hex(), fingerprint({} if alone else weights))
        self._ring = process.ring
        self._health = config.health
        self._component = "ring" if config.component == "store" else f"ring of {config.component}"
        self._strangers: dict[str, Process] = {}
        """For each shard a process that counts there but places counters on another ring."""
        self.kind = "server" if alone else "shard"
        self._shards = {
            member.name: Shard(
                member.name,
                member.endpoint,
                process,
                self._saw_processes,
                (config if alone else config.of(member.name)).patient(member.timeout_us),
            )
            for member in ring.members
        }
        self._homes = [(shard, 0) for shard in self._shards.values()]
        numbers = {name: number for number, name in enumerate(self._shards)}
        # An array is small enough for the processor's cache; keys look it up at random.
        self._owners = array("H", (numbers[name] for name in owners(weights)))

    @property
    def shards(self) -> Collection[Shard]:
        """All of them."""
        return self._shards.values()

    def find(self, hit: Hit) -> Home:
        """The shard that owns the counter's partition."""
        home = self._homes[self._owners[partition_of(hit[0])]]
        return (home[0], slot_of(hit[0])) if home[0].by_slot else home

    def find_all(self, hits: Sequence[Hit]) -> list[Home]:
        """As `find`, for each of many hits."""
        shard_homes, owners = self._homes, self._owners
        partitions = partitions_of([hit[0] for hit in hits])
        homes = [shard_homes[owners[partition]] for partition in partitions]
        if any(shard.by_slot for shard in self._shards.values()):
            return [
                (home[0], slot_of(hit[0])) if home[0].by_slot else home
                for home, hit in zip(homes, hits, strict=True)
            ]
        return homes

    def follow(self, _shard: Shard, _error: str, /) -> Shard | None:
        """Does nothing: the ring is as it is."""
        return None

    async def start(self) -> None:
        """Tries every shard once, at most a second long, and keeps trying in the background."""
        await asyncio.gather(*(shard.start() for shard in self.shards))

    async def close(self) -> None:
        """Disconnects for good."""
        await asyncio.gather(*(shard.close() for shard in self.shards))

    def _saw_processes(self, shard: str, processes: Sequence[Process]) -> None:
        """Sees whether all processes that count in a shard have the same ring."""
        others = [process for process in processes if process.ring != self._ring]
        if others:
            self._strangers[shard] = others[0]
        else:
            self._strangers.pop(shard, None)
        if self._strangers:
            name, other = next(iter(self._strangers.items()))
            self._health.degrade(
                self._component,
                f"another process counts in {name} and places counters on another ring "
                f"({other.ring}, ours is {self._ring}): give all the same shards and weights",
            )
        else:
            self._health.recover(self._component)
