"""One Redis server: its connection, its health, and the script calls that go to it.

Requests never wait for a connection, and none of them finds out that the server is sick:
pings of the shard's own do. What must not live here: what a request comes to whose counters
lie in several shards (`charge`), which shard a counter lies in (`ring`, `cluster`), and what
was counted without the server (`debts`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from secrets import randbits
from typing import Final, NamedTuple, Protocol

import hiredis

from ratelimit_service.bugs import Bugs
from ratelimit_service.clock import Clock, elapsed_us, now_us
from ratelimit_service.errors import StoreError
from ratelimit_service.health import Health
from ratelimit_service.model import Hit, Outcome
from ratelimit_service.observer import Counters
from ratelimit_service.stores import NEVER, Outcomes
from ratelimit_service.stores.damage import Damage
from ratelimit_service.stores.redis.address import Address, Sentinels
from ratelimit_service.stores.redis.batch import Batch
from ratelimit_service.stores.redis.connection import (
    Answered,
    Command,
    Connection,
    Reply,
    all_read,
    open_connection,
)
from ratelimit_service.stores.redis.contexts import Contexts
from ratelimit_service.stores.redis.debts import Debts
from ratelimit_service.stores.redis.processes import (
    BEAT_SECONDS,
    PROCESSES,
    Process,
    beat,
    others,
    silence,
)
from ratelimit_service.stores.redis.script import (
    MAX_CALL_WEIGHT,
    SCRIPT,
    SHA,
    Found,
    Section,
    arguments,
    fits,
    read,
    weight,
)
from ratelimit_service.stores.redis.sentinel import find, moved

__all__ = ["ClusterRouter", "Shard"]

log = logging.getLogger(__name__)

_OPEN_SECONDS: Final = 1.0
"""How long connecting and greeting may take."""

_HUNG_SECONDS: Final = 1.0
"""After so much silence with calls pending, the connection is given up."""

_CALM_SECONDS: Final = 1.0
"""Replies count as recovery once there has been no fault for so long."""

_MAX_IN_FLIGHT: Final = 2
"""Script calls under way at a time; meanwhile the next batch fills up."""

_BACK_OFF_SECONDS: Final = 0.05
_LONGEST_BACK_OFF_SECONDS: Final = 0.5
"""The first and the longest wait between two attempts to connect."""

_SICK_AFTER: Final = 5
"""A server is sick when it was found late so often, one time after the other, over at least the
time that it is given to answer."""

_WELL_AFTER: Final = 3
"""So many pings one after the other that are answered in time make it well."""

_PING_SECONDS: Final = 0.05

_MAX_HELD: Final = 10_000
"""How many give-backs wait for a server that is away; then the oldest are lost."""


class ClusterRouter(Protocol):
    """What a node of a cluster asks of the cluster."""

    def slot(self, hits: Sequence[Hit]) -> int:
        """The slot of a request: a script call settles requests of one slot only."""

    def redirected(self, node: Shard, error: str, batch: Batch, indexes: Sequence[int]) -> bool:
        """Sends requests of a batch elsewhere, if the node's error says that they belong there."""

    def beat_key(self, node: Shard) -> str | None:
        """The key under which processes are listed in this node."""


class _Call(NamedTuple):
    """What one script call charges, and of which batches that is which."""

    sections: list[Section]
    requests: list[Sequence[Hit]]
    indexes: list[tuple[Batch, list[int]]]
    sent_us: int
    number: int
    """By which its reply is known."""


