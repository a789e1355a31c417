"""A fault of ours on the way to Redis or back: it costs its own hits an answer, nobody else's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from ratelimit_service import compiled
from ratelimit_service.model import FailurePolicy, Hit
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.stores import Outcomes, Settled
from ratelimit_service.stores.redis import RedisStore
from ratelimit_service.stores.redis.batch import Background
from ratelimit_service.stores.redis.batches import Batches
from ratelimit_service.stores.redis.call_window import CallWindow
from ratelimit_service.stores.redis.connection import RedisConnection
from ratelimit_service.stores.redis.server import Server
from tests.servers.cluster import RedisCluster
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisServer
from tests.stores.cases import BROKEN, YEAR, charged, hearing, hit
from tests.stores.redis_store import started
from tests.waiting import PATIENCE_SECONDS

Store = tuple[RedisStore, Stats]


@pytest.fixture(params=["one", "ring", "cluster"])
async def store(
    request: pytest.FixtureRequest, redis_server: RedisServer, tmp_path: Path
) -> AsyncIterator[Store]:
    url = redis_server.url
    redis_server.flush()
    if request.param == "ring":
        url = str(request.getfixturevalue("ring_url"))
    elif request.param == "cluster":
        cluster: RedisCluster = request.getfixturevalue("redis_cluster")
        cluster.flush()
        url = cluster.url
    stats = Stats()
    store = RedisStore(url, 5_000_000, stats, Health())
    await started(store)
    yield store, stats
    await store.close()


def steady(key: str = "a") -> Hit:
    return hit(key=key, limit=1_000, window_us=YEAR)


UNPACKABLE = steady()._replace(addend=1 << 40)
UNKNOWN = steady()._replace(spec=BROKEN)


@pytest.mark.parametrize("bad", [UNPACKABLE, UNKNOWN], ids=["unpackable", "unknown algorithm"])
async def test_hits_that_cannot_be_sent(store: Store, bad: Hit) -> None:
    """Hits that cannot be sent have no outcome, at once; however many, others are counted on."""
    found, stats = store

    for _ in range(10):
        assert await charged(found, [[bad]]) == [[None]]

    answers = [await charged(found, [[steady(str(key))]]) for key in range(20)]
    assert [outcome.remaining for ((outcome,),) in answers if outcome] == [999] * 20
    assert stats.store_errors == {"internal": 10}


async def test_caller_that_cannot_tell_whether_it_waits(store: Store) -> None:
    """A fault in what the caller is asked before sending costs its own requests only."""
    found, _ = store
    told: list[list[Outcomes]] = []

    def wanted(_: int) -> bool:
        raise KeyError("no stream")

    for _ in range(3):
        found.charge([[steady()]], hearing(told.append), wanted)
        assert (await charged(found, [[steady("b")]]))[0] != [None]

    assert told == [[[None]]] * 3


async def test_caller_that_fails_with_its_answer(store: Store) -> None:
    """Whoever fails with their outcomes is told once; others get theirs from the same reply."""
    found, _ = store
    told: list[list[Settled]] = []

    def done(settled: list[Settled]) -> None:
        told.append(settled)
        raise KeyError("no stream")

    for _ in range(5):
        found.charge([[steady()]], done)
        found.charge([[steady("b")]], done)
        await charged(found, [[steady("c")]])

    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(told) < 10:
            await asyncio.sleep(0)
    assert (await charged(found, [[steady("c")]]))[0] != [None]
    assert all(shard.available for shard in found.shards)
    assert len(told) == 10


async def test_fault_in_handling_a_reply(store: Store) -> None:
    """After a fault in handling a reply the same connection answers the next charges."""
    found, _ = store
    (shard, *_) = found.shards
    connection = shard.server.connection
    answered: list[Outcomes] = []

    def told(outcomes: Outcomes | None) -> None:
        if outcomes is not None:
            answered.append(outcomes)
            raise KeyError("no errand")

    for number in range(5):
        shard.charge(Background([[steady()]], told))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(answered) <= number:
                await asyncio.sleep(0)
        assert (await charged(found, [[steady("b")]]))[0] != [None]

    assert shard.server.connection is connection


async def test_fault_in_deciding_without_redis(own_redis: RedisServer) -> None:
    """What can be decided neither with Redis nor without has no outcome, and is answered once."""
    store = RedisStore(own_redis.url, 300_000, Stats(), Health())
    await started(store)
    bad = UNKNOWN._replace(policy=FailurePolicy.LOCAL)

    told: list[list[Outcomes]] = []
    store.charge([[bad]], hearing(told.append))
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not told:
            await asyncio.sleep(0)

    assert (await charged(store, [[steady()]]))[0] != [None]
    assert told == [[[None]]]
    await store.close()


def failing(method: Callable[..., object], times: int) -> Callable[..., object]:
    """The method, which fails so often before it works."""
    left = [None] * times

    def fails(*given: object) -> object:
        if left:
            left.pop()
            raise KeyError(method.__name__)
        return method(*given)

    return fails


@pytest.mark.skipif(compiled(), reason="its methods cannot be replaced then")
@pytest.mark.parametrize(
    ("part", "name", "times"),
    [
        (Batches, "_send", 1),
        (Batches, "_replied", 2),
        (CallWindow, "landed", 2),
        (RedisConnection, "_hand_on_some", 1),
        (RedisConnection, "_hand_on", 1),
        (RedisConnection, "data_received", 1),
    ],
    ids=lambda each: each.__name__ if isinstance(each, type) else None,
)
async def test_counted_again(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, part: type, name: str, times: int
) -> None:
    """Whatever has failed between a process and its Redis, later charges are counted again."""
    stats = Stats()
    store = RedisStore(redis_server.url, 50_000, stats, Health())
    await started(store)

    with monkeypatch.context() as patched:
        patched.setattr(part, name, failing(getattr(part, name), times))
        for _ in range(times):
            await charged(store, [[steady()]])
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await charged(store, [[steady()]]) == [[None]]:
                await asyncio.sleep(0)

    await store.close()


@pytest.mark.skipif(compiled(), reason="its methods cannot be replaced then")
async def test_deadline_after_a_fault(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault where a deadline is kept costs no other charge its own."""
    proxy, stats = Proxy(redis_server.port), Stats()
    port = await proxy.start()
    store = RedisStore(f"redis://127.0.0.1:{port}", 20_000, stats, Health())
    await started(store)
    proxy.hold = True

    with monkeypatch.context() as patched:
        patched.setattr(Server, "when_handed_on", failing(Server.when_handed_on, 1))
        assert await charged(store, [[steady()]]) == [[None]]
        assert await charged(store, [[steady()]]) == [[None]]

    # Whichever of the two was too slow: it is not the silence that ends a connection.
    assert stats.store_errors.keys() <= {"timeout", "overloaded"}
    await store.close()
    await proxy.close()
