"""Redis Cluster: which node has a counter's slot now, and what to do when it has moved.

The specification is Redis' own: https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/
Every slot is a home of its own, since a script may touch the keys of one slot only. A node may
send a call elsewhere (MOVED, ASK) or put it off (TRYAGAIN). Such a call has changed nothing, so it
is sent again, on its own. What must not live here: connections, batches.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from os import urandom

from ratelimit_service.model import Hit
from ratelimit_service.stores import always
from ratelimit_service.stores.keys import SLOTS, slot_of, slot_of_tag
from ratelimit_service.stores.redis.address import Address, Cluster
from ratelimit_service.stores.redis.batch import Batch, Retry
from ratelimit_service.stores.redis.config import ShardConfig
from ratelimit_service.stores.redis.connection import Reply
from ratelimit_service.stores.redis.processes import Process
from ratelimit_service.stores.redis.shard import Home, Shard

__all__ = ["ClusterOfNodes", "moved_to"]

log = logging.getLogger(__name__)

_MOST_PORT = 65_535
_MOST_DIGITS = 5
"""Of a slot or a port."""

_MOST_NODES = 1_000
"""Redis' own bound. Nodes beyond it are not used: each would be a connection."""

_QUICK_HOPS = 4
_MOST_HOPS = 1_000
"""How often a call is sent elsewhere without a pause, and how often at all. Its deadline usually
ends it sooner."""

_AGAIN_SECONDS = 0.002
_ASK_US = 1_000_000
_LOOK_SECONDS = 5.0
"""How often the slots are asked for when nothing seems wrong."""
_URGENT_SECONDS = 0.1


class ClusterOfNodes:
    """The masters of a cluster, by the slots they have."""

    kind = "cluster node"

    def __init__(self, cluster: Cluster, config: ShardConfig) -> None:
        self._cluster = cluster
        self._config = config.patient(cluster.timeout_us)
        self._process = Process(urandom(8).hex(), "cluster")
        self._nodes: dict[tuple[str, int], Shard] = {}
        self._keeper: asyncio.Task[None] | None = None
        self._stale = asyncio.Event()
        self._starting: dict[Shard, asyncio.Task[None]] = {}
        """Nodes that are being connected to for the first time."""
        self._ending: set[asyncio.Task[None]] = set()
        for seed in cluster.seeds:
            self._node(seed.host, seed.port)
        first = next(iter(self._nodes.values()))
        # Until the slots are known the first node gets everything, and says where it belongs.
        self.homes: list[Home] = [(first, slot) for slot in range(SLOTS)]

    @property
    def shards(self) -> Collection[Shard]:
        """All nodes that are known."""
        return self._nodes.values()

    def find(self, hit: Hit) -> Home:
        """The node and the slot."""
        return self.homes[slot_of(hit[0])]

    def find_all(self, hits: Sequence[Hit]) -> list[Home]:
        """As `find`, for each of many hits."""
        homes = self.homes
        return [homes[slot_of(hit[0])] for hit in hits]

    def follow(self, shard: Shard, error: str, /) -> Shard | None:
        """Asks for the slots soon. A key whose slot is on its way may have moved already."""
        self._stale.set()
        target = self._target(shard, error)
        return target if error.startswith("ASK ") else None

    def _target(self, node: Shard, error: str) -> Shard | None:
        """The node that a MOVED or ASK of another names; notes where a slot is now."""
        word, _, rest = error.partition(" ")
        moved = moved_to(rest) if word in {"MOVED", "ASK"} else None
        if moved is None:
            return None
        slot, host, port = moved
        target = self._node(host or _host_of(node), port, start=True)
        if target is not None and word == "MOVED":
            self.homes[slot] = target, slot
            self._stale.set()
        return target

    async def start(self) -> None:
        """Tries the given nodes once, asks one of them for the slots, and follows their changes."""
        await asyncio.gather(*(node.start() for node in list(self._nodes.values())))
        await self._look()
        await asyncio.gather(*self._starting.values())
        self._keeper = asyncio.create_task(self._keep_looking())

    async def close(self) -> None:
        """Disconnects for good."""
        keeper = [self._keeper] if self._keeper else []
        tasks = [*self._starting.values(), *self._ending, *keeper]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(node.close() for node in self._nodes.values()))

    def heartbeat_key(self, node: Shard) -> str | None:
        """The key under which processes are listed; it lies in one of the node's slots."""
        for number in range(SLOTS):
            if self.homes[slot_of_tag(b"%d" % number)][0] is node:
                return f"{{{number}}}processes"
        return None

    def redirected(self, node: Shard, error: str, batch: Batch, indexes: Sequence[int]) -> bool:
        """Sends requests of a batch to the node that an error names; False for any other error."""
        word = error.partition(" ")[0]
        if word == "CLUSTERDOWN":
            self._stale.set()
        if word == "TRYAGAIN":
            # While a slot moves, the keys of one request can lie on two nodes. The batch's other
            # requests must not wait for it, so each goes alone.
            for index in indexes:
                self._later(self._charge_home, Redirected(batch, [index], 0))
            return True
        hops = batch.hops if isinstance(batch, Redirected) else 0
        if batch.finished or hops >= _MOST_HOPS:
            return False
        target = self._target(node, error)
        if target is None:
            return False
        again = Redirected(batch, indexes, hops + 1)
        send = target.ask if word == "ASK" else target.charge
        if hops >= _QUICK_HOPS:  # a pause, so that nodes that disagree are not kept busy
            self._later(send, again)
        elif target in self._starting:
            self._starting[target].add_done_callback(lambda _: send(again))
        else:
            send(again)
        return True

    def _later(self, send: Callable[[Batch], None], batch: Batch) -> None:
        """Sends a batch after a pause."""
        asyncio.get_running_loop().call_later(_AGAIN_SECONDS, send, batch)

    def _charge_home(self, batch: Batch) -> None:
        """Sends a batch to the node that has its slot."""
        self.find(batch.requests[0][0])[0].charge(batch)

    def _node(self, host: str, port: int, *, start: bool = False) -> Shard | None:
        """The node at this place, which may be new; None if there are too many already."""
        node = self._nodes.get((host, port))
        if node is None and len(self._nodes) < _MOST_NODES:
            seed = self._cluster.seeds[0]
            address: Address = replace(seed, host=host, port=port)
            name = f"{host}:{port}"
            config = self._config.of(name)
            node = Shard(name, address, self._process, lambda *_: None, config, self)
            self._nodes[host, port] = node
            if start:
                task = self._starting[node] = asyncio.create_task(node.start())
                task.add_done_callback(lambda _: self._starting.pop(node, None))
        return node

    async def _keep_looking(self) -> None:
        while True:
            urgent = self._stale.is_set() or any(not node.available for node in self.shards)
            seconds = _URGENT_SECONDS if urgent else _LOOK_SECONDS
            self._stale.clear()
            if urgent:
                await asyncio.sleep(seconds)
            else:
                try:
                    async with asyncio.timeout(seconds):
                        await self._stale.wait()
                except TimeoutError:
                    pass
            await self._look()

    async def _look(self) -> None:
        """Asks one node after the other for the slots, until one knows."""
        for (host, _), node in list(self._nodes.items()):
            question = node.call("CLUSTER", "SLOTS")
            if question is None:
                continue
            if await node.server.answers(question, _ASK_US) and self.learn(question.result(), host):
                return

    def learn(self, reply: Reply, host: str) -> bool:
        """Takes the slots from a reply to CLUSTER SLOTS; `host` is the node that sent it."""
        ranges = _ranges(reply, host)
        if not ranges or len({endpoint for *_, endpoint in ranges}) > _MOST_NODES:
            return False
        masters = set()
        for first, last, endpoint in ranges:
            node = self._node(*endpoint, start=True)
            if node is None:  # there will be room, once those without slots are gone
                self._stale.set()
                continue
            masters.add(node)
            for slot in range(first, last + 1):
                if self.homes[slot][0] is not node:
                    self.homes[slot] = node, slot
        gone = [(at, node) for at, node in self._nodes.items() if node not in masters]
        if gone:
            # What slots are still to count that nobody has now waits where they were.
            homes = {home for home, _ in self.homes}
            for endpoint, node in gone:
                if node not in homes:
                    self._retire(endpoint, node)
        return True

    def _retire(self, endpoint: tuple[str, int], node: Shard) -> None:
        """Lets go of a node without slots. What it was still to be told goes to the new nodes."""
        del self._nodes[endpoint]
        log.info("%s has no slots of the cluster any more", node.name)
        task = asyncio.create_task(self._end(node))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _end(self, node: Shard) -> None:
        """Disconnects from a node; its slots' new nodes are told what it was still to count."""
        await node.retire(self._charge_home)
        for requests, expires_us in node.uncounted():
            self.find(requests[0][0])[0].resync(requests, expires_us)


