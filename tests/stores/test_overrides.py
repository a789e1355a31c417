"""Overrides kept in Redis, how processes keep up with them, and counters that start anew."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest
import redis

from ratelimit_service import compiled
from ratelimit_service.algorithms import ALGORITHMS, spec_of
from ratelimit_service.errors import OverrideError, StoreError
from ratelimit_service.health import Health
from ratelimit_service.model import MAX_OVERRIDES, Code, Hit, Limit, Override, Unit
from ratelimit_service.observer import Stats
from ratelimit_service.stores.keys import CounterNames, partition_of, shared_key
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.stores.overrides import OverridesInMemory
from ratelimit_service.stores.redis import RedisStore
from ratelimit_service.stores.redis import overrides as in_redis
from ratelimit_service.stores.redis.connection import Argument, Reply
from ratelimit_service.stores.redis.overrides import OverridesInRedis
from ratelimit_service.stores.redis.ring import owners
from tests.servers.cluster import RedisCluster, SlotMove
from tests.servers.redis import RedisServer
from tests.service.asking import Asking
from tests.service.overriding import BAN, EXEMPT, GRANT, LIMIT, override
from tests.stores.cases import T, charged
from tests.stores.conftest import Time
from tests.stores.redis_store import started
from tests.stores.steered import Process


class Processes:
    """Processes that count in one store."""

    def __init__(self, url: str, clock: Time, stack: AsyncExitStack) -> None:
        self._url, self._clock, self._stack = url, clock, stack

    async def store(self) -> RedisStore:
        store = RedisStore(self._url, 5_000_000, Stats(), Health(), self._clock, key_prefix="rl:")
        await started(store)
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
    assert (await one.overrides.kept.audited(9)).lines == ['{"change": 2}', '{"change": 1}']
    newest, place = await one.overrides.kept.audited(1)
    assert newest == ['{"change": 2}']
    await one.overrides.change([], [], "of a reset")
    assert await one.overrides.kept.audited(9, place) == (['{"change": 1}'], "")


class Reads:
    """How often a server was asked for all overrides, and for some of them by id."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        client.config_resetstat()

    def __call__(self) -> tuple[int, int]:
        stats = self._client.info("commandstats")
        names = ("cmdstat_hscan", "cmdstat_hmget")
        everything, some = (int(stats.get(name, {}).get("calls", 0)) for name in names)
        return everything, some


async def test_only_what_has_changed_is_read(redis_server: RedisServer, clock: Time) -> None:
    """Others read of many overrides those that have changed, and all where nobody says which."""
    redis_server.flush()
    client = redis.Redis(port=redis_server.port)
    async with AsyncExitStack() as stack:
        processes = Processes(redis_server.url, clock, stack)
        one, other = await processes.start(), await processes.start()
        made = [override(BAN, f"user={number}", made_us=T + number) for number in range(900)]
        await one.overrides.change(made[:500], [])
        await other.overrides.refresh()
        reads = Reads(client)
        for number in range(500, 520):  # twenty changes, seen at once
            await one.overrides.change([made[number]], [made[number - 500].id])
        await one.overrides.change([], [], "of a reset")
        await other.overrides.refresh()
        assert one.known == other.known == made[20:520]
        assert reads() == (0, 1)

        await one.overrides.change(made[520:], [])  # a list of 380
        await other.overrides.refresh()
        assert one.known == other.known == made[20:]
        assert reads() == (0, 3)

        for number in range(40):  # more than are noted
            await one.overrides.change([], [made[20 + number].id])
        await other.overrides.refresh()
        assert one.known == other.known == made[60:]
        everything, some = reads()
        assert (everything > 0, some) == (True, 3)

        reads = Reads(client)
        client.lpop("rl:" + shared_key("overrides", "changes").decode())  # as by an older version
        await one.overrides.change([made[0]], [])
        client.lpop("rl:" + shared_key("overrides", "changes").decode())
        await other.overrides.refresh()
        assert one.known == other.known == [made[0], *made[60:]]
        assert reads()[0] > 0
    client.close()


