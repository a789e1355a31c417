"""The store over one Redis: every request one atomic script call, every wait bounded.

Redis' own clock is the clock of record, so processes with skewed clocks agree.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Sequence

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

_MAX_IN_FLIGHT = 2
"""Script calls under way at a time; meanwhile the next batch fills up."""

_MAX_BATCH_HITS = 256
"""The hits of one script call, unless a single request has more."""

_BACK_OFF_SECONDS = (0.05, 1.0)
"""The first and the longest wait between two attempts to connect."""


class _Charge:
    """The requests of one call of `charge`, and what is known of their outcomes."""

    __slots__ = ("done", "late", "missing", "outcomes", "requests")

    def __init__(
        self, requests: Sequence[Sequence[Hit]], done: Callable[[list[Outcomes]], None]
    ) -> None:
        self.requests = requests
        self.done = done
        self.outcomes: list[Outcomes] = [()] * len(requests)
        self.missing = len(requests)
        self.late = False
        """Whether `done` was called: nobody waits any more."""


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
        self._loop = asyncio.get_running_loop()
        self._queue: deque[tuple[_Charge, int]] = deque()
        self._waiting: deque[tuple[float, _Charge]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._sending = False
        self._in_flight = 0

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
        if self._timer is not None:
            self._timer.cancel()

    def charge(
        self, requests: Sequence[Sequence[Hit]], done: Callable[[list[Outcomes]], None]
    ) -> None:
        """Queues the requests for the next script calls; each call is atomic.

        What comes in one tick goes out together, at most some 256 hits a call and a few calls
        at a time, so that batches grow with the load. A request is never split over calls.
        """
        charge = _Charge(requests, done)
        if not requests or self._connection is None:
            self._unanswered(charge, "disconnected")
            return
        deadline = self._loop.time() + self._timeout
        self._waiting.append((deadline, charge))
        self._queue.extend((charge, index) for index in range(len(requests)))
        if self._timer is None:
            self._timer = self._loop.call_at(deadline, self._expire)
        if not self._sending and self._in_flight < _MAX_IN_FLIGHT:
            self._sending = True
            self._loop.call_soon(self._send)

    def _send(self) -> None:
        """Sends what is queued, as much as may be under way."""
        self._sending = False
        while self._queue and self._in_flight < _MAX_IN_FLIGHT:
            connection = self._connection
            if connection is None:
                for charge, index in self._queue:
                    self._settle(charge, index, None, "disconnected")
                self._queue.clear()
                return
            batch: list[tuple[_Charge, int]] = []
            size = 0
            while self._queue:
                charge, index = self._queue[0]
                hits = len(charge.requests[index])
                if batch and size + hits > _MAX_BATCH_HITS:
                    break
                self._queue.popleft()
                if charge.late:
                    continue  # nobody waits for it any more, so it is not charged
                batch.append((charge, index))
                size += hits
            if batch:
                self._in_flight += 1
                self._call(connection, batch, "EVALSHA", SHA)

    def _call(
        self, connection: Connection, batch: list[tuple[_Charge, int]], command: str, script: str
    ) -> None:
        now = self._clock() if self._clock else None
        requests = [charge.requests[index] for charge, index in batch]
        future = connection.call(command, script, *arguments(requests, now))
        future.add_done_callback(lambda _: self._replied(connection, batch, future.result()))

    def _replied(
        self, connection: Connection, batch: list[tuple[_Charge, int]], reply: Reply
    ) -> None:
        if isinstance(reply, hiredis.ReplyError) and str(reply).startswith("NOSCRIPT"):
            # Redis has lost its scripts (SCRIPT FLUSH, a restart); EVAL also teaches it anew.
            self._call(connection, batch, "EVAL", SCRIPT)
            return
        self._in_flight -= 1
        found = outcomes(reply, [charge.requests[index] for charge, index in batch])
        if found is not None:
            self._succeeded()
            for (charge, index), each in zip(batch, found, strict=True):
                self._settle(charge, index, each)
        else:
            reason = "disconnected"
            if reply is not None:
                reason = "refused"
                self._degrade(f"answers: {reply!s:.200}")
            for charge, index in batch:
                self._settle(charge, index, None, reason)
        self._send()

    def _settle(
        self, charge: _Charge, index: int, found: Outcomes | None, reason: str = ""
    ) -> None:
        """Notes a request's outcomes; a charge whose requests all have theirs is done."""
        if charge.late:
            return
        if found is None:
            self._counters.store_errors[reason] += len(charge.requests[index])
            found = [None] * len(charge.requests[index])
        charge.outcomes[index] = found
        charge.missing -= 1
        if not charge.missing:
            charge.late = True
            charge.done(charge.outcomes)

    def _unanswered(self, charge: _Charge, reason: str) -> None:
        """Ends a charge: the requests that have no outcomes yet get none."""
        if charge.late:
            return
        charge.late = True
        for index, hits in enumerate(charge.requests):
            if not charge.outcomes[index]:
                self._counters.store_errors[reason] += len(hits)
                charge.outcomes[index] = [None] * len(hits)
        charge.done(charge.outcomes)

    def _expire(self) -> None:
        """Ends the charges whose time is over."""
        self._timer = None
        now = self._loop.time()
        connection = self._connection
        while self._waiting:
            deadline, charge = self._waiting[0]
            if charge.late:
                self._waiting.popleft()
            elif deadline <= now:
                self._waiting.popleft()
                self._degrade(f"is slower than {self._timeout * 1000:g} ms")
                self._unanswered(charge, "timeout")
            else:
                self._timer = self._loop.call_at(deadline, self._expire)
                break
        if connection is not None and connection.silence > _HUNG_SECONDS:
            connection.close(f"no reply for {connection.silence:.1f} s")

    def _degrade(self, fault: str) -> None:
        self._fault_at = self._loop.time()
        self._health.degrade("store", f"Redis at {self._address} {fault}")

    def _succeeded(self) -> None:
        if self._fault_at is not None and self._loop.time() - self._fault_at > _CALM_SECONDS:
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