class Shard:
    """One server (6.2 or later), or the master that Sentinel names.

    A request has no answer when the server is away, refuses, or was found sick. Every such
    fault is in the counters, and the state in health and, once, in the log. The connection is
    kept up by a task of its own.
    """

    def __init__(
        self,
        name: str,
        address: Address | Sentinels,
        timeout_us: int,
        counters: Counters,
        health: Health,
        component: str,
        process: Process,
        heard: Callable[[str, Sequence[Process]], None],
        contexts: Contexts,
        router: ClusterRouter | None = None,
        clock: Clock | None = None,
        key_prefix: str = "",
    ) -> None:
        """`component` is its name in health; `heard` is told once a second who counts here.

        `router` is the cluster's, if it is a node of one. With a `clock` its time counts, not
        the server's. All keys in the server begin with `key_prefix`.
        """
        self._key_prefix = key_prefix
        self._key_prefix_bytes = key_prefix.encode()
        self.name = name
        self._router = router
        self._process = process
        self._heard = heard
        self._contexts = contexts
        self._address = address
        self._timeout_us = timeout_us
        self._counters = counters
        self._damage = Damage(counters)
        self._health = health
        self._bugs = Bugs()
        self._component = component
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._connection: Connection | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._queue: deque[Batch] = deque()
        self._held: deque[Batch] = deque()
        """What has no deadline and waits for the server to come back."""
        self._heir: Callable[[Batch], None] | None = None
        """Who takes what has no deadline once the server has nothing to do any more."""
        self._sending = False
        self._number = randbits(48)
        """Of the last script call; not the same as in another process."""
        self._in_flight = 0
        self._missed = 0
        """How often, one time after the other, it was found late."""
        self._missed_first_us = self._missed_last_us = 0
        """The first and the last of these times."""
        self._sick = False
        """Whether it is left alone until it answers pings."""
        self._alarm: asyncio.Future[str] = self._loop.create_future()
        """Done when somebody should look at the connection."""
        self._fault_at: float | None = None
        self._debts = Debts(self, str(address), counters)
        self.processes = 1
        """How many processes count in this server, this one included, as last known."""
        self._ahead_us: int | None = None
        """How far the server's clock is ahead of `elapsed_us`, at least."""

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
            if not self._router:
                self._connection.send([silence(self._process)], [_ignore])
            self._connection.close()
            self._connection = None
        self._empty("disconnected")

    async def retire(self, heir: Callable[[Batch], None]) -> None:
        """Disconnects from a server that has nothing to do any more; its faults are nobody's.

        What is to be given back there goes to the `heir` from now on; `debts` are asked for.
        """
        await self.close()
        self._heir = heir
        self._release()
        self._health.recover(self._component)

    def charge(self, batch: Batch) -> None:
        """Queues a batch for the next script calls; each call is atomic.

        What comes in one tick goes out together, by weight, and a few calls at a time, so that
        batches grow with the load. A request is never split over calls.
        """
        if self._connection is None or self._sick:
            if batch.deadline_us == NEVER:
                self._hold(batch)
            else:
                reason = "disconnected" if self._connection is None else "circuit_open"
                batch.failed(range(len(batch.requests)), reason)
            return
        self._queue.append(batch)
        if not self._sending and self._in_flight < _MAX_IN_FLIGHT:
            self._sending = True
            self._loop.call_soon(self._send)

    def charge_here(self, hits: Sequence[Hit], at_us: int) -> list[Outcome]:
        """Settles hits in this process alone, on its share of their limits."""
        return self._debts.charge_here(hits, at_us)

    def ask(self, batch: Batch) -> None:
        """Sends a batch at once to a node that is about to get its slot."""
        connection = self._connection
        if connection is None:
            batch.failed(range(len(batch.requests)), "disconnected")
            return
        calls: dict[int, _Call] = {}
        for index, hits in enumerate(batch.requests):
            slot = self._router.slot(hits) if self._router else 0
            self._add(calls, slot, elapsed_us(), batch, [index], [hits])
        self._in_flight += 1
        self._call(connection, list(calls.values()), [len(calls)], asking=True)

    def call(self, *command: str) -> asyncio.Future[Reply] | None:
        """Asks the server something else; None if it is away."""
        return self._connection.call(*command) if self._connection else None

    @property
    def available(self) -> bool:
        """Whether requests are sent there now."""
        return self._connection is not None and not self._sick

    def debts(self) -> Iterator[tuple[Sequence[Sequence[Hit]], int]]:
        """What a server that will not come back was still to be told, and when that is over."""
        return self._debts.left()

    def owe(self, requests: Sequence[Sequence[Hit]], over_us: int) -> None:
        """Takes what the server is to be told as soon as it can be, until it is over."""
        self._debts.owe(requests, over_us)

    def now_us(self) -> int:
        """The server's time, as far as it is known."""
        if self._clock:
            return self._clock()
        return now_us() if self._ahead_us is None else elapsed_us() + self._ahead_us

    def elapsed_at(self, at_us: int) -> int:
        """When it will be that time there, by `elapsed_us`; never where another clock counts."""
        return NEVER if self._clock else elapsed_us() + at_us - self.now_us()

    def late(self, read_us: int) -> bool:
        """Whether the server, and not this process, keeps calls waiting for too long.

        Everything that had come by `read_us` has been read: what left earlier than the timeout
        before that, and has no reply, has had its time.
        """
        since_us = self._connection.waiting_since_us if self._connection else None
        return since_us is not None and read_us - since_us >= self._timeout_us

    def missed(self, read_us: int) -> None:
        """A batch of a charge had no answer in time. That counts against a server that is late."""
        if not self.late(read_us):
            return
        if not self._missed:
            self._missed_first_us = read_us
        if read_us > self._missed_last_us:
            self._missed += 1
            self._missed_last_us = read_us
        self._degrade(f"is slower than {self._timeout_us / 1000:g} ms")
        lasted_us = read_us - self._missed_first_us
        if self._missed >= _SICK_AFTER and lasted_us >= self._timeout_us and not self._sick:
            log.warning(
                "Redis at %s is sick: it is left alone until it answers pings", self._address
            )
            self._sick = True
            self._raise_alarm()
            self._empty("circuit_open")

    def _hold(self, batch: Batch) -> None:
        """Keeps what has no deadline for when the server is back; the oldest goes if it is much."""
        if self._heir is not None:
            self._heir(batch)
            return
        if len(self._held) >= _MAX_HELD:
            lost = self._held.popleft()
            if not self._counters.lost_give_backs["overflow"]:
                log.warning("Redis at %s is away: too much waits to be given back", self._address)
            self._fail(lost, range(lost.sent, len(lost.requests)), "overflow")
        self._held.append(batch)

    def _release(self) -> None:
        """Sends what has waited for the server; what still cannot be sent waits on."""
        held, self._held = self._held, deque()
        for batch in held:
            self.charge(batch)

    def _raise_alarm(self) -> None:
        if not self._alarm.done():
            self._alarm.set_result("")

    def _empty(self, reason: str) -> None:
        """Ends what is queued; what has no deadline waits."""
        queue, self._queue = self._queue, deque()
        for batch in queue:
            if batch.deadline_us == NEVER:
                self._hold(batch)
            else:
                self._fail(batch, range(batch.sent, len(batch.requests)), reason)

    def _send(self) -> None:
        """Sends what is queued, as much as may be under way."""
        self._sending = False
        while self._queue and self._in_flight < _MAX_IN_FLIGHT:
            connection = self._connection
            if connection is None or connection.lost.done():
                self._empty("disconnected")
                return
            calls = self._next_calls()
            if calls:
                self._in_flight += 1
                self._call(connection, calls, [len(calls)])

    def _next_calls(self) -> list[_Call]:
        """Takes from the queue what fits into one call, and drops what nobody waits for.

        In a cluster it is a call for each slot, all sent at once.
        """
        calls: dict[int, _Call] = {}
        now, size = elapsed_us(), 0
        while self._queue:
            batch = self._queue[0]
            if batch.deadline_us <= now:
                self._queue.popleft()
                self._fail(batch, range(batch.sent, len(batch.requests)), "overloaded")
                continue
            try:
                size = self._take(batch, calls, now, size)
            except Exception as error:
                self._bugs.note("hits could not be sent to Redis", error)
                self._fail(batch, range(batch.sent, len(batch.requests)), "internal")
                batch.sent = len(batch.requests)
            if batch.sent < len(batch.requests) and not batch.over:
                break
            self._queue.popleft()
        return list(calls.values())

    def _take(self, batch: Batch, calls: dict[int, _Call], now: int, size: int) -> int:
        """Takes from a batch what fits beside what weighs `size`; returns what all of it weighs."""
        requests, taken, dropped, at = batch.requests, [], [], batch.sent
        wanted, numbers, section = batch.wanted, batch.indexes, []
        while at < len(requests) and not batch.over:
            hits = requests[at]
            added = weight(hits)
            if size and size + added > MAX_CALL_WEIGHT:
                break
            if wanted(numbers[at]):
                taken.append(at)
                section.append(hits)
                size += added
            else:
                dropped.append(at)
            at += 1
        if taken and self._router is None:
            self._add(calls, 0, now, batch, taken, section)
        elif taken and self._router is not None:
            slots = [self._router.slot(hits) for hits in section]
            for slot, index, hits in zip(slots, taken, section, strict=True):
                self._add(calls, slot, now, batch, [index], [hits])
        batch.sent = at
        if dropped:
            batch.dropped(dropped)
        return size

    def _add(
        self,
        calls: dict[int, _Call],
        slot: int,
        now_us: int,
        batch: Batch,
        indexes: list[int],
        requests: list[Sequence[Hit]],
    ) -> None:
        """Adds requests of a batch to the call of their slot."""
        call = calls.get(slot)
        if call is None:
            self._number += 1
            call = calls[slot] = _Call([], [], [], now_us, self._number)
        call.indexes.append((batch, indexes))
        call.requests.extend(requests)
        call.sections.append((self._not_after(batch.deadline_us), requests))

    def _not_after(self, deadline_us: int) -> int:
        """A deadline by the server's clock, 0 for none."""
        if deadline_us == NEVER or self._ahead_us is None or self._clock:
            return 0
        return deadline_us + self._ahead_us

    def _call(
        self,
        connection: Connection,
        calls: Sequence[_Call],
        under_way: list[int],
        script: tuple[str, str] = ("EVALSHA", SHA),
        *,
        asking: bool = False,
    ) -> None:
        """Sends script calls in one write; `under_way` counts those without a reply."""
        now, judge = (self._clock(), True) if self._clock else (now_us(), False)
        commands: list[Command] = []
        replied: list[Answered] = []
        try:
            for call in calls:
                if asking:
                    commands.append(["ASKING"])
                    replied.append(_ignore)
                words = arguments(call.sections, now, judge=judge, prefix=self._key_prefix_bytes)
                commands.append([*script, *words, call.number])
                replied.append(partial(self._replied, connection, call, under_way, asking))
            connection.send(commands, replied)
        except Exception as error:
            self._landed(under_way, len(calls))
            self._bugs.note("hits could not be sent to Redis", error)
            for call in calls:
                for batch, indexes in call.indexes:
                    self._fail(batch, indexes, "internal")

    def _replied(
        self,
        connection: Connection,
        call: _Call,
        under_way: list[int],
        asking: bool,
        reply: Reply,
    ) -> None:
        if isinstance(reply, hiredis.ReplyError) and str(reply).startswith("NOSCRIPT"):
            # Redis has lost its scripts (SCRIPT FLUSH, a restart); EVAL also teaches it anew.
            self._call(connection, [call], under_way, ("EVAL", SCRIPT), asking=asking)
            return
        self._landed(under_way, 1)
        try:
            if not (
                reply is None
                or isinstance(reply, hiredis.ReplyError)
                or fits(reply, call.requests, call.number)
            ):
                connection.distrust()
                reply = None
            found = read(reply, call.requests)
            if found is not None:
                if connection.answered_left_us + self._timeout_us > self._missed_last_us:
                    self._missed = 0  # it was not found late with this one
                self._succeeded(call, found)
                each, at_us = iter(found.outcomes), found.at_us
                for batch, indexes in call.indexes:
                    if found.late:
                        _answer_one_by_one(batch, indexes, each, at_us)
                    else:
                        batch.answered(indexes, each, at_us)
            else:
                self._refused(connection, call, reply)
        except Exception as error:
            # Nobody knows whose the outcomes are that are left.
            self._bugs.note("a reply from Redis could not be handled", error)
            for batch, indexes in call.indexes:
                self._fail(batch, indexes, "internal")
        if self._queue and not self._sending:
            self._send()

    def _landed(self, under_way: list[int], count: int) -> None:
        """So many calls of those sent at once have a reply, or none will come."""
        under_way[0] -= count
        if not under_way[0]:
            self._in_flight -= 1

    def _fail(self, batch: Batch, indexes: Sequence[int], reason: str) -> None:
        """Tells a batch that it gets no answer; if that fails too, its deadline ends it."""
        if batch.deadline_us == NEVER:
            hits = sum([len(batch.requests[index]) for index in indexes])
            self._counters.lost_give_backs[reason] += hits
        try:
            batch.failed(indexes, reason)
        except Exception as error:
            self._bugs.note("hits could not be decided without Redis", error)

    def _refused(self, connection: Connection, call: _Call, reply: Reply) -> None:
        """The call has an error, or none that could be read, or no reply at all."""
        error = str(reply) if isinstance(reply, hiredis.ReplyError) else ""
        left = [
            (batch, indexes)
            for batch, indexes in call.indexes
            if not (self._router and error and self._router.redirected(self, error, batch, indexes))
        ]
        if not left:
            return
        if reply is None:
            self._degrade(f"is away: {connection.lost.result()}")
        else:
            self._degrade(f"answers: {connection.shown(reply):.200}")
        if error.startswith(_TO_BE_LEFT):
            connection.close(
                f"it answers {connection.shown(reply):.100}"
            )  # who is the master is asked anew
        for batch, indexes in left:
            whole = len(indexes) == len(batch.requests)
            if batch.deadline_us == NEVER and whole and error.startswith(_NOTHING_DONE):
                batch.sent = 0
                self._hold(batch)
            else:
                # What may have been given back is not given back again: that could be once too
                # often, and admit too much.
                self._fail(batch, indexes, "unknown" if reply is None else "refused")

    def _succeeded(self, call: _Call, found: Found) -> None:
        self._learn(found.at_us, call.sent_us)
        if found.damaged:
            self._damage.note(len(found.damaged), found.damaged[0])
        self._calm_down()

    def _calm_down(self) -> None:
        """Says that all is well once there has been no fault for a while."""
        if (
            self._fault_at is not None
            and not self._missed
            and self._loop.time() - self._fault_at > _CALM_SECONDS
        ):
            self._fault_at = None
            self._health.recover(self._component)

    def _learn(self, at_us: int, sent_us: int) -> None:
        """Learns how the clocks stand to each other from a call that ran at `at_us`.

        It ran after it was sent and before now: the latest it can have run gives the bound
        that holds whatever the way took. Bounds add up until one shows that the clock has
        been set back.
        """
        ahead_us = at_us - elapsed_us()
        if self._ahead_us is None or ahead_us > self._ahead_us or at_us - sent_us < self._ahead_us:
            self._ahead_us = ahead_us

    def _degrade(self, fault: str) -> None:
        self._fault_at = self._loop.time()
        self._health.degrade(self._component, f"Redis at {self._address} {fault}")

    async def _keep_connected(self, tried: asyncio.Event) -> None:
        first, longest = _BACK_OFF_SECONDS, _LONGEST_BACK_OFF_SECONDS
        wait = first
        while True:
            lasted = 0.0
            try:
                async with asyncio.timeout(_OPEN_SECONDS):
                    address = await find(self._address)
                    load = "SCRIPT", "LOAD", SCRIPT
                    connection = await open_connection(
                        address, self._contexts, load, greeted=self._read_time
                    )
            except StoreError as error:
                reason = str(error)
            except TimeoutError:
                reason = f"Redis at {self._address} does not answer"
            except Exception as error:
                self._bugs.note(f"Redis at {self._address} cannot be connected to", error)
                reason = f"Redis at {self._address} cannot be connected to: see the log"
            else:
                log.info("connected to Redis at %s", address)
                wait, since = first, self._loop.time()
                self._well(connection)
                tried.set()
                following = asyncio.create_task(self._follow(connection, address))
                try:
                    await self._look_after(connection)
                except Exception as error:
                    self._bugs.note(f"Redis at {self._address} is not looked after", error)
                    connection.close("the service failed: see its log")
                finally:
                    following.cancel()
                self._connection = None
                lasted = self._loop.time() - since
                reason = f"Redis at {address} is away: {connection.lost.result()}"
                self._empty("disconnected")
            self._health.degrade(self._component, reason)
            tried.set()
            if lasted > _CALM_SECONDS:
                continue  # it was a good one: it is tried again at once
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))  # noqa: S311 -- jitter, no secret
            wait = min(2 * wait, longest)

    async def _read_time(self, connection: Connection) -> None:
        """Learns the server's clock anew: it may be another server."""
        sent_us = elapsed_us()
        reply = await connection.call("TIME")
        self._ahead_us = None
        try:
            seconds, micros = map(int, reply)  # type: ignore[call-overload]
        except (TypeError, ValueError) as error:
            raise StoreError(f"Redis at {self._address} does not tell its time") from error
        self._learn(seconds * 1_000_000 + micros, sent_us)

    def _well(self, connection: Connection) -> None:
        """The server serves from now on, and first what has waited for it."""
        self._connection = connection
        self._sick = False
        self._missed = 0
        self._fault_at = None
        self._health.recover(self._component)
        self._release()

    async def _look_after(self, connection: Connection) -> None:
        """Watches over a connection until it is lost."""
        while not connection.lost.done():
            self._beat(connection)
            self._release()
            await self._debts.hand_back()
            alarm = self._alarm = self._loop.create_future()
            started = self._loop.time()
            await asyncio.wait(
                [connection.lost, alarm],
                timeout=BEAT_SECONDS,
                return_when=asyncio.FIRST_COMPLETED,
            )
            connection.forgive(max(0.0, self._loop.time() - started - BEAT_SECONDS))
            await self._give_up_if_hung(connection)
            if self._sick and not connection.lost.done():
                await self._nurse(connection)

    async def _follow(self, connection: Connection, address: Address) -> None:
        """Leaves a master as soon as Sentinel names another."""
        if isinstance(self._address, Sentinels):
            with contextlib.suppress(StoreError):  # told when the connection is made anew
                await moved(self._address, address)
                connection.close("Sentinel names another master")

    def _beat(self, connection: Connection) -> None:
        """Says that this process counts here, and hears who else does."""

        def heard(reply: Reply) -> None:
            beats = others(reply)
            if beats is not None and self._process not in beats:
                connection.distrust()
            elif beats is not None:
                self._calm_down()
                self.processes = max(1, len(beats))
                self._heard(self.name, beats)

        key = self._router.beat_key(self) if self._router else PROCESSES
        if key:
            connection.send([beat(self._process, self._key_prefix + key)], [heard])

    async def _give_up_if_hung(self, connection: Connection) -> None:
        """Closes a connection on which calls have been pending in silence for too long."""
        if connection.silence > _HUNG_SECONDS:
            await all_read()
        if connection.silence > _HUNG_SECONDS and not connection.lost.done():
            connection.close(f"no reply for {connection.silence:.1f} s")

    async def _nurse(self, connection: Connection) -> None:
        """Pings a sick server until it is well; gives a silent one up."""
        answered = 0
        while answered < _WELL_AFTER and not connection.lost.done():
            ping = connection.ping()
            await asyncio.wait([ping], timeout=min(self._timeout_us / 1_000_000, _PING_SECONDS))
            if not ping.done():
                await all_read()
            if ping.done():
                answered += 1
                await asyncio.sleep(_PING_SECONDS)
            else:
                answered = 0
                await asyncio.wait([ping], timeout=_PING_SECONDS)
            await self._give_up_if_hung(connection)
        if not connection.lost.done():
            log.warning("Redis at %s answers pings in time again", self._address)
            self._well(connection)


def _answer_one_by_one(
    batch: Batch, indexes: Sequence[int], found: Iterator[Outcomes], at_us: int
) -> None:
    """Tells a batch's requests apart: those that the server found too late have no answer."""
    for index in indexes:
        outcomes = next(found)
        if None in outcomes:
            batch.failed([index], "timeout")
        else:
            batch.answered([index], iter([outcomes]), at_us)


def _ignore(_: Reply) -> None: ...


_TO_BE_LEFT: Final[tuple[str, ...]] = ("READONLY", "NOAUTH", "MASTERDOWN")
"""Errors after which a new connection is made: to whoever is master now, with a new password."""

_NOTHING_DONE: Final[tuple[str, ...]] = (
    *_TO_BE_LEFT,
    "LOADING",
    "BUSY",
    "CLUSTERDOWN",
    "OOM",
    "MISCONF",
    "NOREPLICAS",
)
"""Errors that say that nothing of a script call has been done: it may be sent again."""
