"""What this process has counted while a server was away, and how the server hears of it.

The server is told one batch at a time, until it has counted everything or the windows are over.
What must not live here: connections, script calls, and whether the server is well (`server`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final, Protocol

from ratelimit_service.eventloop.clock import elapsed_us
from ratelimit_service.eventloop.slices import slowly
from ratelimit_service.model import Hit, Outcome
from ratelimit_service.observability.stats import Stats
from ratelimit_service.stores.local import Local
from ratelimit_service.stores.redis.batch import Batch, Resync, Urgency
from ratelimit_service.stores.redis.script import MAX_CALL_WEIGHT, weight
from ratelimit_service.stores.redis.server_clock import ServerClock

__all__ = ["Resyncs"]

log = logging.getLogger(__name__)

_MAX_WAITING: Final = 200_000
"""The most resyncs that wait for one server; beyond that the oldest are lost."""

_COUNT_US: Final = 1_000_000
"""How long the server may take to count a resync. After that it is told again."""


class ResyncTarget(Protocol):
    """The server that resyncs are told to."""

    processes: int
    """How many processes count in the server, as last known."""

    @property
    def available(self) -> bool:
        """Whether the server can be told now."""

    def charge(self, batch: Batch) -> None:
        """Queues a resync, to be sent to the server."""


class Resyncs:
    """What one server is owed, and the counters of one outage."""

    def __init__(
        self, server: ResyncTarget, clock: ServerClock, address: str, stats: Stats
    ) -> None:
        """`address` is how the log calls the server."""
        self._server = server
        self._clock = clock
        self._address = address
        self._loop = asyncio.get_running_loop()
        self._local = Local(stats)
        self._handing: Iterator[tuple[Sequence[Sequence[Hit]], int]] = iter(())
        """What was counted here and is now being turned into resyncs, with the time it is over."""
        self._waiting: deque[Resync] = deque()
        """Resyncs that have not been sent to the server yet."""
        self._sent_weight = 0
        """The weight of the resyncs that have been sent and are not settled."""
        self._sent_since_us = 0
        self._overflowing = False

    @property
    def under_way(self) -> bool:
        """Whether there is anything that the server has not been told yet."""
        return bool(self._waiting or self._sent_weight)

    def charge_here(self, hits: Sequence[Hit], at_us: int) -> list[Outcome]:
        """Settles hits in this process alone, on its share of their limits."""
        return self._local.charge(hits, self._server.processes, at_us)

    def charge_each_here(
        self, requests: Sequence[Sequence[Hit]], at_us: int
    ) -> list[list[Outcome]]:
        """Settles these requests one after the other, as `charge_here` does."""
        return self._local.charge_each(requests, self._server.processes, at_us)

    def take_all(self) -> Iterator[tuple[Sequence[Sequence[Hit]], int]]:
        """Takes out all that the server has not been told, by counters, with the time it is over.

        All times are the server's.
        """
        while self._waiting:
            resync = self._waiting.popleft()
            yield resync.requests, resync.expires_us
        yield from self._handing
        yield from self._counted_here()

    def _counted_here(self) -> Iterator[tuple[Sequence[Sequence[Hit]], int]]:
        """What this process has counted alone, by counters, with the time it is over."""
        at_us = self._clock.now_us()
        for requests, left_us in self._local.hand_back(self._server.processes, at_us):
            yield requests, at_us + left_us

    async def hand_back(self) -> None:
        """Tells the server what was counted here while it was away."""
        if len(self._local):
            # If this is cancelled while it waits, `_handing` still has the rest.
            self._handing = chain(self._handing, self._counted_here())
            async for requests, expires_us in slowly(self._handing):
                self.add(requests, expires_us)
        self._send()

    def add(self, requests: Sequence[Sequence[Hit]], expires_us: int) -> None:
        """Takes requests that the server is to count as soon as it can be told.

        From `expires_us` on, by the server's time, their windows are over and nobody need tell it.
        """
        start, weighs = 0, 0
        for at, hits in enumerate(requests):
            added = weight(hits)
            if at > start and weighs + added > MAX_CALL_WEIGHT:
                self._waiting.append(Resync(requests[start:at], weighs, expires_us, self._counted))
                start, weighs = at, 0
            weighs += added
        self._waiting.append(Resync(requests[start:], weighs, expires_us, self._counted))
        while len(self._waiting) > _MAX_WAITING:
            self._waiting.popleft()
            if not self._overflowing:
                log.warning(
                    "Redis at %s will not be told of all that was counted here", self._address
                )
            self._overflowing = True

    def _send(self) -> None:
        """Sends resyncs, about one script call's weight at a time: charges come between."""
        now, at_us = elapsed_us(), self._clock.now_us()
        while self._waiting and self._server.available and self._sent_weight < MAX_CALL_WEIGHT:
            resync = self._waiting.popleft()
            if resync.expires_us > at_us:
                # If the connection is given up, the resync is told again. So the server must not
                # count it after that.
                expires_us = self._clock.elapsed_at(resync.expires_us)
                resync.urgency = Urgency(min(expires_us, now + _COUNT_US))
                self._sent_weight += resync.weight
                self._sent_since_us = now
                self._server.charge(resync)

    def _counted(self, resync: Resync) -> None:
        """Hears that a resync is settled. What the server has not counted is told again."""
        self._sent_weight -= resync.weight
        if resync.uncounted:
            self.add(resync.uncounted, resync.expires_us)
        elif self._waiting and not self._sent_weight:
            # The server gets as much time for other requests as these resyncs have taken.
            took = (elapsed_us() - self._sent_since_us) / 1_000_000
            self._loop.call_later(took, self._send)
