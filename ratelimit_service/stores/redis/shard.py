"""One Redis server as the store sees it: what is charged there, and what is counted without it.

A shard puts three parts together: the way to the server (`server`), the queue before it
(`batches`), and what was counted while it was away (`uncounted`). What must not live here: how a
request with several homes is settled (`cross_shard`), and which home a counter has (`ring`,
`cluster`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Protocol

from ratelimit_service.model import Hit, Outcome
from ratelimit_service.stores import NEVER, ShardState
from ratelimit_service.stores.keys import slot_of
from ratelimit_service.stores.redis.address import Address, Sentinels
from ratelimit_service.stores.redis.batch import Batch
from ratelimit_service.stores.redis.batches import Batches
from ratelimit_service.stores.redis.config import ShardConfig
from ratelimit_service.stores.redis.connection import (
    Argument,
    RedisConnection,
    Reply,
)
from ratelimit_service.stores.redis.error_replies import crosses_slots
from ratelimit_service.stores.redis.processes import PROCESSES, Process
from ratelimit_service.stores.redis.resync import Resyncs
from ratelimit_service.stores.redis.server import Server

__all__ = ["ClusterRouter", "FindAll", "Home", "Shard"]

log = logging.getLogger(__name__)


class ClusterRouter(Protocol):
    """What a node of a cluster asks of the cluster."""

    def redirected(self, node: Shard, error: str, batch: Batch, indexes: Sequence[int]) -> bool:
        """Sends requests of a batch elsewhere, if the node's error says that they belong there."""

    def heartbeat_key(self, node: Shard) -> str | None:
        """The key under which processes are listed in this node."""


def _slot_of_first(hits: Sequence[Hit]) -> int:
    """The slot of a request whose counters are all in the same one."""
    return slot_of(hits[0].key)


