"""The store over one Redis: every request one atomic script call, every wait bounded.

Redis' own clock is the clock of record, so processes with skewed clocks agree.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import hiredis

from ratelimit_service.clock import Clock, now_us
from ratelimit_service.errors import StoreError
from ratelimit_service.health import Health
from ratelimit_service.model import Hit
from ratelimit_service.observer import Counters
from ratelimit_service.stores import Outcomes, Wanted, always
from ratelimit_service.stores.damage import Damage
from ratelimit_service.stores.redis.address import parse_address
from ratelimit_service.stores.redis.connection import Connection, Reply, open_connection
from ratelimit_service.stores.redis.script import (
    SCRIPT,
    SHA,
    arguments,
    damaged,
    outcomes,
    weight,
)
from ratelimit_service.stores.redis.sentinel import find

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

_MAX_BATCH_WEIGHT = 256
"""Of one script call, so that it keeps Redis for a millisecond: 128 hits on new fixed windows.
A single request may have more: it goes alone."""

_BACK_OFF_SECONDS = (0.05, 1.0)
"""The first and the longest wait between two attempts to connect."""


_PENDING: Outcomes = ()


class _Charge:
    """The requests of one call of `charge`, and what is known of their outcomes."""

    __slots__ = ("done", "missing", "outcomes", "over", "requests", "sent", "wanted")

    def __init__(
        self,
        requests: Sequence[Sequence[Hit]],
        done: Callable[[list[Outcomes]], None],
        wanted: Wanted,
    ) -> None:
        self.requests = requests
        self.done = done
        self.wanted = wanted
        self.outcomes: list[Outcomes] = [_PENDING] * len(requests)
        self.missing = len(requests)
        self.sent = 0
        """How many requests have been sent, or were not wanted any more."""
        self.over = False
        """Whether `done` was called: nobody waits any more."""


class _Batch(NamedTuple):
    """What one script call charges: its requests, and of which charges they are which."""

    requests: list[Sequence[Hit]]
    places: list[tuple[_Charge, list[int]]]


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
        self._place = parse_address(url)
        self._timeout = timeout_us / 1_000_000
        self._counters = counters
        self._damage = Damage(counters)
        self._health = health
        self._clock = clock
        self._connection: Connection | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._fault_at: float | None = None
        self._loop = asyncio.get_running_loop()
        self._queue: deque[_Charge] = deque()
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
        self,
        requests: Sequence[Sequence[Hit]],
        done: Callable[[list[Outcomes]], None],
        wanted: Wanted = always,
    ) -> None:
        """Queues the requests for the next script calls; each call is atomic.

        What comes in one tick goes out together, at most some 256 hits a call and a few calls
        at a time, so that batches grow with the load. A request is never split over calls.
        """
        charge = _Charge(requests, done, wanted)
        if not requests or self._connection is None:
            self._give_up(charge, "disconnected")
            return
        deadline = self._loop.time() + self._timeout
        self._waiting.append((deadline, charge))
        self._queue.append(charge)
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
                for charge in self._queue:
                    self._give_up(charge, "disconnected")
                self._queue.clear()
                return
            batch = self._next_batch()
            if batch.requests:
                self._in_flight += 1
                self._call(connection, batch, "EVALSHA", SHA)

    def _next_batch(self) -> _Batch:
        """Takes from the queue what fits into one call, and drops what nobody waits for."""
        batch = _Batch([], [])
        size = 0
        while self._queue:
            charge = self._queue[0]
            requests, taken, at = charge.requests, [], charge.sent
            while at < len(requests) and not charge.over:
                hits = requests[at]
                added = weight(hits)
                if size and size + added > _MAX_BATCH_WEIGHT:
                    break
                if charge.wanted(at):
                    taken.append(at)
                    batch.requests.append(hits)
                    size += added
                else:
                    charge.outcomes[at] = []
                at += 1
            unwanted = at - charge.sent - len(taken)
            charge.sent = at
            if taken:
                batch.places.append((charge, taken))
            if unwanted:
                self._settled(charge, unwanted)
            if at < len(requests) and not charge.over:
                break
            self._queue.popleft()
        return batch

    def _call(self, connection: Connection, batch: _Batch, command: str, script: str) -> None:
        now, judge = (self._clock(), True) if self._clock else (now_us(), False)
        future = connection.call(
            command, script, *arguments([(0, batch.requests)], now, judge=judge)
        )
        future.add_done_callback(lambda _: self._replied(connection, batch, future.result()))

    def _replied(self, connection: Connection, batch: _Batch, reply: Reply) -> None:
        if isinstance(reply, hiredis.ReplyError) and str(reply).startswith("NOSCRIPT"):
            # Redis has lost its scripts (SCRIPT FLUSH, a restart); EVAL also teaches it anew.
            self._call(connection, batch, "EVAL", SCRIPT)
            return
        self._in_flight -= 1
        found = outcomes(reply, batch.requests)
        if found is not None:
            if keys := damaged(reply, batch.requests):
                self._damage.note(len(keys), keys[0])
            self._succeeded()
            each = iter(found)
            for charge, places in batch.places:
                for place in places:
                    charge.outcomes[place] = next(each)
                self._settled(charge, len(places))
        else:
            reason = "disconnected"
            if reply is not None:
                reason = "refused"
                self._degrade(f"answers: {reply!s:.200}")
            if isinstance(reply, hiredis.ReplyError) and str(reply).startswith("READONLY"):
                connection.close("it is a replica now")  # who is the master is asked anew
            for charge, places in batch.places:
                for place in places if not charge.over else ():
                    self._without(charge, place, reason)
                self._settled(charge, len(places))
        self._send()

    def _settled(self, charge: _Charge, count: int) -> None:
        """Notes that so many requests have their outcomes; a charge that has all is done."""
        charge.missing -= count
        if charge.over or charge.missing:
            return
        charge.over = True
        while self._waiting and self._waiting[0][1].over:
            self._waiting.popleft()  # one by one: a second's worth at once takes 20 ms
        charge.done(charge.outcomes)

    def _without(self, charge: _Charge, place: int, reason: str) -> None:
        """Gives a request's hits no outcome."""
        hits = len(charge.requests[place])
        self._counters.store_errors[reason] += hits
        charge.outcomes[place] = [None] * hits

    def _give_up(self, charge: _Charge, reason: str) -> None:
        """Ends a charge: the requests that have no outcomes yet get none."""
        if charge.over:
            return
        charge.over = True
        for place, found in enumerate(charge.outcomes):
            if found is _PENDING and (place < charge.sent or charge.wanted(place)):
                self._without(charge, place, reason)
        charge.done(charge.outcomes)

    def _expire(self) -> None:
        """Ends the charges whose time is over."""
        self._timer = None
        now = self._loop.time()
        connection = self._connection
        while self._waiting:
            deadline, charge = self._waiting[0]
            if charge.over:
                self._waiting.popleft()
            elif deadline <= now:
                self._waiting.popleft()
                self._degrade(f"is slower than {self._timeout * 1000:g} ms")
                self._give_up(charge, "timeout")
            else:
                self._timer = self._loop.call_at(deadline, self._expire)
                break
        if connection is not None and connection.silence > _HUNG_SECONDS:
            connection.close(f"no reply for {connection.silence:.1f} s")

    def _degrade(self, fault: str) -> None:
        self._fault_at = self._loop.time()
        self._health.degrade("store", f"Redis at {self._place} {fault}")

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
                    address = await find(self._place)
                    connection = await open_connection(address, ("SCRIPT", "LOAD", SCRIPT))
            except StoreError as error:
                reason = str(error)
            except TimeoutError:
                reason = f"Redis at {self._place} does not answer"
            else:
                self._connection = connection
                self._fault_at = None
                self._health.recover("store")
                log.info("connected to Redis at %s", address)
                tried.set()
                wait = first
                reason = f"Redis at {address} is away: {await connection.lost}"
                self._connection = None
            self._health.degrade("store", reason)
            tried.set()
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))  # noqa: S311 -- jitter, no secret
            wait = min(2 * wait, longest)
