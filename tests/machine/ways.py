"""Ways of processes to servers, which are lost and found again one by one."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

from ratelimit_service.model import Hit
from ratelimit_service.observability.stats import Stats
from ratelimit_service.stores.local import Local
from ratelimit_service.stores.redis.shard import Shard
from tests.servers.proxy import Proxy
from tests.waiting import until

CHARGED = re.compile(rb"\$\d+\r\n\0\0")
"""How the reply to a script call begins that charges: with a number in which there is room."""

HAND_BACK = re.compile(rb"EVALSHA")
"""What is in each script call."""


def owes(shard: Shard) -> bool:
    """Whether a shard's server has not been told, or has not confirmed, all that was counted."""
    return len(shard._resyncs._local) > 0 or shard._resyncs.under_way or not shard.idle


def well(shard: Shard) -> bool:
    """Whether a shard's server can be asked, and knows all that was counted without it."""
    return shard.available and not owes(shard)


class Way:
    """The way of one process to one server."""

    shard: Shard
    """The server as the process sees it."""

    def __init__(self, port: int) -> None:
        self.proxy = Proxy(port)
        self._connection: object = None
        """The connection when it was looked at last; None while the way was lost."""
        self._ended = 0

    @property
    def lost(self) -> bool:
        return self.proxy.refuse

    def ended(self) -> int:
        """How often a connection has ended that nobody cut, if there is another one since."""
        before, self._connection = self._connection, None
        if not self.lost:
            self._connection = self.shard.server.connection
            if before and self._connection:
                self._ended += self._connection is not before
        return self._ended

    async def lose(self) -> None:
        self.proxy.refuse = True
        await until(lambda: not self.shard.available)

    def lose_next_reply(self, instead: bytes) -> None:
        """Is cut as soon as the server has counted; the process reads something else `instead`."""
        self.proxy.lose, self.proxy.instead = CHARGED, instead

    def lose_no_reply(self) -> None:
        self.proxy.lose = None

    async def find_in_vain(self, lost: str) -> bool:
        """Is open until the process tells what it has counted alone; returns whether it has.

        The first `call` that tells, or the `reply` to it, is lost with the connection. If there is
        nothing to be told, it stays open.
        """
        proxy, watched = self.proxy, self.shard.server._alarm
        if lost == "reply":
            proxy.lose, proxy.instead, proxy.refuse = CHARGED, b"", False
            await until(lambda: not proxy.lose or well(self.shard))
            proxy.lose = None
        else:
            proxy.drop, proxy.refuse = HAND_BACK, False
            await until(
                lambda: (
                    not proxy.drop
                    or (self.shard.available and self.shard.server._alarm is not watched)
                )
            )
            proxy.drop = None
        await until(lambda: not proxy.refuse or not self.shard.available)
        return proxy.refuse and lost == "reply"

    async def find(self) -> None:
        """Is open again; what was counted alone is then told."""
        self.proxy.refuse, self.proxy.lose = False, None
        await until(lambda: self.shard.available)

    async def told(self) -> None:
        """Returns when the server knows all that was counted without it."""
        await until(lambda: not owes(self.shard))

    async def quiet(self) -> None:
        """Returns when no reply is under way."""
        while (connection := self.shard.server.connection) and connection._calls:
            await asyncio.sleep(0.001)

    def forget(self) -> None:
        """Has the process forget what it has counted alone."""
        self.shard._resyncs._local = Local(Stats())

    async def forget_alone(self, hits: Sequence[Hit]) -> None:
        """The same of single counters."""
        await self.shard._resyncs._local._memory.forget(hits)
