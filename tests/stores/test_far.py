"""A Redis that is far away: what is judged and sent by the round trip to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from ratelimit_service.eventloop.clock import elapsed_us
from ratelimit_service.model import SECOND_US
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.stores import Outcomes
from ratelimit_service.stores.redis import Layout, RedisStore
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisServer
from tests.stores.cases import YEAR, charged, hearing, hit
from tests.waiting import PATIENCE_SECONDS, until

ONE_WAY_SECONDS = 0.05
ROUND_TRIP_US = 100_000
NEAR_US = 10_000
"""What a near store may take: less than the way to this one."""

LONG_US = 60 * SECOND_US

LIMIT = 2_000
CALLERS = 3_000
TICKS = 30


class Far:
    """A store behind a proxy that delays."""

    def __init__(self, server: RedisServer) -> None:
        self.proxy = Proxy(server.port)
        self.proxy.delay_seconds = ONE_WAY_SECONDS
        self.stats, self.health = Stats(), Health()
        self.answers: list[list[Outcomes]] = []

    async def start(self, end: str) -> None:
        """Connects; the store's URL ends so."""
        url = f"redis://127.0.0.1:{await self.proxy.start()}{end}"
        self.store = RedisStore(url, NEAR_US, self.stats, self.health)
        await self.store.start()
        await until(lambda: self.available)

    @property
    def available(self) -> bool:
        (state,) = self.store.shard_states()
        return bool(state.address) and not state.breaker_open

    def charge(self, deadline_us: int) -> None:
        """A caller asks, who waits until then."""
        done = hearing(self.answers.append)
        self.store.charge([[hit(limit=LIMIT, window_us=YEAR)]], done, deadline_us=deadline_us)

    async def answered(self, count: int) -> None:
        await until(lambda: len(self.answers) == count)

    async def until_counted(self) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await charged(self.store, [[hit(limit=LIMIT, window_us=YEAR)]]) == [[None]]:
                await asyncio.sleep(0.01)

    async def until_sick(self) -> None:
        """Cuts the network, and charges until the store is left alone."""
        self.proxy.hold = True
        async with asyncio.timeout(PATIENCE_SECONDS):
            while self.available:
                self.charge(elapsed_us() + LONG_US)
                await asyncio.sleep(0.01)


@pytest.fixture
async def far(own_redis: RedisServer) -> AsyncIterator[Far]:
    far = Far(own_redis)
    yield far
    await far.store.close()
    await far.proxy.close()


async def test_counts_thousands_in_a_round_trip(far: Far) -> None:
    """What is asked within one round trip goes out before its end, and is counted exactly.

    At 100 ms these are 30,000 hits a second, and each caller waits for one round trip.
    """
    await far.start("/0?timeout=20s")
    far.proxy.hold = True  # so nothing is answered while they ask, however slow this machine is
    for _ in range(TICKS):
        for _ in range(CALLERS // TICKS):
            far.charge(elapsed_us() + LONG_US)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    (state,) = far.store.shard_states()
    assert state.waiting == 0
    assert far.answers == []

    far.proxy.hold = False
    await far.answered(CALLERS)
    outcomes = [outcome for ((outcome,),) in far.answers]
    passed = sum(outcome is not None and not outcome.over for outcome in outcomes)
    assert (passed, outcomes.count(None)) == (LIMIT, 0)
    assert far.health.faults == {}


async def test_is_well_by_its_own_time(far: Far) -> None:
    """A store whose URL names a time is not sick because others have to answer sooner."""
    await far.start("/0?timeout=20s")

    for _ in range(10):  # more than make a store sick
        assert await charged(far.store, [[hit()]]) != [[None]]

    (state,) = far.store.shard_states()
    assert state.round_trip_us is not None
    assert state.round_trip_us >= ROUND_TRIP_US
    assert far.available
    assert far.health.faults == {}
    assert far.stats.store_errors == {}


async def test_nothing_is_sent_that_cannot_be_answered(far: Far) -> None:
    """A caller who waits for less than the way there and back is answered by policy at once.

    That is so after a pause, too: a pause brings no store nearer.
    """
    await far.start("/0?timeout=20s")
    assert far.store.wait_us(0) >= ROUND_TRIP_US
    far.charge(elapsed_us() + ROUND_TRIP_US * 8 // 10)

    await far.answered(1)

    assert far.answers == [[[None]]]
    assert far.stats.store_errors == {"overloaded": 1}
    await far.until_counted()


async def test_greeting_that_takes_longer_than_a_second(far: Far) -> None:
    """Each answer to a greeting may take a second, not all of them together."""
    far.proxy.delay_seconds = 0.15

    await far.start("/1?timeout=20s")

    await far.until_counted()


async def test_store_that_is_too_far_for_its_time(far: Far) -> None:
    """Health says how far away a store is from which no answer can come in time, and what to do."""
    await far.start("/0")

    await until(lambda: bool(far.health.faults))

    fault = far.health.faults["store"]
    assert "is slower than 10 ms, since the way there and back takes 1" in fault
    assert "?timeout=300ms" in fault


async def test_network_that_comes_back_soon(far: Far) -> None:
    """A far store that was sick is well again when it answers pings within its own time."""
    await far.start("/0?timeout=300ms")
    await far.until_sick()

    far.proxy.hold = False

    await far.until_counted()


async def test_network_that_is_cut(far: Far) -> None:
    """A connection without a word is given up; one more attempt is enough once the way is back."""
    await far.start("/0?timeout=300ms")
    await far.until_sick()
    accepted = far.proxy.accepted
    await until(lambda: far.proxy.accepted > accepted)
    assert far.health.faults["store"]
    accepted = far.proxy.accepted

    far.proxy.hold = False

    await until(lambda: far.available)
    assert far.proxy.accepted - accepted <= 1
    await far.until_counted()
    await until(lambda: far.health.faults == {})


async def test_second_store_is_far(far: Far, own_redis: RedisServer) -> None:
    """Each of two stores has a time of its own."""
    port = await far.proxy.start()
    second = f"redis://127.0.0.1:{port}/1?timeout=20s"
    first = f"{own_redis.url}?timeout=5s"
    layout = Layout(second_url=second)
    far.store = RedisStore(first, NEAR_US, far.stats, far.health, layout=layout)
    await far.store.start()
    await until(lambda: all(state.address for state in far.store.shard_states()))

    hits = [hit(window_us=SECOND_US), hit(window_us=YEAR)]

    (outcomes,) = await charged(far.store, [hits])
    assert None not in outcomes
