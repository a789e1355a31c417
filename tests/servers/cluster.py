"""A Redis Cluster of three masters, put together without redis-cli."""

from __future__ import annotations

import re
from binascii import crc_hqx
from collections.abc import Sequence
from functools import partial
from itertools import chain
from pathlib import Path

import redis

from tests.servers.process import wait_until
from tests.servers.redis import RedisServer, SharedRedis

SLOTS = 1 << 14

_STALL_MS = "120000"
"""Longer than a machine stalls."""


class SharedCluster:
    """Three masters that other tests use, too: nothing here ends them."""

    def __init__(self, servers: Sequence[SharedRedis]) -> None:
        self.servers = servers

    @property
    def url(self) -> str:
        places = ",".join(f"127.0.0.1:{server.port}" for server in self.servers[:2])
        return f"redis+cluster://{places}"

    def flush(self) -> None:
        for server in self.servers:
            server.flush()

    def forget_errors(self) -> None:
        for number in range(3):
            self.client(number).config_resetstat()

    def said(self, error: str) -> bool:
        """Whether a master has answered with an error since the errors were forgotten."""
        errors = (self.client(number).info("errorstats") for number in range(3))
        return any(f"errorstat_{error}" in found for found in errors)

    def client(self, number: int) -> redis.Redis:
        return redis.Redis(port=self.servers[number].port)

    def name(self, number: int) -> str:
        """A node's id."""
        found = self.client(number).execute_command("CLUSTER", "MYID")  # type: ignore[no-untyped-call]
        return str(found, "ascii") if isinstance(found, bytes) else str(found)

    def owner_port(self, slot: int, *, ask: int = 0) -> int:
        """The port of the master that has a slot now, as one node sees it; 0 if none has."""
        ranges = self.client(ask).execute_command("CLUSTER", "SLOTS")  # type: ignore[no-untyped-call]
        for first, last, (_, port, *_), *_replicas in ranges:
            if first <= slot <= last:
                return int(port)
        return 0

    def move_slot(self, slot: int) -> None:
        """Moves a slot with its keys to the next master."""
        moving = SlotMove(self, slot)
        moving.begin()
        while keys := moving.keys():
            moving.move(*keys)
        moving.end()

    def agrees(self, slot: int, owner: int) -> bool:
        """Whether every master has heard of a slot's owner, and of the newest epoch."""
        infos = [self.client(n).execute_command("CLUSTER", "INFO") for n in range(3)]  # type: ignore[no-untyped-call]
        epochs = {*chain.from_iterable(re.findall(rb"current_epoch:(\d+)", info) for info in infos)}
        ports = {self.owner_port(slot, ask=n) for n in range(3)}
        return len(epochs) == 1 and ports == {self.servers[owner].port}

    def owner(self, key: bytes) -> int:
        """The number of the master that had this key's slot at the start."""
        slot = self.slot(key)
        return next(n for n in range(3) if n * SLOTS // 3 <= slot < (n + 1) * SLOTS // 3)

    @staticmethod
    def slot(key: bytes) -> int:
        return crc_hqx(key[1:9], 0) % SLOTS


class RedisCluster(SharedCluster):
    """Three masters with a third of the slots each; replicas may join."""

    def __init__(self, directory: Path, *flags: str, replicas: int = 0) -> None:
        """Nodes wait longer for each other than a machine stalls, until `lose` ends one.

        A master that the others have given up answers nothing until they have heard of it.
        """
        self.servers: list[RedisServer] = []
        for number in range(3 + replicas):
            place = directory / str(number)
            place.mkdir()
            cluster = ("--cluster-enabled", "yes", "--cluster-node-timeout", _STALL_MS)
            self.servers.append(RedisServer(place, *cluster, *flags))

    def start(self) -> None:
        for server in self.servers:
            server.start()
        clients = [self.client(number) for number in range(len(self.servers))]
        for number, client in enumerate(clients[:3]):
            first, last = number * SLOTS // 3, (number + 1) * SLOTS // 3 - 1
            slots = range(first, last + 1)
            client.execute_command("CLUSTER", "ADDSLOTS", *slots)  # type: ignore[no-untyped-call]
        for number, server in enumerate(self.servers[1:], 1):
            clients[number].execute_command("CLUSTER", "SET-CONFIG-EPOCH", number)  # type: ignore[no-untyped-call]
            clients[0].execute_command("CLUSTER", "MEET", "127.0.0.1", server.port)  # type: ignore[no-untyped-call]
        for client in clients:
            wait_until(partial(self._knows_all, client), "the cluster")
        for number, client in enumerate(clients[3:]):
            client.execute_command("CLUSTER", "REPLICATE", self.name(number))  # type: ignore[no-untyped-call]
            wait_until(partial(self._is_replica, client), "the replica")

    def _knows_all(self, client: redis.Redis) -> bool:
        info = client.execute_command("CLUSTER", "INFO")  # type: ignore[no-untyped-call]
        nodes = client.execute_command("CLUSTER", "NODES")  # type: ignore[no-untyped-call]
        return b"cluster_state:ok" in info and nodes.count(b"connected") == len(self.servers)

    def _is_replica(self, client: redis.Redis) -> bool:
        return bool(client.info("replication").get("master_link_status") == "up")

    def lose(self, number: int, seen_after_ms: int = 1_000) -> None:
        """Lets a node die; the others replace it after so long a silence."""
        for each in range(len(self.servers)):
            self.client(each).config_set("cluster-node-timeout", seen_after_ms)
        self.servers[number].kill()

    def kill(self) -> None:
        for server in self.servers:
            server.kill()


class SlotMove:
    """A slot on its way to another master, by the steps of redis-cli --cluster reshard."""

    def __init__(self, cluster: SharedCluster, slot: int, target: int | None = None) -> None:
        ports = [server.port for server in cluster.servers[:3]]
        self._source = ports.index(cluster.owner_port(slot))
        self._target = (self._source + 1) % 3 if target is None else target
        self._cluster, self._slot, self._port = cluster, slot, ports[self._target]

    def begin(self) -> None:
        self._set(self._target, "IMPORTING", self._source)
        self._set(self._source, "MIGRATING", self._target)

    def keys(self) -> list[bytes]:
        """Up to a hundred keys that have not moved."""
        client = self._cluster.client(self._source)
        found = client.execute_command("CLUSTER", "GETKEYSINSLOT", self._slot, 100)  # type: ignore[no-untyped-call]
        return list(found)

    def move(self, *keys: bytes) -> None:
        client = self._cluster.client(self._source)
        client.migrate("127.0.0.1", self._port, list(keys), 0, 5_000)

    def end(self) -> None:
        """Gives the slot to its new master, and waits until every master knows.

        The new master takes a higher epoch by itself. If the next move began before all have
        heard of it, two masters could take the same one, and one would lose its slot again.
        """
        for number in (self._target, self._source, 3 - self._target - self._source):
            self._set(number, "NODE", self._target)
        wait_until(lambda: self._cluster.agrees(self._slot, self._target), "the nodes to agree")

    def _set(self, number: int, state: str, other: int) -> None:
        words = ("CLUSTER", "SETSLOT", self._slot, state, self._cluster.name(other))
        self._cluster.client(number).execute_command(*words)  # type: ignore[no-untyped-call]
