"""Advances and hand-backs that get lost on the way: somebody is denied sooner, nobody gets more."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

import pytest

from ratelimit_service.model import Limit, Unit
from tests.servers.redis import RedisServer
from tests.stores.cases import SECOND
from tests.stores.conftest import Time
from tests.stores.leasing import Behind, behind_a_proxy, counted, hit

_LIMIT = Limit(200, Unit.MINUTE, advances=True)
_ANY = re.compile(b".")


@pytest.fixture
async def behind(redis_server: RedisServer, clock: Time) -> AsyncIterator[Behind]:
    async with behind_a_proxy(redis_server, clock) as two:
        yield two


async def test_what_is_lost_on_its_way_back_is_not_handed_back_twice(
    behind: Behind, clock: Time
) -> None:
    """The server has taken a hand-back whose reply is lost. It is not said again."""
    used = await behind.lossy.admitted(60, hit(_LIMIT))
    clock.now_us += 15 * SECOND // 10
    held = behind.lossy.advances.held(hit(_LIMIT))
    behind.proxy.lose = _ANY

    clock.now_us += 10 * SECOND
    behind.lossy.advances.hand_back_all()
    await behind.until_cut()
    await behind.back()

    assert held > 0
    lost = behind.lossy.stats.leased_hits["lost"]
    assert await counted(behind.other, hit(_LIMIT)) in (used, used + lost)


async def test_a_hand_back_waits_for_a_server_that_is_away(behind: Behind) -> None:
    """What is handed back meanwhile comes to the server when it is there again, once."""
    used = await behind.lossy.admitted(60, hit(_LIMIT))
    await behind.lose()

    behind.lossy.advances.hand_back_all()
    assert await counted(behind.other, hit(_LIMIT)) > used
    await behind.back()
    while await counted(behind.other, hit(_LIMIT)) != used:
        await asyncio.sleep(0.001)

    assert behind.lossy.stats.leased_hits["lost"] == 0


async def test_an_advance_whose_reply_is_lost_is_never_spent(behind: Behind) -> None:
    """The server has charged it, so others get less, and all together get no more."""
    passed = await behind.lossy.admitted(3, hit(_LIMIT))
    behind.proxy.lose = _ANY

    behind.lossy.advances.charge([[hit(_LIMIT)]] * 20, lambda _: None)
    await behind.until_cut()
    assert behind.lossy.advances.held(hit(_LIMIT)) == 0
    await behind.back()
    for _ in range(20):
        passed += await behind.lossy.admitted(10, hit(_LIMIT))
        passed += await behind.other.admitted(10, hit(_LIMIT))

    # 20 were counted and not told, and at most half of the rest was given to nobody.
    assert 180 - 90 <= passed <= 180
    assert await counted(behind.other, hit(_LIMIT)) == 200


async def test_while_the_server_is_away_nothing_new_is_given(behind: Behind) -> None:
    """A process spends what it holds; then the failure policy decides, as of any limit."""
    await behind.lossy.admitted(60, hit(_LIMIT))
    held = behind.lossy.advances.held(hit(_LIMIT))
    await behind.lose()

    settled = await behind.lossy.ask(*[(hit(_LIMIT),)] * (held + 5))

    outcomes = [one.outcomes[0] for one in settled]
    assert [outcome is not None for outcome in outcomes] == [True] * held + [False] * 5
