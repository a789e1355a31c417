"""A server is judged by its own time: what this process did meanwhile is taken off.

All is run by uvloop, as in production, and bytes leave in the round after they were sent. So a long
turn holds back what was sent in it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import cast

import pytest
import redis
import uvloop

from ratelimit_service.eventloop.clock import elapsed_us
from ratelimit_service.stores import NEVER, Outcomes
from ratelimit_service.stores.redis import store
from ratelimit_service.stores.redis.connection import RedisConnection
from tests.servers.redis import RedisServer
from tests.stores.cases import hearing, hit
from tests.stores.redis_store import Fixture, started
from tests.waiting import PATIENCE_SECONDS

TIMEOUT_US = 300_000
HELD_US = TIMEOUT_US * 9 // 10
AFTER_US = TIMEOUT_US + 10_000
"""A time that is over, and one that nearly is: the rest is for a busy machine."""


class Late:
    """A transport whose bytes leave in the next round of the loop."""

    def __init__(self, transport: asyncio.WriteTransport) -> None:
        self._transport = transport
        self.abort = transport.abort

    def write(self, data: bytes) -> None:
        asyncio.get_running_loop().call_soon(self._transport.write, data)


class Held:
    """A store whose process can be held up, and whose server can hang."""

    def __init__(self, server: RedisServer, timeout_us: int = TIMEOUT_US) -> None:
        self.server = server
        self.fixture = Fixture(server.url, timeout_us)
        self.store = self.fixture.store
        self.answers: list[list[Outcomes]] = []

    async def start(self) -> None:
        await started(self.store)
        (self.shard,) = self.store.shards
        assert await self.fixture.hit() != [None]
        # A loop that is busy writes later than it is asked to, which nobody can bring about.
        assert self.connection._transport is not None
        late = Late(self.connection._transport)
        self.connection._transport = cast(asyncio.WriteTransport, late)
        self.client = redis.Redis.from_url(self.server.url)

    @property
    def connection(self) -> RedisConnection:
        connection = self.shard.server.connection
        assert connection is not None
        return connection

    async def charge(self, deadline_us: int = NEVER) -> None:
        """Charges, and returns in the round in which that is sent."""
        requests = [[hit(limit=1_000)]]
        self.store.charge(requests, hearing(self.answers.append), deadline_us=deadline_us)
        await asyncio.sleep(0)
        assert self.shard.state("").under_way == 1

    async def leave(self) -> int:
        """Lets the bytes go, and returns when they have: before anything is read."""
        await asyncio.sleep(0)
        since_us = self.connection.waiting_since_us
        assert since_us is not None
        return since_us

    def let_answer(self) -> None:
        """Has the server do all that it was sent, with its replies ready to be read."""
        self.server.cont()
        # What was sent before runs by the first answer, perhaps beside it, and is answered by the
        # second: the server writes what it has to say before it reads again.
        self.client.ping()
        self.client.ping()

    async def counted(self) -> None:
        """Waits until the charge has its answer: it is counted once, and nothing is blamed."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not self.answers:
                await asyncio.sleep(0)
        ((outcomes,),) = self.answers
        assert [outcome and outcome.remaining for outcome in outcomes] == [999]
        assert self.fixture.stats.store_errors == {}
        assert self.fixture.health.faults == {}

    async def end(self) -> Counter[str]:
        """Waits until the charge has its answer; returns why it has none of the server."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not self.answers:
                await asyncio.sleep(0)
        assert self.answers == [[[None]]]
        self.server.cont()
        return self.fixture.stats.store_errors


def hold(until_us: int) -> None:
    """Nothing else is done until then."""
    while elapsed_us() < until_us:
        pass


async def walked(
    server: RedisServer, walk: Callable[[Held], Coroutine[None, None, None]], timeout_us: int
) -> None:
    held = Held(server, timeout_us)
    await held.start()
    try:
        await walk(held)
    finally:
        server.cont()
        await held.store.close()


def run(
    server: RedisServer,
    walk: Callable[[Held], Coroutine[None, None, None]],
    timeout_us: int = TIMEOUT_US,
) -> None:
    uvloop.run(walked(server, walk, timeout_us))


@pytest.mark.parametrize("held_us", [HELD_US, AFTER_US])
def test_a_call_that_was_held_back_here_is_no_fault_of_the_server(
    own_redis: RedisServer, held_us: int
) -> None:
    """If the server finds a call too late that this process kept, it is sent again, and counted.

    Also if the call left before its time was over, but with too little left of it.
    """

    async def walk(held: Held) -> None:
        began_us = elapsed_us()
        own_redis.stop()
        await held.charge()
        hold(began_us + held_us)
        await held.leave()
        hold(began_us + AFTER_US)
        held.let_answer()

        await held.counted()

    run(own_redis, walk)


def test_a_call_that_the_server_was_too_slow_for_is_its_fault(own_redis: RedisServer) -> None:
    """If the server finds a call too late that left at once, that counts as `timeout`."""

    async def walk(held: Held) -> None:
        own_redis.stop()
        await held.charge()
        hold(await held.leave() + AFTER_US)
        held.let_answer()

        assert await held.end() == {"timeout": 1}

    run(own_redis, walk)


@pytest.mark.parametrize(("held_us", "reason"), [(0, "timeout"), (AFTER_US, "overloaded")])
def test_a_caller_that_waits_for_less_than_the_server_may_take(
    own_redis: RedisServer, held_us: int, reason: str
) -> None:
    """Then the server is to blame if it had the caller's time, and not if this process had it."""

    async def walk(held: Held) -> None:
        began_us = elapsed_us()
        own_redis.stop()
        await held.charge(began_us + TIMEOUT_US)
        hold(began_us + held_us)
        await held.leave()

        assert await held.end() == {reason: 1}
        assert held.fixture.health.faults == {}  # a caller's time is no measure of the server

    run(own_redis, walk, timeout_us=3_600_000_000)


