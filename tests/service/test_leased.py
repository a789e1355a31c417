"""Leased limits as callers and operators see them: rules, overrides, bans, memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ratelimit_service.model import Code
from tests.servers.redis import RedisServer
from tests.service.asking import Asking
from tests.service.overriding import BAN, EXEMPT, GRANT, LIMIT, override
from tests.service.reserving import Gateway
from tests.stores.conftest import Time
from tests.stores.leasing import Process, two_processes

_RULES = """\
domain: edge
descriptors:
- key: user
  rate_limit: {unit: hour, requests_per_unit: 200, sync: leased}
- key: plan
  rate_limit: {unit: hour, requests_per_unit: 2}
- key: stream
  rate_limit: {unit: hour, requests_per_unit: 200, sync: leased, reservations: true}
"""


@pytest.fixture
async def clock() -> Time:
    return Time()


@pytest.fixture
async def two(redis_server: RedisServer, clock: Time) -> AsyncIterator[list[Process]]:
    async with two_processes(redis_server, clock) as processes:
        yield processes


def serving(directory: Path, process: Process, clock: Time) -> Asking:
    return Asking(directory, _RULES, store=process.advances, clock=clock)


async def passed(asking: Asking, times: int, *texts: str) -> int:
    """How many of so many equal requests pass, of which each is answered before the next."""
    codes = [(await asking.ask(*texts)).code for _ in range(times)]
    return codes.count(Code.OK)


async def test_two_processes_admit_one_limit(
    tmp_path: Path, two: list[Process], clock: Time
) -> None:
    """However their calls are mixed, callers get the limit and no more."""
    one, other = [serving(tmp_path, process, clock) for process in two]
    total = 0
    for _ in range(30):
        total += await passed(one, 5, "user=bob")
        total += await passed(other, 5, "user=bob")

    assert total == 200
    assert one.service is not other.service
    assert two[0].stats.leased_hits["spent"] > 0


async def test_remaining_counts_what_is_left_in_redis_and_here(
    tmp_path: Path, two: list[Process], clock: Time
) -> None:
    """While one process alone is asked, `remaining` is exact, and it is never negative."""
    asking = serving(tmp_path, two[0], clock)

    told = [(await asking.ask("user=bob")).statuses[0].remaining for _ in range(100)]

    assert told == list(range(199, 99, -1))


async def test_the_denied_wait_for_a_second_at_most(
    tmp_path: Path, two: list[Process], clock: Time
) -> None:
    """Another process may hand back what it holds, so nobody is sent away for the whole window."""
    asking = serving(tmp_path, two[0], clock)
    await passed(asking, 200, "user=bob")

    denied = await asking.ask("user=bob")

    assert denied.code is Code.OVER_LIMIT
    assert denied.statuses[0].reset_us == 1_000_000


async def test_another_limit_of_the_request_denies(
    tmp_path: Path, two: list[Process], clock: Time
) -> None:
    """A denied request spends nothing of a leased limit."""
    asking = serving(tmp_path, two[0], clock)
    await passed(asking, 40, "user=bob")
    before = (await asking.ask("user=bob")).statuses[0].remaining

    assert await passed(asking, 10, "user=bob", "plan=free") == 2
    after = (await asking.ask("user=bob")).statuses[0].remaining

    assert (before, after) == (159, 156)


async def test_an_override_takes_its_hits_from_the_balance(
    tmp_path: Path, two: list[Process], clock: Time
) -> None:
    """With a `limit` or a `grant` each hit asks the server; without it balances pay again."""
    asking = serving(tmp_path, two[0], clock)
    await passed(asking, 40, "user=bob")
    for one in (override(LIMIT, number=300), override(GRANT, number=5)):
        spent = two[0].stats.leased_hits["spent"]
        asking.service.overrides.add([one])

        assert await passed(asking, 5, "user=bob") == 5
        assert two[0].stats.leased_hits["spent"] == spent

        asking.service.overrides.remove([one])


async def test_a_ban_and_an_exemption_hold_at_once(
    tmp_path: Path, two: list[Process], clock: Time
) -> None:
    """What is held helps nobody who is banned, and nobody who is exempt needs it."""
    asking = serving(tmp_path, two[0], clock)
    await passed(asking, 40, "user=bob")
    spent = two[0].stats.leased_hits["spent"]
    for one, passing in ((override(BAN), 0), (override(EXEMPT), 5)):
        asking.service.overrides.add([one])

        assert await passed(asking, 5, "user=bob") == passing
        assert two[0].stats.leased_hits["spent"] == spent

        asking.service.overrides.remove([one])


async def test_in_memory_a_leased_limit_is_exact(tmp_path: Path) -> None:
    """Counters in memory need no advances."""
    asking = Asking(tmp_path, _RULES)

    assert await passed(asking, 250, "user=bob") == 200


async def test_reservations_beside_leased_limits(
    tmp_path: Path, two: list[Process], clock: Time
) -> None:
    """With reservations every hit asks Redis; without them a reservation only asks, and settles."""
    one, other = [serving(tmp_path, process, clock) for process in two]
    first, second = Gateway(one, "edge"), Gateway(other, "edge")

    held = await first.reserve(150, "stream=a")
    assert not await second.reserve(51, "stream=a")
    assert await passed(other, 51, "stream=a") == 50
    assert await second.commit(held, 100, "stream=a")
    assert await passed(one, 51, "stream=a") == 50
    assert two[0].stats.leased_hits["spent"] == two[1].stats.leased_hits["spent"] == 0

    for gateway in (first, second):
        assert await gateway.reserve(200, "user=bob")
    assert not await first.commit(await first.reserve(150, "user=bob"), 150, "user=bob")
    assert await passed(one, 51, "user=bob") == 50
