"""What this process has counted while a server was away, and how the server hears of it.

It is told one batch at a time, until it has counted all of it or that is over. What must not live
here: connections, script calls, and whether the server is well (`shard`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final, Protocol

from ratelimit_service.clock import elapsed_us
from ratelimit_service.model import Hit, Outcome
from ratelimit_service.observer import Counters
from ratelimit_service.slices import slowly
from ratelimit_service.stores.local import Local
from ratelimit_service.stores.redis.batch import Batch, Debt
from ratelimit_service.stores.redis.script import MAX_CALL_WEIGHT, weight

__all__ = ["Debts"]

log = logging.getLogger(__name__)

_MAX_OWED: Final = 200_000
"""How many batches of what was counted without a server wait for it; then the oldest are lost."""

_TELL_US: Final = 1_000_000
"""How long the server has to count what it is told; later it is told again."""


class Creditor(Protocol):
    """Who is told."""

    processes: int
    """How many processes count in it, as last known."""

    @property
    def available(self) -> bool:
        """Whether it can be told now."""

    def now_us(self) -> int:
        """Its time, as far as it is known."""

    def elapsed_at(self, at_us: int) -> int:
        """When it will be that time there, by `elapsed_us`."""

    def charge(self, batch: Batch) -> None:
        """Queues what it is told."""


class Debts:
    """What one server is owed, and the counters of one outage."""

    def __init__(self, server: Creditor, address: str, counters: Counters) -> None:
        """`address` is how the log calls the server."""
        self._server = server
        self._address = address
        self._loop = asyncio.get_running_loop()
        self._local = Local(counters)
        self._handing: Iterator[tuple[Sequence[Sequence[Hit]], int]] = iter(())
        """What was counted here and is being made a debt, and until when it counts."""
        self._owed: deque[Debt] = deque()
        """What was counted without the server and it has not been told yet."""
        self._telling = 0
        """What that weighs of which it is being told."""
        self._telling_since_us = 0
        self._overflowing = False

    @property
    def under_way(self) -> bool:
        """Whether there is anything that the server has not been told yet."""
        return bool(self._owed or self._telling)

    def charge_here(self, hits: Sequence[Hit], at_us: int) -> list[Outcome]:
        """Settles hits in this process alone, on its share of their limits."""
        return self._local.charge(hits, self._server.processes, at_us)

    def left(self) -> Iterator[tuple[Sequence[Sequence[Hit]], int]]:
        """Empties it: what the server was still to be told, by counters, and when that is over.

        All times are the server's.
        """
        while self._owed:
            debt = self._owed.popleft()
            yield debt.requests, debt.over_us
        yield from self._handing
        yield from self._counted_here()

    def _counted_here(self) -> Iterator[tuple[Sequence[Sequence[Hit]], int]]:
        """What this process has counted alone, by counters, and when that is over."""
        at_us = self._server.now_us()
        for requests, left_us in self._local.hand_back(self._server.processes, at_us):
            yield requests, at_us + left_us

    async def hand_back(self) -> None:
        """Tells the server what was counted here while it was away."""
        if len(self._local):
            # Whoever ends this while it waits finds in `_handing` what is left.
            self._handing = chain(self._handing, self._counted_here())
            async for requests, over_us in slowly(self._handing):
                self.owe(requests, over_us)
        self._tell()

    def owe(self, requests: Sequence[Sequence[Hit]], over_us: int) -> None:
        """Takes what the server is to be told as soon as it can be.

        Until `over_us`, by the server's time: that is what its windows end by.
        """
        start, weighs = 0, 0
        for at, hits in enumerate(requests):
            added = weight(hits)
            if at > start and weighs + added > MAX_CALL_WEIGHT:
                self._owed.append(Debt(requests[start:at], weighs, over_us, self._told))
                start, weighs = at, 0
            weighs += added
        self._owed.append(Debt(requests[start:], weighs, over_us, self._told))
        while len(self._owed) > _MAX_OWED:
            self._owed.popleft()
            if not self._overflowing:
                log.warning(
                    "Redis at %s will not be told of all that was counted here", self._address
                )
            self._overflowing = True

    def _tell(self) -> None:
        """Tells the server what it is owed: one batch at a time, so that charges come between."""
        now, at_us = elapsed_us(), self._server.now_us()
        while self._owed and self._server.available and self._telling < MAX_CALL_WEIGHT:
            debt = self._owed.popleft()
            if debt.over_us > at_us:
                # Once the connection is given up it must not be counted any more: it is told anew.
                debt.deadline_us = min(self._server.elapsed_at(debt.over_us), now + _TELL_US)
                self._telling += debt.weight
                self._telling_since_us = now
                self._server.charge(debt)

    def _told(self, debt: Debt) -> None:
        """A debt is settled; what is left of it is told again by and by."""
        self._telling -= debt.weight
        if debt.untold:
            self.owe(debt.untold, debt.over_us)
        elif self._owed and not self._telling:
            # The server has as long for others as it took.
            took = (elapsed_us() - self._telling_since_us) / 1_000_000
            self._loop.call_later(took, self._tell)
