"""Queues of denied requests, where counters are."""

from __future__ import annotations

import pytest
import redis

from ratelimit_service.errors import StoreError
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.stores.keys import queue_key, shared_key, slot_of
from ratelimit_service.stores.queues import Queue
from ratelimit_service.stores.redis import Layout, RedisStore
from ratelimit_service.stores.redis.queues import RedisQueues
from tests.servers.redis import RedisServer
from tests.stores.redis_store import started

QUEUE = Queue("edge", "user")


def items(*names: str) -> list[dict[str, str]]:
    return [{"request": f'{{"é": "{name}"}}', "rule": "user"} for name in names]


@pytest.fixture(params=["redis_store", "ring_store", "cluster_store"])
def topology(request: pytest.FixtureRequest) -> RedisStore:
    found: RedisStore = request.getfixturevalue(request.param)
    return found


async def test_the_oldest_make_room(topology: RedisStore) -> None:
    """A queue holds the newest items, and says how many had to go, on every topology."""
    queues = RedisQueues(topology, 3)

    room = [
        await queues.put(QUEUE, items("a", "b"), 0),
        await queues.put(QUEUE, items("c", "d"), 5),
        await queues.put(QUEUE, items(*"efgh"), 0),
    ]
    look = await queues.look(QUEUE)

    assert room == [0, 1, 4]
    assert (look.length, look.dropped) == (3, 1 + 5 + 4)
    assert look.shard == topology.shard_of_key(queue_key(*QUEUE))
    assert look.oldest_us is not None
    assert look.newest_us is not None
    assert look.oldest_us >= look.newest_us >= 0


async def test_a_queue_that_nobody_has_used(topology: RedisStore) -> None:
    """It is empty, and asking about it makes nothing."""
    queues = RedisQueues(topology, 3)

    look = await queues.look(QUEUE)

    assert (look.length, look.oldest_us, look.newest_us, look.dropped) == (0, None, None, 0)


async def test_all_queues_are_listed(topology: RedisStore) -> None:
    """Each queue is listed from its first items on, once, until it is removed and forgotten.

    One that is made again is listed again, also by a process that has listed it before.
    """
    queues, others = RedisQueues(topology, 3), RedisQueues(topology, 3)
    odd = Queue("edge", "\udc80\n\u202e")
    assert await queues.listed() == []
    for queue in (odd, QUEUE, QUEUE):
        await queues.put(queue, items("a"), 0)
        await others.put(queue, items("a"), 0)

    assert await queues.listed() == [QUEUE, odd]
    await queues.forget(QUEUE)
    assert await queues.listed() == [QUEUE, odd]  # it is there

    key = queue_key(*QUEUE)
    await topology.command(key, "DEL", topology.key(key))
    assert not (await others.look(QUEUE)).there
    await others.forget(QUEUE)
    assert await others.listed() == [odd]
    await queues.put(QUEUE, items("a"), 0)
    assert await others.listed() == [QUEUE, odd]


async def test_what_a_worker_reads(redis_server: RedisServer) -> None:
    """Items lie in a stream under the key that is told, in their order, whatever is in them."""
    redis_server.flush()
    layout = Layout(key_prefix="mine:")
    store = RedisStore(redis_server.url, 10_000_000, Stats(), Health(), layout=layout)
    await started(store)
    queues = RedisQueues(store, 100)
    odd = [{"request": "\r\n\x00\u202e", "metadata": ""}]

    await queues.put(QUEUE, items("a", "b") + odd, 0)
    key = (await queues.look(QUEUE)).key
    await store.close()

    with redis.Redis(port=redis_server.port, decode_responses=True) as client:
        found = [fields for _, fields in client.xrange(key)]
        (index,) = set(client.keys("*")) - {key}
        assert client.smembers(index) == {'["edge", "user"]'}
    assert found == items("a", "b") + odd
    assert key.startswith("mine:{")


async def test_a_store_that_is_away(redis_server: RedisServer) -> None:
    """Whoever asks hears that it is away."""
    queues = RedisQueues(RedisStore(redis_server.url, 10_000_000, Stats(), Health()), 3)

    with pytest.raises(StoreError, match="is away"):
        await queues.put(QUEUE, items("a"), 0)
    with pytest.raises(StoreError, match="is away"):
        await queues.look(QUEUE)


async def test_a_key_that_is_no_queue(redis_server: RedisServer, redis_store: RedisStore) -> None:
    """Something else under its key is told, and stays as it is."""
    with redis.Redis(port=redis_server.port) as client:
        client.set(queue_key(*QUEUE), "mine")

        with pytest.raises(StoreError, match="WRONGTYPE"):
            await RedisQueues(redis_store, 3).put(QUEUE, items("a"), 0)
        assert client.get(queue_key(*QUEUE)) == b"mine"


async def test_a_list_that_strangers_write(
    redis_server: RedisServer, redis_store: RedisStore
) -> None:
    """What lies in the list of queues and is none is left out."""
    queues = RedisQueues(redis_store, 3)
    await queues.put(QUEUE, items("a"), 0)
    list_key = redis_store.key(shared_key("queues"))
    strangers = ["[" * 100_000, "[1, 2]", '[["a"], "b"]', '{"a": 1, "b": 2}x', "null", '["a"]']
    with redis.Redis(port=redis_server.port) as client:
        assert client.sadd(list_key, *strangers) == len(strangers)

    assert await queues.listed() == [QUEUE]


def test_queues_have_keys_of_their_own() -> None:
    """No two rules share a queue, and queues lie in many slots."""
    rules = [("a", "b:c"), ("a:b", "c"), ("a", "b"), ("a", "b.dropped"), ("a1:b", ""), ("", "a1:b")]
    many = [("edge", f"path={'x' * number}") for number in range(200)]

    keys = {queue_key(*rule) for rule in rules + many}

    assert len(keys) == len(rules) + len(many)
    assert max(map(len, keys)) <= 90
    assert len({slot_of(key) for key in keys}) > 100
