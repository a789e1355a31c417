"""Overrides in Redis while a server, a shard, or a copy of them is away, lost, damaged or moved."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest
import redis

from ratelimit_service import compiled
from ratelimit_service.errors import StoreError
from ratelimit_service.model import MAX_OVERRIDES, read_override
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.stores.keys import partition_of, shared_key
from ratelimit_service.stores.redis import RedisStore
from ratelimit_service.stores.redis import overrides as in_redis
from ratelimit_service.stores.redis.connection import Argument, Reply
from ratelimit_service.stores.redis.overrides import OverridesInRedis
from ratelimit_service.stores.redis.ring import owners
from tests.servers.cluster import RedisCluster, SlotMove
from tests.servers.redis import RedisServer
from tests.service.overriding import BAN, EXEMPT, LIMIT, override
from tests.stores.conftest import Time
from tests.stores.overriding import Process, Processes


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
        line = next(each for each in caplog.messages if each.startswith("lost overrides: "))
        told = json.loads(line.removeprefix("lost overrides: "))
        assert [read_override(each) for each in told["overrides"]] == [ban]
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
        assert sum(each.startswith("lost overrides: ") for each in caplog.messages) == 10
        assert "250 more lost overrides are not told" in caplog.text


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
        _, cursor = await one.overrides.kept.audited(1)
        assert (await one.overrides.kept.audited(1, cursor)).lines == ["second"]


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
    process = Process(OverridesInRedis(store, Health()), clock)

    with pytest.raises(StoreError, match="does not come to an end with the overrides"):
        await process.overrides.refresh()
    await store.close()


@pytest.mark.parametrize("stamp", ["9" * 16, str((1 << 52) - 1), str(1 << 53), "inf", "nan", "x"])
async def test_a_stamp_of_a_stranger(redis_server: RedisServer, clock: Time, stamp: str) -> None:
    """Whatever stands for the stamp, a change that was not refused holds everywhere."""
    redis_server.flush()
    async with AsyncExitStack() as stack:
        processes = Processes(redis_server.url, clock, stack)
        one = await processes.start()
        first, second, third = (override(BAN, f"user={number}") for number in range(3))
        await one.overrides.change([first], [])
        with redis.Redis(port=redis_server.port) as client:
            client.set(f"rl:{shared_key('overrides', 'version').decode()}", stamp)

        late = await processes.start()
        await late.overrides.change([second], [])
        await one.overrides.change([third], [])
        for process in (one, late, await processes.start()):
            await process.overrides.refresh()
            assert process.known == [first, second, third]


async def test_a_copy_that_nobody_of_ours_has_made(
    redis_server: RedisServer, clock: Time, caplog: pytest.LogCaptureFixture
) -> None:
    """More overrides than there may be, or a stamp that is none, are not taken over.

    Health says that there are too many, and what to do, until that is done; the log says it once.
    """
    redis_server.flush()
    client = redis.Redis.from_url(redis_server.url)
    stamp, kept = (
        (b"rl:" + shared_key(*name)).decode() for name in (("overrides", "version"), ("overrides",))
    )
    async with AsyncExitStack() as stack:
        processes = Processes(redis_server.url, clock, stack)
        process = await processes.start()
        client.set(stamp, "9" * 5_000)
        await process.overrides.refresh()
        client.hset(kept, mapping={f"{number}": "{}" for number in range(MAX_OVERRIDES + 1)})
        client.set(stamp, "9")

        for _ in range(2):
            with pytest.raises(StoreError, match="Redis has more overrides than 10000"):
                await process.overrides.refresh()
        assert process.known == []
        told = [each for each in caplog.messages if "more overrides than 10000" in each]
        assert len(told) == 1
        assert processes.health.faults == {
            "overrides": "Redis has more overrides than 10000, so none of them is read, and what "
            f"was known stays in force: remove some from the hash {kept}"
        }

        client.hdel(kept, "0")
        await process.overrides.refresh()
        assert processes.health.faults["overrides"].startswith("10000 of the overrides in Redis ")

        client.delete(kept)
        client.incr(stamp)
        await process.overrides.refresh()
        assert processes.health.faults == {}


@pytest.mark.parametrize(
    "text",
    [
        b"{torn",
        b"[" * 10_000,
        b"[1]",
        b'{"v": 2, "id": "later", "kind": "ban"}',
        b"\xff",
        b"x" * 600_000,
    ],
)
async def test_overrides_that_cannot_be_read_show_in_health(
    redis_server: RedisServer, clock: Time, text: bytes
) -> None:
    """While some cannot be read, health says how many, which is the first, and what to do.

    The others hold; and once all can be read it is well again, however they were mended.
    """
    redis_server.flush()
    async with AsyncExitStack() as stack:
        processes = Processes(redis_server.url, clock, stack)
        process, ban, other = await processes.start(), override(BAN), override(EXEMPT)
        await process.overrides.change([ban, other], [])
        with redis.Redis(port=redis_server.port) as client:
            (name,) = client.keys("rl:*!overrides")
            for mended in ("in its place", "removed"):
                client.hset(name, other.id, text)
                client.incr(name + b".version")
                for _ in range(2):
                    await process.overrides.refresh()
                assert process.known == [ban]
                others = Processes(redis_server.url, clock, stack)
                late = await others.start()
                for each in (processes, others):
                    assert each.health.faults == {
                        "overrides": "1 of the overrides in Redis cannot be read, so they are not "
                        "in force (the log says why): update this program if a newer one has "
                        f"written them, or remove them from the hash {name.decode()}; the first "
                        f"one is {other.id}"
                    }

                if mended == "removed":
                    client.hdel(name, other.id)
                    client.incr(name + b".version")
                else:
                    await process.overrides.change([other], [])
                for one, each in ((process, processes), (late, others)):
                    await one.overrides.refresh()
                    assert each.health.faults == {}


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
