"""What is admitted and counted while the way to Redis is slow, held up or cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import redis

from ratelimit_service.health import Health
from ratelimit_service.model import FailurePolicy, Hit
from ratelimit_service.observer import Counters
from ratelimit_service.stores import Outcomes
from ratelimit_service.stores.redis import RedisStore
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisServer
from tests.stores.cases import MINUTE, charged
from tests.stores.cases import hit as minutely


def hit(addend: int = 1, *, key: str = "a", limit: int = 1_000) -> Hit:
    one = minutely(addend, key=key, limit=limit, window_us=600 * MINUTE)
    return one._replace(policy=FailurePolicy.CLOSED)


class Fixture:
    """A store behind a proxy; a test's own clock decides how long it waits."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.proxy = Proxy(server.port)
        self.counters, self.health = Counters(), Health()

    async def start(self, timeout_us: int) -> None:
        port = await self.proxy.start()
        url = f"redis://127.0.0.1:{port}/0"
        self.store = RedisStore(url, timeout_us, self.counters, self.health)
        await self.store.start()

    async def until(self, condition: Callable[[Outcomes], bool]) -> Outcomes:
        async with asyncio.timeout(20):
            while True:
                (outcomes,) = await charged(self.store, [[hit()]])
                if condition(outcomes):
                    return outcomes
                await asyncio.sleep(0.01)

    def count(self) -> int:
        state = redis.Redis.from_url(self.server.url).get(hit().key)
        return int(state) & 0xFFFFFFFF if isinstance(state, bytes) else 0


@pytest.fixture
async def fixture(own_redis: RedisServer) -> AsyncIterator[Fixture]:
    fixture = Fixture(own_redis)
    yield fixture
    await fixture.store.close()
    await fixture.proxy.close()


def answered(outcomes: Outcomes) -> bool:
    return outcomes != [None]


async def test_slow_way(fixture: Fixture) -> None:
    """On a way slower than the timeout policies decide, and what came too late counts nothing."""
    await fixture.start(timeout_us=20_000)
    await fixture.until(answered)
    fixture.proxy.delay_seconds = 0.05
    answers = [await charged(fixture.store, [[hit()]]) for _ in range(8)]
    assert answers == [[[None]]] * 8
    assert fixture.counters.store_errors == {"timeout": 5, "circuit_open": 3}

    fixture.proxy.clear()

    (outcome,) = await fixture.until(answered)
    assert outcome is not None
    assert outcome.left == 1_000 - fixture.count()
    assert fixture.count() == 2


async def test_half_open_connection(fixture: Fixture) -> None:
    """A connection on which nothing moves any more is given up and made anew."""
    await fixture.start(timeout_us=20_000)
    await fixture.until(answered)
    fixture.proxy.hold = True
    await fixture.until(lambda _: "circuit_open" in fixture.counters.store_errors)
    async with asyncio.timeout(10):
        while "no reply for" not in fixture.health.faults["store"]:
            await asyncio.sleep(0.01)

    fixture.proxy.clear()

    await fixture.until(answered)
    assert fixture.count() == 2
    assert fixture.health.faults == {}


async def test_reset_in_the_middle_of_a_reply(fixture: Fixture) -> None:
    """A lost reply is an outcome unknown; the next connection counts on."""
    await fixture.start(timeout_us=5_000_000)
    await fixture.until(answered)
    fixture.proxy.cut = True

    assert await charged(fixture.store, [[hit()]]) == [[None]]

    assert fixture.counters.store_errors == {"unknown": 1}
    await fixture.until(answered)
    assert fixture.count() == 3
