"""A Redis Cluster of three masters, put together without redis-cli."""

from __future__ import annotations

from binascii import crc_hqx
from functools import partial
from pathlib import Path

import redis

from tests.servers.process import wait_until
from tests.servers.redis import RedisServer

SLOTS = 1 << 14


class RedisCluster:
    """Three masters with a third of the slots each; replicas may join."""

    def __init__(self, directory: Path, *flags: str, replicas: int = 0) -> None:
        self.servers: list[RedisServer] = []
        for number in range(3 + replicas):
            place = directory / str(number)
            place.mkdir()
            cluster = ("--cluster-enabled", "yes", "--cluster-node-timeout", "1000")
            self.servers.append(RedisServer(place, *cluster, *flags))

    @property
    def url(self) -> str:
        places = ",".join(f"127.0.0.1:{server.port}" for server in self.servers[:2])
        return f"redis+cluster://{places}"

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

    def kill(self) -> None:
        for server in self.servers:
            server.kill()

    def flush(self) -> None:
        for server in self.servers:
            server.flush()

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
        """Moves a slot with its keys to the next master, as redis-cli --cluster reshard does."""
        port = self.owner_port(slot)
        number = next(n for n in range(3) if self.servers[n].port == port)
        after = (number + 1) % 3
        source, target = self.client(number), self.client(after)
        target_port = self.servers[after].port
        target.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", self.name(number))  # type: ignore[no-untyped-call]
        source.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", self.name(after))  # type: ignore[no-untyped-call]
        while keys := source.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 100):  # type: ignore[no-untyped-call]
            source.migrate("127.0.0.1", target_port, keys, 0, 5_000)
        for client in (target, source, self.client((number + 2) % 3)):
            client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", self.name(after))  # type: ignore[no-untyped-call]
        # Nodes that bump their epochs at once may fall out over a slot: one move at a time.
        wait_until(
            lambda: all(self.owner_port(slot, ask=n) == target_port for n in range(3)),
            "the nodes to agree",
        )

    def owner(self, key: bytes) -> int:
        """The number of the master that had this key's slot at the start."""
        slot = self.slot(key)
        return next(n for n in range(3) if n * SLOTS // 3 <= slot < (n + 1) * SLOTS // 3)

    @staticmethod
    def slot(key: bytes) -> int:
        return crc_hqx(key[1:9], 0) % SLOTS
