"""Every store answers the table of cases, and a random walk, with the same integers."""

from __future__ import annotations

import asyncio
import random

import pytest
import redis

from ratelimit_service.model import Hit, Mode
from ratelimit_service.stores import Outcomes, Store
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.stores.redis import RedisStore
from tests.servers.redis import RedisServer
from tests.stores.cases import CASES, MINUTE, Case, T, charged, hit, ok
from tests.stores.conftest import Time


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
async def test_table_of_cases(case: Case, store: Store, clock: Time) -> None:
    """Each row of the table holds on every store."""
    answers = []
    for charge in case.charges:
        clock.now_us = charge.now_us
        answers += await charged(store, [charge.hits])

    assert answers == [charge.outcomes for charge in case.charges]


async def test_random_walk(
    memory: MemoryStore, redis_store: RedisStore, redis_server: RedisServer, clock: Time
) -> None:
    """Over thousands of random requests memory and Redis answer the same, step by step."""
    chance = random.Random(20260512)
    client = redis.Redis.from_url(redis_server.url)
    for _ in range(800):
        clock.now_us += chance.choice([0, 0, 1, 999_999, MINUTE // 2, MINUTE, -1, -MINUTE // 3])
        requests = [_random_hits(chance) for _ in range(chance.choice([1, 1, 2, 30]))]

        expected = await charged(memory, requests)

        assert await charged(redis_store, requests) == expected
        for key in client.scan_iter():
            client.persist(key)  # Redis' expiry runs by a clock that is not the walk's


def _random_hits(chance: random.Random) -> list[Hit]:
    return [
        hit(
            chance.choice([0, 1, 1, 1, 2, 3, 7]),
            key=chance.choice("abcdef"),
            limit=chance.choice([0, 1, 5, 10, 10, 10, 4_294_967_295]),
            mode=chance.choice([Mode.ENFORCED, Mode.ENFORCED, Mode.SHADOW, Mode.QUOTA]),
            count_denied=chance.random() < 0.2,
            refund=chance.random() < 0.1,
        )
        for _ in range(chance.choice([1, 1, 2, 3, 5]))
    ]


async def test_batch_is_settled_in_order(store: Store) -> None:
    """Requests of one batch see each other's charges, in their order."""
    answers = await charged(store, [[hit(2)], [hit(2)], [hit(2)], [hit(1)]])

    assert [outcome.over for (outcome,) in answers if outcome] == [False, False, True, False]


async def test_unwanted_requests_are_not_charged(redis_store: RedisStore) -> None:
    """What nobody waits for any more when its turn comes has no outcome and is not counted."""
    future: asyncio.Future[list[Outcomes]] = asyncio.get_running_loop().create_future()
    requests = [[hit(), hit(key="b")], [hit()], [hit()]]

    redis_store.charge(requests, future.set_result, lambda place: place == 1)

    assert await future == [[], [ok(4)], []]
    assert await charged(redis_store, [[hit()]]) == [[ok(3)]]


async def test_nothing_is_sent_where_nothing_is_wanted(redis_store: RedisStore) -> None:
    """A batch that nobody waits for ends all the same."""
    future: asyncio.Future[list[Outcomes]] = asyncio.get_running_loop().create_future()

    redis_store.charge([[hit()], [hit()]], future.set_result, lambda _: False)

    assert await future == [[], []]


async def test_nothing_to_charge(store: Store) -> None:
    """An empty batch is an empty answer."""
    assert await charged(store, []) == []


async def test_any_microsecond_of_this_century(store: Store, clock: Time) -> None:
    """Window numbers wrap after 2^20 windows without ever mistaking an old count for a new."""
    await charged(store, [[hit(5)]])
    clock.now_us = T + MINUTE * (2**20 - 2)

    (answer,) = await charged(store, [[hit(5)]])

    assert [outcome.over for outcome in answer if outcome] == [False]
