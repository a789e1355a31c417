"""The store over one Redis: every request one atomic script call, every wait bounded.

Redis' own clock is the clock of record, so processes with skewed clocks agree.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence

import hiredis

from ratelimit_service.clock import Clock
from ratelimit_service.errors import StoreError
from ratelimit_service.health import Health
from ratelimit_service.model import Hit
from ratelimit_service.observer import Counters
from ratelimit_service.stores import Outcomes
from ratelimit_service.stores.redis.address import Address
from ratelimit_service.stores.redis.connection import Connection, Reply, open_connection
from ratelimit_service.stores.redis.script import SCRIPT, SHA, arguments, outcomes

__all__ = ["RedisStore"]

log = logging.getLogger(__name__)

_OPEN_SECONDS = 1.0
"""How long connecting and greeting may take."""

_HUNG_SECONDS = 1.0
"""After so much silence with calls pending, the connection is given up."""

_CALM_SECONDS = 1.0
"""Replies count as recovery once there has been no fault for so long."""

_MAX_PENDING = 10_000
"""Calls without a reply beyond which no more are sent."""

_BACK_OFF_SECONDS = (0.05, 1.0)
"""The first and the longest wait between two attempts to connect."""


class RedisStore:
    """Counters in one Redis server (7 or later).

    A hit has no outcome (None) when Redis is away, refuses, or is slower than `timeout_us`;
    every such fault is in the counters, and the state in health and, once, in the log. The
    connection is kept up by a task of its own; requests never wait for it.
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
        self._address = Address.parse(url)
        self._timeout = timeout_us / 1_000_000
        self._counters = counters
        self._health = health
        self._clock = clock
        self._connection: Connection | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._fault_at: float | None = None

    async def start(self) -> None:
        """Tries to connect once, at most a second long, and keeps trying in the background."""
        tried = asyncio.Event()
        self._keeper = asyncio.create_task(self._keep_connected(tried))
        await tried.wait()

    async def close(self) -> None:
        """Disconnects for good."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def charge(self, requests: Sequence[Sequence[Hit]]) -> list[Outcomes]:
        """Settles the requests, one script call each, all in flight together."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout
        now = self._clock() if self._clock else None
        packed = [arguments(hits, now) for hits in requests]
        replies = await self._exchange([("EVALSHA", SHA, *args) for args in packed], deadline)
        unknown = [index for index, reply in enumerate(replies) if _is_noscript(reply)]
        if unknown:
            # Redis has lost its scripts (SCRIPT FLUSH, a restart); EVAL also teaches it anew.
            again = await self._exchange(
                [("EVAL", SCRIPT, *packed[index]) for index in unknown], deadline
            )
            for index, reply in zip(unknown, again, strict=True):
                replies[index] = reply
        return [self._read(reply, hits) for reply, hits in zip(replies, requests, strict=True)]

    async def _exchange(
        self, commands: Sequence[tuple[bytes | str | int, ...]], deadline: float
    ) -> list[Reply]:
        """Sends the commands and collects what has come by the deadline; None for the rest."""
        connection = self._connection
        if connection is None or not commands:
            return [None] * len(commands)
        if connection.silence > _HUNG_SECONDS or connection.pending > _MAX_PENDING:
            connection.close(f"no reply for {connection.silence:.1f} s")
            return [None] * len(commands)
        futures = [connection.call(*command) for command in commands]
        timeout = max(0.0, deadline - asyncio.get_running_loop().time())
        await asyncio.wait(futures, timeout=timeout)
        return [future.result() if future.done() else _LATE for future in futures]

    def _read(self, reply: Reply, hits: Sequence[Hit]) -> Outcomes:
        result = outcomes(reply, len(hits))
        if result is not None:
            self._succeeded()
            return result
        if reply is None:
            # Why, is known to the task that keeps the connection; it has told health.
            self._counters.store_errors["disconnected"] += len(hits)
            return [None] * len(hits)
        if reply is _LATE:
            self._counters.store_errors["timeout"] += len(hits)
            fault = f"is slower than {self._timeout * 1000:g} ms"
        else:
            self._counters.store_errors["refused"] += len(hits)
            fault = f"answers: {reply!s:.200}"
        self._fault_at = asyncio.get_running_loop().time()
        self._health.degrade("store", f"Redis at {self._address} {fault}")
        return [None] * len(hits)

    def _succeeded(self) -> None:
        if (
            self._fault_at is not None
            and asyncio.get_running_loop().time() - self._fault_at > _CALM_SECONDS
        ):
            self._fault_at = None
            self._health.recover("store")

    async def _keep_connected(self, tried: asyncio.Event) -> None:
        first, longest = _BACK_OFF_SECONDS
        wait = first
        while True:
            try:
                async with asyncio.timeout(_OPEN_SECONDS):
                    connection = await open_connection(self._address, ("SCRIPT", "LOAD", SCRIPT))
            except StoreError as error:
                reason = str(error)
            except TimeoutError:
                reason = f"Redis at {self._address} does not answer"
            else:
                self._connection = connection
                self._fault_at = None
                self._health.recover("store")
                log.info("connected to Redis at %s", self._address)
                tried.set()
                wait = first
                reason = f"Redis at {self._address} is away: {await connection.lost}"
                self._connection = None
            self._health.degrade("store", reason)
            tried.set()
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))  # noqa: S311 -- jitter, no secret
            wait = min(2 * wait, longest)


_LATE = object()


def _is_noscript(reply: Reply) -> bool:
    return isinstance(reply, hiredis.ReplyError) and str(reply).startswith("NOSCRIPT")
