"""Where overrides are kept, and how processes keep up with them; counters that start anew."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest
import redis

from ratelimit_service.algorithms import ALGORITHMS, spec_of
from ratelimit_service.errors import OverrideError, SettingsError, StoreError
from ratelimit_service.health import Health
from ratelimit_service.model import MAX_OVERRIDES, Code, Hit, Limit, Override, Unit
from ratelimit_service.observer import Stats
from ratelimit_service.rules.tree import Snapshot
from ratelimit_service.service import Service
from ratelimit_service.service.overrides import Overrides
from ratelimit_service.settings import Settings
from ratelimit_service.stores.keys import CounterNames
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.stores.overrides import KeptOverrides, OverridesInMemory
from ratelimit_service.stores.redis import RedisStore
from ratelimit_service.stores.redis.overrides import OverridesInRedis
from tests.servers.cluster import RedisCluster
from tests.servers.redis import RedisServer
from tests.service.asking import Asking
from tests.service.overriding import BAN, EXEMPT, GRANT, LIMIT, override
from tests.stores.cases import T, charged
from tests.stores.conftest import Time


class Process:
    """What one process knows of overrides that are kept somewhere."""

    def __init__(self, kept: KeptOverrides, clock: Time) -> None:
        store, settings = MemoryStore(10, Stats(), Health(), clock), Settings()
        self.steering = Service(lambda: Snapshot(0, {}), store, settings, Stats(), clock).steering
        self.overrides = Overrides(kept, self.steering, Stats(), clock)

    @property
    def known(self) -> list[Override]:
        assert len(self.overrides.in_force()) == self.steering.active
        return self.overrides.in_force()


class Processes:
    """Processes that count in one store."""

    def __init__(self, url: str, clock: Time, stack: AsyncExitStack) -> None:
        self._url, self._clock, self._stack = url, clock, stack

    async def store(self) -> RedisStore:
        store = RedisStore(self._url, 5_000_000, Stats(), Health(), self._clock, key_prefix="rl:")
        await store.start()
        self._stack.push_async_callback(store.close)
        return store

    async def start(self) -> Process:
        process = Process(OverridesInRedis(await self.store()), self._clock)
        await process.overrides.refresh()
        return process


@pytest.fixture(params=["redis", "ring", "cluster"])
async def processes(request: pytest.FixtureRequest, clock: Time) -> AsyncIterator[Processes]:
    url: str
    if request.param == "cluster":
        cluster: RedisCluster = request.getfixturevalue("redis_cluster")
        cluster.flush()
        url = cluster.url
    else:
        server: RedisServer = request.getfixturevalue("redis_server")
        server.flush()
        url = server.url if request.param == "redis" else request.getfixturevalue("ring_url")
    async with AsyncExitStack() as stack:
        yield Processes(url, clock, stack)


async def test_all_processes_know_all_overrides(processes: Processes) -> None:
    """What one process changes every other one knows when it looks, also one that comes later."""
    one, other = await processes.start(), await processes.start()
    ban, limit = override(BAN), override(LIMIT, number=5)

    await one.overrides.change([ban, limit], [], '{"change": 1}')
    await other.overrides.refresh()
    assert one.known == other.known == [ban, limit]

    exempt = override(EXEMPT)
    await other.overrides.change([exempt], [ban.id, "unknown"], '{"change": 2}')
    await one.overrides.refresh()
    assert one.known == other.known == (await processes.start()).known == [limit, exempt]
    assert await one.overrides.kept.audited(9) == ['{"change": 2}', '{"change": 1}']


async def test_changes_are_in_force_within_a_second(processes: Processes) -> None:
    """A process that follows changes has them by itself."""
    one, other = await processes.start(), await processes.start()
    async with other.overrides.followed():
        await one.overrides.change([override(BAN)], [], None)
        while not other.steering.active:
            await asyncio.sleep(0.01)


async def test_reset_lets_counters_start_anew(processes: Processes, clock: Time) -> None:
    """Whatever counts, a counter that is reset is as new, and the others stay."""
    await resets(await processes.store())
    await resets(MemoryStore(1_000, Stats(), Health(), clock))


async def resets(store: RedisStore | MemoryStore) -> None:
    full, other = counters("full"), counters("other")
    for hit in (*full, *other):
        ((outcome,),) = await charged(store, [[hit]])
        assert outcome is not None
        assert (outcome.over, outcome.remaining) == (False, 0)

    await store.forget(full)

    found = await charged(store, [[hit] for hit in (*full, *other)])
    overs = [outcome.over for each in found for outcome in each if outcome is not None]
    assert overs == [False] * len(full) + [True] * len(other)


def counters(value: str) -> list[Hit]:
    """A hit that fills a counter, for each algorithm."""
    hits = []
    for name, algorithm in ALGORITHMS.items():
        spec = spec_of(Limit(3, Unit.HOUR, algorithm=name))
        lease = value.encode().ljust(8, b".") if algorithm.leases else b""
        hits.append(Hit(CounterNames("edge", spec).key([("user", value)]), spec, 3, lease=lease))
    return hits


RULES = "{domain: edge, descriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 2}}]}"


async def test_grants_are_spent_wherever_counters_lie(processes: Processes, tmp_path: Path) -> None:
    """Requests that charge several servers spend grants exactly, with two processes at once."""
    grants = [override(GRANT, "user=*", 3), override(GRANT, "user=v0", 1)]
    services = []
    for number in range(2):
        directory = tmp_path / str(number)
        directory.mkdir()
        asking = Asking(directory, RULES, store=await processes.store())
        asking.service.steering.add(grants)
        services.append(asking)
    names = [f"user=v{number}" for number in range(6)]

    codes = []
    for number in range(9):
        decision = await services[number % 2].ask(*names)
        codes.append(decision.code)
    assert codes == [Code.OK] * 5 + [Code.OVER_LIMIT] * 4
    assert (await services[0].ask("user=v0")).code is Code.OK
    assert (await services[1].ask("user=v0")).code is Code.OVER_LIMIT


async def test_overrides_hold_while_redis_is_away(
    own_redis: RedisServer, clock: Time, caplog: pytest.LogCaptureFixture
) -> None:
    """A ban stays in force while its server is down; if it was lost there, the log says so."""
    async with AsyncExitStack() as stack:
        process, ban = await Processes(own_redis.url, clock, stack).start(), override(BAN)
        await process.overrides.change([ban], [], None)
        own_redis.kill()
        with pytest.raises(StoreError):
            await process.overrides.change([override(EXEMPT)], [ban.id], None)
        with pytest.raises(StoreError):
            await process.overrides.refresh()
        assert process.known == [ban]

        own_redis.start()
        while process.known:
            with suppress(StoreError):
                await process.overrides.refresh()  # this server has lost all it had
            await asyncio.sleep(0.01)
        assert "Redis has lost the overrides that were in force (1)" in caplog.text
        await process.overrides.change([ban], [], None)
        assert process.known == [ban]


async def test_there_are_so_many_at_most(redis_server: RedisServer, clock: Time) -> None:
    """Above the bound nothing is added, and the error says what to do; ended ones make room."""
    redis_server.flush()
    async with AsyncExitStack() as stack:
        process = await Processes(redis_server.url, clock, stack).start()
        in_memory = Process(OverridesInMemory(), clock)
        for each in (process, in_memory):
            until_us = T + 1
            many = [
                override(BAN, f"user={number}", until_us=until_us if number % 2 else None)
                for number in range(MAX_OVERRIDES)
            ]
            clock.now_us = T
            await each.overrides.change(many, [], None)
            with pytest.raises(OverrideError, match="overrides remove ID"):
                await each.overrides.change([override(BAN)], [], None)
            await each.overrides.change([override(BAN)], [many[0].id], None)
            assert len(each.known) == MAX_OVERRIDES

            clock.now_us = T + 120_000_000
            await each.overrides.refresh()
            assert len(each.known) == MAX_OVERRIDES // 2
            await each.overrides.change([override(BAN), override(EXEMPT)], [], None)
            assert len(each.known) == MAX_OVERRIDES // 2 + 2


async def test_last_known_overrides_hold(
    redis_server: RedisServer, clock: Time, caplog: pytest.LogCaptureFixture
) -> None:
    """While the store is away or damaged, what was known stays in force, and nothing is changed."""
    redis_server.flush()
    async with AsyncExitStack() as stack:
        processes = Processes(redis_server.url, clock, stack)
        process, ban = await processes.start(), override(BAN)
        await process.overrides.change([ban], [], None)
        with redis.Redis(port=redis_server.port) as client:
            (name,) = client.keys("rl:*!overrides")
            assert not client.keys("{*!*")
            client.hset(name, "bad", "{torn")
            client.set(name + b".version", "another")
            await process.overrides.refresh()
            assert process.known == [ban]
            assert "an override in Redis is not in force" in caplog.text

            client.set(name + b".version", "third")
            client.delete(name)
            client.set(name, "not a hash")
        with pytest.raises(StoreError, match="WRONGTYPE"):
            await process.overrides.refresh()
        with pytest.raises(StoreError):
            await process.overrides.change([override(EXEMPT)], [], None)
        assert process.known == [ban]


async def test_overrides_are_kept_in_a_file(tmp_path: Path, clock: Time) -> None:
    """With counters in memory a file keeps overrides over a restart; it is replaced as a whole."""
    path = tmp_path / "overrides.json"
    process, ban = Process(OverridesInMemory(str(path)), clock), override(BAN)
    limit = override(LIMIT, "user=*", 7, until_us=T + 5)
    await process.overrides.change([ban, limit], [], None)

    again = Process(OverridesInMemory(str(path)), clock)
    await again.overrides.refresh()
    assert again.known == [ban, limit]
    await again.overrides.change([], [ban.id], None)
    assert [each["id"] for each in json.loads(path.read_text())["overrides"]] == [limit.id]
    assert files(tmp_path) == ["overrides.json"]

    clock.now_us = T + 5
    await again.overrides.refresh()
    assert again.known == []


def files(directory: Path) -> list[str]:
    return [each.name for each in directory.iterdir()]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "cannot be used"),
        ('{"v": 2, "overrides": []}', "another version"),
        ('{"v": 1, "overrides": [{"v": 1, "kind": "banish"}]}', "ban, exempt, limit, grant"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, text: str, said: str) -> None:
    """A file that is damaged, or of another version, is an error that names it."""
    path = tmp_path / "overrides.json"
    path.write_text(text)

    with pytest.raises(SettingsError, match=f"overrides.json.*{said}"):
        OverridesInMemory(str(path))


async def test_a_file_that_cannot_be_written(tmp_path: Path, clock: Time) -> None:
    """If the file cannot be written nothing has changed, and the error says so."""
    directory = tmp_path / "gone"
    directory.mkdir()
    process = Process(OverridesInMemory(str(directory / "overrides.json")), clock)
    directory.rmdir()

    with pytest.raises(StoreError, match="nothing was changed"):
        await process.overrides.change([override(BAN)], [], None)
    assert process.known == []
