"""Records that processes leave for each other in Redis."""

from __future__ import annotations

import pytest
import redis

from ratelimit_service.model import SECOND_US
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.stores.keys import shared_key
from ratelimit_service.stores.redis import Layout, RedisStore
from ratelimit_service.stores.redis.process_records import RedisProcessRecords
from tests.servers.redis import RedisServer
from tests.stores.redis_store import started


@pytest.fixture(params=["redis_store", "ring_store", "cluster_store"])
def topology(request: pytest.FixtureRequest) -> RedisStore:
    found: RedisStore = request.getfixturevalue(request.param)
    return found


async def test_each_process_has_one_record(topology: RedisStore) -> None:
    """Everybody reads the last record of each process, on every topology."""
    records = RedisProcessRecords(topology)
    await records.leave("minute.1", "one", b"old", 60 * SECOND_US)
    await records.leave("minute.1", "one", b"new\x00", 60 * SECOND_US)
    await records.leave("minute.1", "other", b"[]", 60 * SECOND_US)

    assert await records.read("minute.1") == {"one": b"new\x00", "other": b"[]"}
    assert await records.read("minute.2") == {}


async def test_records_have_the_prefix_and_end(redis_server: RedisServer) -> None:
    """Records lie under the key prefix, and go by themselves."""
    redis_server.flush()
    layout = Layout(key_prefix="mine:")
    store = RedisStore(redis_server.url, 10_000_000, Stats(), Health(), layout=layout)
    await started(store)
    await RedisProcessRecords(store).leave("minute.1", "one", b"[]", 60 * SECOND_US)

    with redis.Redis(port=redis_server.port) as client:
        (key,) = client.keys("*callers*")
        assert key == b"mine:" + shared_key("callers", "minute.1")
        assert 0 < client.pttl(key) <= 60_000
    await store.close()


async def test_a_server_that_is_away_has_none(redis_server: RedisServer) -> None:
    """Without the server nothing is left, nothing is read, and nothing is raised."""
    store = RedisStore(redis_server.url, 10_000_000, Stats(), Health())

    await RedisProcessRecords(store).leave("minute.1", "one", b"[]", 60 * SECOND_US)

    assert await RedisProcessRecords(store).read("minute.1") == {}
    await store.close()