async def test_own_changes_are_not_read_again(redis_server: RedisServer, clock: Time) -> None:
    """Whoever makes many changes reads none of the others' again for them; the others read them."""
    redis_server.flush()
    client = redis.Redis(port=redis_server.port)
    reads = Reads(client)

    async with AsyncExitStack() as stack:
        processes = Processes(redis_server.url, clock, stack)
        one, other = await processes.start(), await processes.start()
        made = [override(BAN, f"user={number}", made_us=T + number) for number in range(9)]
        await one.overrides.change(made[:1], [])
        before = reads()
        for each in made[1:]:
            await one.overrides.change([each], [])
        await one.overrides.change([], [made[4].id, "unknown"])
        assert reads() == before
        await other.overrides.refresh()
        assert reads() == (before[0], before[1] + 1)
        left = [*made[:4], *made[5:]]
        assert one.known == other.known == left

        ban = override(BAN, "user=*", made_us=T + 10)
        await other.overrides.change([ban], [])
        await one.overrides.change([], [made[0].id])  # beside a change that it has not seen
        await other.overrides.refresh()
        assert one.known == other.known == [*left[1:], ban]
    client.close()


async def test_changes_are_in_force_within_a_second(processes: Processes) -> None:
    """A process that follows changes has them by itself."""
    one, other = await processes.start(), await processes.start()
    async with other.overrides.followed():
        await one.overrides.change([override(BAN)], [])
        while not other.steering.active:
            await asyncio.sleep(0.01)