class Shard:
    """One server (6.2 or later), or the master that Sentinel names.

    A request has no answer when the server is away, refuses, or was found sick. Every such
    fault is in the stats, and the state in health and, once, in the log.
    """

    def __init__(
        self,
        name: str,
        address: Address | Sentinels,
        process: Process,
        on_processes: Callable[[str, Sequence[Process]], None],
        config: ShardConfig,
        router: ClusterRouter | None = None,
    ) -> None:
        """`on_processes` is told once a second who counts here.

        `router` is given if the shard is a node of a cluster.
        """
        self.name = name
        self.sentinel = isinstance(address, Sentinels)
        """Whether Sentinel names the server."""
        self._router = router
        self._on_processes = on_processes
        self._key_prefix = key_prefix = config.key_prefix
        self.stats = config.stats
        self.server = Server(address, process, self, config)
        if router is None:
            self._batches = Batches(self.server, config.stats, key_prefix, redirect=self._refused)
        else:
            redirect = partial(router.redirected, self)
            self._batches = Batches(self.server, config.stats, key_prefix, _slot_of_first, redirect)
        self._resyncs = Resyncs(self, self.server.clock, str(address), config.stats)
        self.by_slot = router is not None
        """Whether the server lets a script call touch the keys of one slot only."""
        if isinstance(address, Address) and address.slots:
            self._count_by_slot()
        self.processes = 1
        """How many processes count in this server, this one included, as last known."""

    async def start(self) -> None:
        """Tries to connect once, at most a second long, and keeps trying in the background."""
        await self.server.start()

    async def close(self) -> None:
        """Disconnects for good."""
        await self.server.close()

    async def retire(self, successor: Callable[[Batch], None]) -> None:
        """Disconnects from a server that has no counters any more, and forgets its faults.

        From now on give-backs that wait for it go to the `successor`. The caller takes `uncounted`.
        """
        await self.close()
        self._batches.hand_over(successor)
        self.server.forget_faults()

    def charge(self, batch: Batch) -> None:
        """Queues a batch for the next script calls; each call is atomic."""
        self._batches.charge(batch)

    def charge_here(self, hits: Sequence[Hit], at_us: int) -> list[Outcome]:
        """Settles hits in this process alone, on its share of their limits."""
        return self._resyncs.charge_here(hits, at_us)

    def charge_each_here(
        self, requests: Sequence[Sequence[Hit]], at_us: int
    ) -> list[list[Outcome]]:
        """Settles these requests one after the other, as `charge_here` does."""
        return self._resyncs.charge_each_here(requests, at_us)

    def wait_us(self, priority: int) -> int:
        """How long a new request of this priority would wait for its reply."""
        return self._batches.wait_us(priority)

    def reply_us(self) -> int:
        """How long that would take if nothing waited before it; `NEVER` if the last was late."""
        return self._batches.reply_us() if self.server.breaker.in_time else NEVER

    def ask(self, batch: Batch) -> None:
        """Sends a batch at once to a node that is about to get its slot."""
        self._batches.ask(batch)

    def call(self, *command: Argument) -> asyncio.Future[Reply] | None:
        """Sends the server any other command; None if it is away."""
        return self.server.call(*command)

    @property
    def available(self) -> bool:
        """Whether requests are sent there now."""
        return self.server.available

    @property
    def idle(self) -> bool:
        """Whether nothing waits to be sent there, or for a reply."""
        return self._batches.idle

    def state(self, kind: str) -> ShardState:
        """How the server stands; `kind` is what it is among the others."""
        server, batches = self.server, self._batches
        if self.sentinel:
            kind = f"{kind}, by Sentinel"
        return ShardState(
            self.name,
            kind,
            server.at,
            server.breaker.open,
            server.round_trip_us,
            batches.under_way,
            batches.waiting,
            self.processes,
        )

    def uncounted(self) -> Iterator[tuple[Sequence[Sequence[Hit]], int]]:
        """All that the server has not been told, with the time it is over: another is told."""
        return self._resyncs.take_all()

    def resync(self, requests: Sequence[Sequence[Hit]], expires_us: int) -> None:
        """Takes requests that the server is to be told, until `expires_us`."""
        self._resyncs.add(requests, expires_us)

    # What the server tells those who use it.

    async def greet(self, connection: RedisConnection) -> None:
        """Finds out whether a server that is asked alone enforces a cluster's slots.

        Managed Redis behind one address can do so. The question is a script with keys of two
        slots, since proxies may well divide other commands. It touches nothing.
        """
        if self.by_slot:
            return
        keys = [f"{self._key_prefix}{{{number}}}slots" for number in range(2)]
        reply = await connection.call("EVAL", "return 1", len(keys), *keys)
        instead = "hits are counted, but it is needed for overrides, and to hear of other processes"
        if not self.server.does_without(connection, "EVAL", reply, instead):
            self._enforces_slots(str(reply))

    def _refused(self, error: str, batch: Batch, indexes: Sequence[int], /) -> bool:
        """Sends requests again by slot, if an error says that the server enforces slots."""
        divided = batch.divided_by_slot(indexes) if self._enforces_slots(error) else None
        for each in divided or ():
            self.charge(each)
        return divided is not None

    def _enforces_slots(self, error: str) -> bool:
        """Whether an error says that the server enforces slots, which is remembered."""
        if not crosses_slots(error):
            return False
        if not self.by_slot:
            log.info(
                "Redis at %s enforces cluster slots: counters of different slots are counted "
                "apart, as in a cluster (?slots=yes in the store's URL says so from the start)",
                self.server.name,
            )
            self._count_by_slot()
        return True

    def _count_by_slot(self) -> None:
        self.by_slot = True
        self._batches.slot = _slot_of_first

    def up(self) -> None:
        """Sends what has waited for the server."""
        self._batches.release()

    def down(self, reason: str) -> None:
        """Ends all batches that wait for the server, except give-backs."""
        self._batches.empty(reason)

    async def every_second(self) -> None:
        """Sends what has waited for the server, and tells it what was counted without it."""
        self._batches.release()
        await self._resyncs.hand_back()

    def saw_processes(self, processes: Sequence[Process]) -> None:
        """Learns who counts in the server."""
        self.processes = max(1, len(processes))
        self._on_processes(self.name, processes)

    def heartbeat_key(self) -> str | None:
        """The key under which processes are listed there."""
        key = self._router.heartbeat_key(self) if self._router else PROCESSES
        return self._key_prefix + key if key else None


Home = tuple[Shard, int]
"""Where a counter lies: its shard, and a number. One script call may settle hits of one home."""

FindAll = Callable[[Sequence[Hit]], list[Home]]
"""The home of each hit's counter; the same object for all that one script call may settle."""
