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
from ratelimit_service.stores.redis.batch import Batch, Debt, Urgency
from ratelimit_service.stores.redis.script import MAX_CALL_WEIGHT, weight
from ratelimit_service.stores.redis.server_clock import ServerClock

__all__ = ["Debts"]

log = logging.getLogger(__name__)

_MAX_OWED: Final = 200_000
"""The most debts that wait for one server; beyond that the oldest are lost."""

_TELL_US: Final = 1_000_000
"""How long the server may take to count a debt. After that it is told again."""


class Creditor(Protocol):
    """The server that debts are told to."""

    processes: int
    """How many processes count in the server, as last known."""

    @property
    def available(self) -> bool:
        """Whether the server can be told now."""

    def charge(self, batch: Batch) -> None:
        """Queues a debt, to be sent to the server."""


class Debts:
    """What one server is owed, and the counters of one outage."""

    def __init__(self, server: Creditor, clock: ServerClock, address: str, stats: Stats) -> None:
        """`address` is how the log calls the server."""
        self._server = server
        self._clock = clock
        self._address = address
        self._loop = asyncio.get_running_loop()
        self._local = Local(stats)
        self._handing: Iterator[tuple[Sequence[Sequence[Hit]], int]] = iter(())
        """What was counted here and is now being turned into debts, with the time it is over."""
        self._owed: deque[Debt] = deque()
        """Debts that have not been sent to the server yet."""
        self._telling = 0
        """The weight of the debts that have been sent and are not settled."""
        self._telling_since_us = 0
        self._overflowing = False

    @property
    def under_way(self) -> bool:
        """Whether there is anything that the server has not been told yet."""
        return bool(self._owed or self._telling)

    def charge_here(self, hits: Sequence[Hit], at_us: int) -> list[Outcome]:
        """Settles hits in this process alone, on its share of their limits."""
        return self._local.charge(hits, self._server.processes, at_us)

    def charge_each_here(
        self, requests: Sequence[Sequence[Hit]], at_us: int
    ) -> list[list[Outcome]]:
        """Settles these requests one after the other, as `charge_here` does."""
        return self._local.charge_each(requests, self._server.processes, at_us)

    def untold(self) -> Iterator[tuple[Sequence[Sequence[Hit]], int]]:
        """Takes out all that the server has not been told, by counters, with the time it is over.

        All times are the server's.
        """
        while self._owed:
            debt = self._owed.popleft()
            yield debt.requests, debt.expires_us
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
                self.owe(requests, expires_us)
        self._tell()

    def owe(self, requests: Sequence[Sequence[Hit]], expires_us: int) -> None:
        """Takes requests that the server is to count as soon as it can be told.

        From `expires_us` on, by the server's time, their windows are over and nobody need tell it.
        """
        start, weighs = 0, 0
        for at, hits in enumerate(requests):
            added = weight(hits)
            if at > start and weighs + added > MAX_CALL_WEIGHT:
                self._owed.append(Debt(requests[start:at], weighs, expires_us, self._told))
                start, weighs = at, 0
            weighs += added
        self._owed.append(Debt(requests[start:], weighs, expires_us, self._told))
        while len(self._owed) > _MAX_OWED:
            self._owed.popleft()
            if not self._overflowing:
                log.warning(
                    "Redis at %s will not be told of all that was counted here", self._address
                )
            self._overflowing = True

    def _tell(self) -> None:
        """Sends debts, about one script call's weight at a time: charges come between."""
        now, at_us = elapsed_us(), self._clock.now_us()
        while self._owed and self._server.available and self._telling < MAX_CALL_WEIGHT:
            debt = self._owed.popleft()
            if debt.expires_us > at_us:
                # If the connection is given up, the debt is told again. So the server must not
                # count it after that.
                expires_us = self._clock.elapsed_at(debt.expires_us)
                debt.urgency = Urgency(min(expires_us, now + _TELL_US))
                self._telling += debt.weight
                self._telling_since_us = now
                self._server.charge(debt)

    def _told(self, debt: Debt) -> None:
        """Hears that a debt is settled. What the server has not counted becomes a debt again."""
        self._telling -= debt.weight
        if debt.untold:
            self.owe(debt.untold, debt.expires_us)
        elif self._owed and not self._telling:
            # The server gets as much time for other requests as these debts have taken.
            took = (elapsed_us() - self._telling_since_us) / 1_000_000
            self._loop.call_later(took, self._tell)