async def test_a_change_among_many_holds_nothing_up(
    clock: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With thousands in force one more is put in force bit by bit, and no old one is compared."""
    process = Process(OverridesInMemory(), clock)
    many = [override(BAN, f"user={number}", made_us=T + number % 7) for number in range(3_000)]
    await process.overrides.change(many, [])
    assert process.known == sorted(many, key=lambda each: (each.made_us, each.id))
    compared = turns = 0
    equal = Override.__eq__

    def counted(one: Override, other: object) -> bool:
        nonlocal compared
        compared += 1
        return equal(one, other)

    monkeypatch.setattr(Override, "__eq__", counted)
    ban = override(BAN, "user=*", made_us=T + 3)
    change = asyncio.create_task(process.overrides.change([ban], [many[5].id]))
    while not change.done():
        turns += 1
        await asyncio.sleep(0)
    assert compared == 1  # the new one, with nothing
    assert turns >= 10
    monkeypatch.undo()

    left = sorted([*many[:5], *many[6:], ban], key=lambda each: (each.made_us, each.id))
    assert process.known == left
    assert process.overrides.patterns == 1


async def test_overrides_that_end_together_hold_nothing_up(clock: Time) -> None:
    """Thousands that end at one moment are forgotten bit by bit, and the others stay."""
    process = Process(OverridesInMemory(), clock)
    many = [
        override(BAN, f"user={number}", made_us=T, until_us=T + 1 if number % 3 else T + 2)
        for number in range(3_000)
    ]
    await process.overrides.change(many, [])
    most = 0
    for moment, left in ((T + 1, many[::3]), (T + 2, [])):
        clock.now_us, before = moment, process.steering.active
        refreshing = asyncio.create_task(process.overrides.refresh())
        while not refreshing.done():
            await asyncio.sleep(0)
            most = max(most, before - process.steering.active)
            before = process.steering.active
        assert sorted(each.id for each in process.known) == sorted(each.id for each in left)
    assert 0 < most <= 50


async def test_few_ended_ones_are_removed_at_once(
    clock: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change takes some ended ones with it, as many as it adds if these are more."""
    process = Process(OverridesInMemory(), clock)
    many = [override(BAN, f"user={number}", made_us=T, until_us=T + 1) for number in range(900)]
    await process.overrides.change(many, [])
    clock.now_us = T + 120_000_000
    removed: list[int] = []
    change = process.overrides.kept.change

    async def noted(added: Sequence[Override], gone: Sequence[str], *audit: str) -> None:
        removed.append(len(gone))
        await change(added, gone, *audit)

    monkeypatch.setattr(process.overrides.kept, "change", noted)
    new = [override(BAN, f"user=new{number}", made_us=T + 2) for number in range(151)]
    await process.overrides.change(new[:1], [])
    await process.overrides.change(new[1:], [])
    assert removed == [100, 150]
    assert process.known == sorted(new, key=lambda each: (each.made_us, each.id))


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
        await process.overrides.change([ban], [])
        own_redis.kill()
        with pytest.raises(StoreError):
            await process.overrides.change([override(EXEMPT)], [ban.id])
        with pytest.raises(StoreError):
            await process.overrides.refresh()
        assert process.known == [ban]

        own_redis.start()
        while process.known:
            with suppress(StoreError):
                await process.overrides.refresh()  # this server has lost all it had
            await asyncio.sleep(0.01)
        assert "Redis has lost the overrides that were in force (1)" in caplog.text
        await process.overrides.change([ban], [])
        assert process.known == [ban]


class Rings:
    """Rings of shards that are databases of one server, by their numbers."""

    def __init__(self, server: RedisServer, directory: Path) -> None:
        self._server, self._directory = server, directory

    def of(self, *numbers: int) -> str:
        lines = [
            f"- {{name: shard-{each}, store: '{self._server.url.removesuffix('0')}{each}'}}"
            for each in numbers
        ]
        file = self._directory / f"{'-'.join(map(str, numbers))}.yaml"
        file.write_text("\n".join(["shards:", *lines]))
        return f"file:{file}"

    def home(self, *numbers: int) -> int:
        """The shard that owns the overrides."""
        names = owners({f"shard-{each}": 1 for each in numbers})
        return int(names[partition_of(shared_key("overrides"))].removeprefix("shard-"))

    def growing(self) -> tuple[list[int], int]:
        """Shards, and one that is the new home if it is added."""
        for last in range(1, 16):
            if self.home(*range(last + 1)) == last:
                return list(range(last)), last
        raise AssertionError


async def test_overrides_outlive_changes_of_the_ring(
    redis_server: RedisServer, tmp_path: Path, clock: Time
) -> None:
    """Whatever shards are added or removed, all overrides are found, and those that ended are not.

    While processes have different rings, each knows what another has changed.
    """
    redis_server.flush()
    rings = Rings(redis_server, tmp_path)
    numbers, added = rings.growing()
    async with AsyncExitStack() as stack:
        old = await Processes(rings.of(*numbers), clock, stack).start()
        ban, limit, exempt = override(BAN), override(LIMIT, number=5), override(EXEMPT)
        await old.overrides.change([ban, limit], [], "first")

        grown = Processes(rings.of(*numbers, added), clock, stack)
        new = await grown.start()
        assert new.known == [ban, limit]
        await new.overrides.change([exempt], [ban.id], "second")
        await old.overrides.refresh()
        assert old.known == [limit, exempt]
        await old.overrides.change([], [limit.id], "third")
        await new.overrides.refresh()
        assert new.known == [exempt]

        # The first home leaves with its copy, and comes back with one that is old by then.
        home = rings.home(*numbers)
        remaining = [each for each in (*numbers, added) if each != home]
        assert remaining
        shrunk = await Processes(rings.of(*remaining), clock, stack).start()
        assert shrunk.known == [exempt]
        await shrunk.overrides.change([ban], [exempt.id], "fourth")
        again = await Processes(rings.of(*numbers), clock, stack).start()
        assert again.known == ([ban] if len(numbers) > 1 else [exempt])
        newest = await grown.start()
        assert newest.known == [ban]
        lines, _ = await newest.overrides.kept.audited(9)
        assert sorted(lines) == ["first", "fourth", "second", "third"]


async def test_a_shard_that_lost_its_copy_gets_another(
    redis_server: RedisServer, tmp_path: Path, clock: Time, caplog: pytest.LogCaptureFixture
) -> None:
    """What one shard of a ring loses the others still know, all of it, and it gets it again."""
    redis_server.flush()
    rings = Rings(redis_server, tmp_path)
    url = rings.of(0, 1, 2)
    many = [override(BAN, f"user={number}") for number in range(450)]
    async with AsyncExitStack() as stack:
        process = await Processes(url, clock, stack).start()
        await process.overrides.change(many, [])
        for number in range(3):
            with redis.Redis(port=redis_server.port, db=number) as client:
                client.flushdb()
            for _ in range(2):
                await process.overrides.refresh()
            assert process.known == many
        with redis.Redis(port=redis_server.port, db=2) as client:
            assert {name.rpartition(b"!")[2] for name in client.scan_iter()} >= {b"overrides"}
            assert client.ttl(f"rl:{shared_key('overrides').decode()}") == -1
        assert "lost" not in caplog.text

        redis_server.flush()
        await process.overrides.refresh()
        assert process.known == []
        assert "Redis has lost the overrides that were in force (450)" in caplog.text


async def test_overrides_move_with_their_slot(redis_cluster: RedisCluster, clock: Time) -> None:
    """While a cluster moves the slot of the overrides they are known, and can be changed."""
    redis_cluster.flush()
    async with AsyncExitStack() as stack:
        processes = Processes(redis_cluster.url, clock, stack)
        one, other = await processes.start(), await processes.start()
        ban, limit = override(BAN), override(LIMIT, number=5)
        await one.overrides.change([ban], [], "first")

        moving = SlotMove(redis_cluster, redis_cluster.slot(shared_key("overrides")))
        moving.begin()
        try:
            await other.overrides.refresh()
            assert other.known == [ban]
            moving.move(*moving.keys())
            await one.overrides.change([limit], [], "second")
            await other.overrides.refresh()
            assert one.known == other.known == (await processes.start()).known == [ban, limit]
        finally:
            moving.end()

        await other.overrides.change([], [ban.id], "third")
        await one.overrides.refresh()
        assert one.known == [limit]
        assert (await one.overrides.kept.audited(9)).lines == ["third", "second", "first"]
        _, place = await one.overrides.kept.audited(1)
        assert (await one.overrides.kept.audited(1, place)).lines == ["second"]


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
            await each.overrides.change(many, [])
            with pytest.raises(OverrideError, match="overrides remove ID"):
                await each.overrides.change([override(BAN)], [])
            await each.overrides.change([override(BAN)], [many[0].id])
            assert len(each.known) == MAX_OVERRIDES

            clock.now_us = T + 120_000_000
            await each.overrides.refresh()
            assert len(each.known) == MAX_OVERRIDES // 2
            await each.overrides.change([override(BAN), override(EXEMPT)], [])
            assert len(each.known) == MAX_OVERRIDES // 2 + 2


class Endless(RedisStore):
    """A store whose server never comes to an end with a scan."""

    async def command(self, place: bytes, *command: Argument, at: str = "") -> Reply:
        if command[0] == "HSCAN":
            return [b"7", []]
        return b"1"


@pytest.mark.skipif(compiled(), reason="no class can be made of the store's then")
async def test_a_copy_without_end(clock: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that goes on telling overrides for ever is left, and not waited for."""
    monkeypatch.setattr(in_redis, "_MOST_LOOKS", 100)
    store = Endless("redis://127.0.0.1:1/0", 1_000, Stats(), Health(), clock)
    process = Process(OverridesInRedis(store), clock)

    with pytest.raises(StoreError, match="does not come to an end with the overrides"):
        await process.overrides.refresh()
    await store.close()


async def test_a_copy_that_nobody_of_ours_has_made(redis_server: RedisServer, clock: Time) -> None:
    """More overrides than there may be, or a stamp that is none, are not taken over."""
    redis_server.flush()
    client = redis.Redis.from_url(redis_server.url)
    stamp, kept = (
        (b"rl:" + shared_key(*name)).decode() for name in (("overrides", "version"), ("overrides",))
    )
    async with AsyncExitStack() as stack:
        process = await Processes(redis_server.url, clock, stack).start()
        client.set(stamp, "9" * 5_000)
        await process.overrides.refresh()
        client.hset(kept, mapping={f"{number}": "{}" for number in range(MAX_OVERRIDES + 1)})
        client.set(stamp, "9")

        with pytest.raises(StoreError, match="Redis has more overrides than 10000"):
            await process.overrides.refresh()
        assert process.known == []


async def test_last_known_overrides_hold(
    redis_server: RedisServer, clock: Time, caplog: pytest.LogCaptureFixture
) -> None:
    """While the store is away or damaged, what was known stays in force, and nothing is changed."""
    redis_server.flush()
    async with AsyncExitStack() as stack:
        processes = Processes(redis_server.url, clock, stack)
        process, ban = await processes.start(), override(BAN)
        await process.overrides.change([ban], [])
        with redis.Redis(port=redis_server.port) as client:
            (name,) = client.keys("rl:*!overrides")
            assert not client.keys("{*!*")
            client.hset(name, "bad", "{torn")
            client.incr(name + b".version")
            await process.overrides.refresh()
            assert process.known == [ban]
            assert "an override in Redis is not in force" in caplog.text

            client.incr(name + b".version")
            client.delete(name)
            client.set(name, "not a hash")
        with pytest.raises(StoreError, match="WRONGTYPE"):
            await process.overrides.refresh()
        with pytest.raises(StoreError):
            await process.overrides.change([override(EXEMPT)], [])
        assert process.known == [ban]