def test_a_caller_without_time_is_no_fault_of_the_server(own_redis: RedisServer) -> None:
    """A charge whose time is over when it comes is not sent, and counts as `overloaded`."""

    async def walk(held: Held) -> None:
        held.store.charge([[hit()]], hearing(held.answers.append), deadline_us=elapsed_us() - 1)

        assert await held.end() == {"overloaded": 1}

    run(own_redis, walk)


def test_time_in_which_bytes_had_not_left_is_not_the_servers(own_redis: RedisServer) -> None:
    """A turn longer than the timeout, behind a call in the same round, blames nobody else.

    The call is waited for, and counted.
    """

    async def walk(held: Held) -> None:
        own_redis.stop()
        await held.charge()
        hold(elapsed_us() + AFTER_US)
        await held.leave()
        await rounds()
        assert not held.answers
        held.let_answer()

        await held.counted()

    run(own_redis, walk)


def test_time_after_the_last_read_is_not_the_servers(own_redis: RedisServer) -> None:
    """A turn longer than the timeout, between the last read and a charge's end, blames nobody.

    At that read the server had had half of its time only, since the call left that late. It gets
    the rest of it.
    """

    async def walk(held: Held) -> None:
        began_us = elapsed_us()
        own_redis.stop()
        await held.charge()
        hold(began_us + TIMEOUT_US // 2)
        await held.leave()
        while held.store._timer is not None:  # until it has fired
            await asyncio.sleep(0)
        hold(elapsed_us() + AFTER_US)
        assert not held.answers
        await rounds()
        assert not held.answers
        assert held.fixture.health.faults == {}

        assert await held.end() == {"timeout": 1}

    run(own_redis, walk)


def test_a_reply_that_lies_there_unread_is_not_late(own_redis: RedisServer) -> None:
    """A turn longer than the timeout with the reply unread costs nothing, and blames nobody."""

    async def walk(held: Held) -> None:
        await held.charge()
        hold(await held.leave() + AFTER_US)
        held.let_answer()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not held.answers:
                await asyncio.sleep(0)

        assert held.answers != [[[None]]]
        assert held.fixture.stats.store_errors == {}
        assert held.fixture.health.faults == {}

    run(own_redis, walk)


ROUNDS = 20
"""More than the loop goes round before a timer is believed."""


async def held_back(held: Held, until_us: int) -> None:
    """Holds back what was sent in this round; then the server takes some rounds to answer it."""
    held.server.stop()
    hold(until_us)
    await rounds()
    held.let_answer()


async def rounds() -> None:
    """The loop goes round for a while."""
    for _ in range(ROUNDS):
        await asyncio.sleep(0)


def test_pings_of_a_process_with_long_turns(own_redis: RedisServer) -> None:
    """A sick server is well after three pings that it has answered, also if they left late."""

    async def walk(held: Held) -> None:
        own_redis.stop()
        while held.shard.available:
            await held.fixture.hit()
        own_redis.cont()
        pings = 0
        async with asyncio.timeout(PATIENCE_SECONDS):
            while held.connection.waiting_since_us is not None:
                await asyncio.sleep(0)
            while not held.shard.available:
                if held.connection._leaving:  # a ping is about to leave
                    pings += 1
                    await held_back(held, elapsed_us() + AFTER_US)
                await asyncio.sleep(0)

        assert pings <= 3

    run(own_redis, walk, timeout_us=20_000)


def test_errands_of_a_process_with_long_turns(
    own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an operator asks of a store is answered, also if it left late."""
    monkeypatch.setattr(store, "_ASK_US", TIMEOUT_US)

    async def walk(held: Held) -> None:
        asked = asyncio.create_task(held.store.command(hit().key, "ECHO", "word"))
        while not held.connection._leaving:  # until the command is about to leave
            await asyncio.sleep(0)
        await held_back(held, elapsed_us() + AFTER_US)

        assert await asked == b"word"

    run(own_redis, walk)