def _host_of(node: Shard) -> str:
    """A node that sends a call elsewhere may name no host, and means its own."""
    return node.name.rpartition(":")[0]


def moved_to(text: str) -> tuple[int, str, int] | None:
    """The slot, host and port that an error names; None if it names none."""
    slot, _, address = text.partition(" ")
    host, _, port = address.rpartition(":")
    for number in (slot, port):
        if not (number.isdecimal() and len(number) <= _MOST_DIGITS):
            return None
    if int(slot) >= SLOTS or not 0 < int(port) <= _MOST_PORT:
        return None
    return int(slot), host, int(port)


def _ranges(reply: Reply, default_host: str) -> list[tuple[int, int, tuple[str, int]]]:
    """First slot, last slot, and host and port of the master of each range.

    Empty if the reply is not one to CLUSTER SLOTS.
    """
    if not isinstance(reply, list):
        return []
    ranges = []
    try:
        for first, last, (host, port, *_), *_ in reply:
            name = host.decode() if isinstance(host, bytes) else ""
            if not (0 <= first <= last < SLOTS and 0 < port <= _MOST_PORT):
                return []
            ranges.append((int(first), int(last), (name or default_host, int(port))))
    except (TypeError, ValueError):
        return []
    return ranges


class Redirected(Retry):
    """Some requests of a batch, on their way to another node.

    However often they are sent on, these know the batch itself: while a slot moves that can be
    thousands of times.
    """

    def __init__(self, batch: Batch, indexes: Sequence[int], hops: int) -> None:
        super().__init__(batch, indexes)
        self.hops = hops
        self.wanted = always  # it was asked when the batch was first sent
