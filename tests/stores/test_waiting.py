"""Callers who name no deadline wait for a server that is well, and hear it at once if it is not.

All is run by uvloop, as in production. The server is well if it answers each call in time from when
that was sent; how long a charge waits in the queue, and whether this process runs, do not count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import uvloop

from ratelimit_service.eventloop.clock import elapsed_us
from ratelimit_service.stores import NEVER, Outcomes, Wanted, always
from tests.servers.redis import RedisServer
from tests.stores.cases import YEAR, hearing, hit
from tests.stores.redis_store import Fixture, started
from tests.waiting import PATIENCE_SECONDS

TIMEOUT_US = 600_000
AFTER_US = TIMEOUT_US + 10_000
LIMIT = 1_000
MANY = 3_000
"""Far more than goes out in the calls that are under way at a time."""


class Waiting:
    """A store over a server, and the answers of what is charged one request at a time."""

    def __init__(self, server: RedisServer, timeout_us: int) -> None:
        self.server = server
        self.fixture = Fixture(server.url, timeout_us)
        self.store = self.fixture.store
        self.answers: list[list[Outcomes]] = []

    def charge(self, count: int, wanted: Wanted = always, deadline_us: int = NEVER) -> None:
        """So many callers ask."""
        for _ in range(count):
            done = hearing(self.answers.append)
            self.store.charge([[hit(limit=LIMIT, window_us=YEAR)]], done, wanted, deadline_us)

    async def all_answered(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(self.answers) < count:
                await asyncio.sleep(0)
        assert len(self.answers) == count

    def passed(self) -> int:
        """How many of the answers are by count, and let their callers through."""
        return sum(outcome is not None and not outcome.over for outcome in self._outcomes())

    def unanswered(self) -> int:
        return self._outcomes().count(None)

    def _outcomes(self) -> Outcomes:
        """Of what was sent, or would have been."""
        return [outcome for (outcomes,) in self.answers for outcome in outcomes]


def run(
    server: RedisServer,
    walk: Callable[[Waiting], Coroutine[None, None, None]],
    timeout_us: int = TIMEOUT_US,
) -> None:
    async def walked() -> None:
        waiting = Waiting(server, timeout_us)
        await started(waiting.store)
        try:
            await walk(waiting)
        finally:
            server.cont()
            await waiting.store.close()

    uvloop.run(walked())


def hold_up(us: int) -> None:
    """Nothing is done by this process for so long."""
    until_us = elapsed_us() + us
    while elapsed_us() < until_us:
        pass


def test_who_names_no_deadline_is_counted_however_long_the_queue_is(own_redis: RedisServer) -> None:
    """A process that stands still for longer than the timeout counts all who waited meanwhile.

    A limit of 1,000 lets 1,000 through. So it is with a deadline that is far away.
    """

    async def walk(waiting: Waiting) -> None:
        waiting.charge(MANY)
        waiting.charge(MANY, deadline_us=elapsed_us() + 3_600_000_000)
        await asyncio.sleep(0)
        hold_up(AFTER_US)
        await asyncio.sleep(0)
        hold_up(AFTER_US)
        await waiting.all_answered(2 * MANY)

        assert waiting.passed() == LIMIT
        assert waiting.unanswered() == 0
        assert waiting.fixture.stats.store_errors == {}
        assert waiting.fixture.health.faults == {}

    run(own_redis, walk)


def test_all_who_wait_hear_it_when_the_server_is_late(own_redis: RedisServer) -> None:
    """What was sent and what was not has no answer; the server counts none of it later."""

    async def walk(waiting: Waiting) -> None:
        own_redis.stop()
        waiting.charge(MANY)
        await waiting.all_answered(MANY)

        assert waiting.unanswered() == MANY
        assert waiting.fixture.stats.store_errors.total() == MANY
        assert list(waiting.fixture.health.faults) == ["store"]
        own_redis.cont()
        outcomes = await waiting.fixture.until(lambda outcomes: None not in outcomes)
        assert [outcome and outcome.remaining for outcome in outcomes] == [LIMIT - 1]

    run(own_redis, walk)


def test_a_charge_is_not_held_until_the_server_is_back(own_redis: RedisServer) -> None:
    """A caller hears at once that there is no server, and nothing of its charge remains."""

    async def walk(waiting: Waiting) -> None:
        (shard,) = waiting.store.shards
        own_redis.stop()
        waiting.charge(MANY)
        await asyncio.sleep(0)
        own_redis.kill()
        await waiting.all_answered(MANY)
        waiting.charge(1)
        await waiting.all_answered(MANY + 1)

        assert waiting.unanswered() == MANY + 1
        assert shard.state("").waiting == 0
        assert waiting.fixture.stats.lost_give_backs == {}

    run(own_redis, walk)


def test_who_has_gone_while_it_waited_is_not_charged(own_redis: RedisServer) -> None:
    """A caller that takes its call back before it is sent, or sent again, is not counted."""

    async def walk(waiting: Waiting) -> None:
        waits = True
        own_redis.stop()
        waiting.charge(MANY, lambda _: waits)
        await asyncio.sleep(0)
        waits = False
        own_redis.cont()
        await waiting.all_answered(MANY)

        sent = waiting.passed()
        assert sent < LIMIT
        (outcome,) = await waiting.fixture.hit(limit=LIMIT)
        assert outcome is not None
        assert outcome.remaining == LIMIT - sent - 1

    run(own_redis, walk, timeout_us=3_600_000_000)
