"""Advances and hand-backs that get lost on the way: somebody is denied sooner, nobody gets more."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

import pytest

from ratelimit_service.model import Limit, Unit
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisServer
from tests.stores.cases import SECOND, T
from tests.stores.conftest import Time
from tests.stores.leasing import Process, acquainted, counted, hit

_LIMIT = Limit(200, Unit.MINUTE, advances=True)
_ANY = re.compile(b".")


class _Behind:
    """One process behind a proxy that loses things, and one that is not."""

    def __init__(self, proxy: Proxy, lossy: Process, other: Process) -> None:
        self.proxy = proxy
        self.lossy = lossy
        self.other = other

    async def back(self) -> None:
        """Returns when the process behind the proxy is connected again, and owes nothing."""
        self.proxy.refuse = False
        while not all(shard.available for shard in self.lossy.store.shards):
            await asyncio.sleep(0.001)
        await self.lossy.quiet()


@pytest.fixture
async def behind(redis_server: RedisServer, clock: Time) -> AsyncIterator[_Behind]:
    redis_server.flush()
    clock.now_us = T
    proxy = Proxy(redis_server.port)
    port = await proxy.start()
    lossy = Process(f"redis://127.0.0.1:{port}/0", clock)
    other = Process(redis_server.url, clock)
    await acquainted([lossy, other])
    yield _Behind(proxy, lossy, other)
    for each in (lossy, other):
        await each.advances.close()
    await proxy.close()


async def _until_cut(behind: _Behind) -> None:
    """Waits until the proxy has lost what it was to lose."""
    while not behind.proxy.refuse:
        await asyncio.sleep(0.001)
    await behind.lossy.quiet()


async def test_what_is_lost_on_its_way_back_is_not_handed_back_twice(
    behind: _Behind, clock: Time
) -> None:
    """The server has taken a hand-back whose reply is lost. It is not said again."""
    used = await behind.lossy.admitted(60, hit(_LIMIT))
    clock.now_us += 15 * SECOND // 10
    held = behind.lossy.advances.held(hit(_LIMIT))
    behind.proxy.lose = _ANY

    clock.now_us += 10 * SECOND
    behind.lossy.advances.hand_back_all()
    await _until_cut(behind)
    await behind.back()

    assert held > 0
    lost = behind.lossy.stats.leased_hits["lost"]
    assert await counted(behind.other, hit(_LIMIT)) in (used, used + lost)


async def test_a_hand_back_waits_for_a_server_that_is_away(behind: _Behind) -> None:
    """What is handed back meanwhile comes to the server when it is there again, once."""
    used = await behind.lossy.admitted(60, hit(_LIMIT))
    behind.proxy.refuse = True
    while any(shard.available for shard in behind.lossy.store.shards):
        await asyncio.sleep(0.001)

    behind.lossy.advances.hand_back_all()
    assert await counted(behind.other, hit(_LIMIT)) > used
    await behind.back()
    while await counted(behind.other, hit(_LIMIT)) != used:
        await asyncio.sleep(0.001)

    assert behind.lossy.stats.leased_hits["lost"] == 0


async def test_an_advance_whose_reply_is_lost_is_never_spent(behind: _Behind) -> None:
    """The server has charged it, so others get less, and all together get no more."""
    passed = await behind.lossy.admitted(3, hit(_LIMIT))
    behind.proxy.lose = _ANY

    behind.lossy.advances.charge([[hit(_LIMIT)]] * 20, lambda _: None)
    await _until_cut(behind)
    assert behind.lossy.advances.held(hit(_LIMIT)) == 0
    await behind.back()
    for _ in range(20):
        passed += await behind.lossy.admitted(10, hit(_LIMIT))
        passed += await behind.other.admitted(10, hit(_LIMIT))

    # 20 were counted and not told, and at most half of the rest was given to nobody.
    assert 180 - 90 <= passed <= 180
    assert await counted(behind.other, hit(_LIMIT)) == 200


async def test_while_the_server_is_away_nothing_new_is_given(behind: _Behind) -> None:
    """A process spends what it holds; then the failure policy decides, as of any limit."""
    await behind.lossy.admitted(60, hit(_LIMIT))
    held = behind.lossy.advances.held(hit(_LIMIT))
    behind.proxy.refuse = True
    while any(shard.available for shard in behind.lossy.store.shards):
        await asyncio.sleep(0.001)

    settled = await behind.lossy.ask(*[(hit(_LIMIT),)] * (held + 5))

    outcomes = [one.outcomes[0] for one in settled]
    assert [outcome is not None for outcome in outcomes] == [True] * held + [False] * 5
