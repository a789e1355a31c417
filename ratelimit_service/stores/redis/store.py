"""The store over Redis: which shard gets what, and for how long it is waited for.

Redis' own clock is the clock of record, so processes with skewed clocks agree.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from secrets import token_hex

from ratelimit_service.clock import Clock, elapsed_us
from ratelimit_service.health import Health
from ratelimit_service.model import Hit
from ratelimit_service.observer import Counters
from ratelimit_service.stores import NEVER, Outcomes, Wanted, always
from ratelimit_service.stores.redis.address import Ring, parse_store
from ratelimit_service.stores.redis.charge import Charge, Find
from ratelimit_service.stores.redis.processes import Process
from ratelimit_service.stores.redis.ring import fingerprint, owners, place_of
from ratelimit_service.stores.redis.shard import Shard
from ratelimit_service.stores.redis.shards_file import read_shards

__all__ = ["RedisStore"]


def _ring(url: str) -> Ring:
    """Of a store URL, or of the file that `file:` names."""
    if url.startswith("file:"):
        return read_shards(Path(url.removeprefix("file:").removeprefix("//")), parse_store)
    return parse_store(url)


class RedisStore:
    """Counters in Redis servers (6.2 or later), each counter in one of them.

    A hit has no outcome (None) when its server is away, refuses, or is slower than
    `timeout_us`. A request whose counters lie in several shards counts in all or in none.
    """

    def __init__(
        self,
        url: str,
        timeout_us: int,
        counters: Counters,
        health: Health,
        clock: Clock | None = None,
    ) -> None:
        """Reads the URL; raises SettingsError if it cannot be used.

        With a `clock` its time counts instead of Redis' own.
        """
        ring = _ring(url)
        self._timeout_us = timeout_us
        self._counters = counters
        self._loop = asyncio.get_running_loop()
        weights = {member.name: member.weight for member in ring.members}
        process = Process(token_hex(8), fingerprint(weights))
        self._health = health
        self._strangers: dict[str, Process] = {}
        """By shard a process that counts there and places counters otherwise."""
        self._shards = {
            member.name: Shard(
                member.name,
                member.place,
                timeout_us,
                counters,
                health,
                "store" if len(ring.members) == 1 else f"store {member.name}",
                process,
                self._heard,
                clock,
            )
            for member in ring.members
        }
        self._only = next(iter(self._shards.values())) if len(self._shards) == 1 else None
        self._ring = process.ring
        self._find = self._finder(weights)
        self._waiting: list[tuple[int, int, Charge]] = []
        """A heap of deadlines; the numbers make them differ."""
        self._number = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def shards(self) -> Collection[Shard]:
        """All of them."""
        return self._shards.values()

    async def start(self) -> None:
        """Tries every shard once, at most a second long, and keeps trying in the background."""
        await asyncio.gather(*(shard.start() for shard in self._shards.values()))

    async def close(self) -> None:
        """Disconnects for good."""
        await asyncio.gather(*(shard.close() for shard in self._shards.values()))
        if self._timer is not None:
            self._timer.cancel()

    def charge(
        self,
        requests: Sequence[Sequence[Hit]],
        done: Callable[[list[Outcomes]], None],
        wanted: Wanted = always,
        deadline_us: int = NEVER,
    ) -> None:
        """Charges each request in the shards of its counters; in all of them or in none.

        Each shard's part is atomic. Between them others can see a charge that is then given
        back, and be denied by it.
        """
        if not requests:
            done([])
            return
        now = elapsed_us()
        deadline_us = min(deadline_us, now + self._timeout_us)
        charge = Charge(requests, done, wanted, deadline_us, self._counters)
        if deadline_us <= now:
            charge.give_up()
            return
        if self._only is not None:
            charge.start_whole(self._only)
        else:
            charge.start(self._find)
        if charge.over:
            return
        waiting = self._waiting
        while waiting and waiting[0][2].over:
            heapq.heappop(waiting)
        self._number += 1
        heapq.heappush(waiting, (deadline_us, self._number, charge))
        if self._timer is None or waiting[0][2] is charge:
            self._wait_until(deadline_us, now)

    def _heard(self, shard: str, processes: Sequence[Process]) -> None:
        """Sees whether all processes that count in a shard have the same ring."""
        others = [process for process in processes if process.ring != self._ring]
        if others:
            self._strangers[shard] = others[0]
        else:
            self._strangers.pop(shard, None)
        if self._strangers:
            name, other = next(iter(self._strangers.items()))
            self._health.degrade(
                "ring",
                f"another process counts in {name} and places counters on another ring "
                f"({other.ring}, ours is {self._ring}): give all the same shards and weights",
            )
        else:
            self._health.recover("ring")

    def _finder(self, weights: Mapping[str, int]) -> Find:
        """What tells a hit's place on the ring."""
        homes = {name: (shard, 0) for name, shard in self._shards.items()}
        places = [homes[name] for name in owners(weights)]

        return lambda hit: places[place_of(hit[0])]

    def _wait_until(self, deadline_us: int, now_us: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        wait = max(0, deadline_us - now_us) / 1_000_000
        self._timer = self._loop.call_later(wait, self._rung)

    def _rung(self) -> None:
        # A process that was held up finds its timers due and its replies unread. The loop may
        # run timers before it reads: two rounds on, what had come by now has been read.
        call_soon = self._loop.call_soon
        call_soon(lambda: call_soon(self._expire))

    def _expire(self) -> None:
        """Ends the charges whose time is over."""
        self._timer = None
        waiting, now = self._waiting, elapsed_us()
        while waiting and (waiting[0][2].over or waiting[0][0] <= now):
            _, _, charge = heapq.heappop(waiting)
            if not charge.over:
                charge.expire()
        if waiting:
            self._wait_until(waiting[0][0], now)
