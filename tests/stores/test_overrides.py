"""Overrides kept in Redis, how processes keep up with them, and counters that start anew."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import redis

from ratelimit_service.algorithms import ALGORITHMS, spec_of
from ratelimit_service.errors import OverrideError
from ratelimit_service.model import MAX_OVERRIDES, Code, Hit, Limit, Override, Unit
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.stores.keys import CounterNames, shared_key
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.stores.overrides import OverridesInMemory
from ratelimit_service.stores.redis import RedisStore
from tests.servers.cluster import RedisCluster
from tests.servers.redis import RedisServer
from tests.service.asking import Asking
from tests.service.overriding import BAN, EXEMPT, GRANT, LIMIT, override
from tests.stores.cases import T, charged
from tests.stores.conftest import Time
from tests.stores.overriding import Process, Processes


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
    newest, cursor = await one.overrides.kept.audited(1)
    assert newest == ['{"change": 2}']
    await one.overrides.change([], [], "of a reset")
    assert await one.overrides.kept.audited(9, cursor) == (['{"change": 1}'], "")


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
        while not other.in_force.active:
            await asyncio.sleep(0.01)


async def test_who_changes_knows_what_others_have_changed(processes: Processes) -> None:
    """Before a change all that there is is known: so one about the same takes its place."""
    first, second = await processes.start(), await processes.start()
    ban = override(BAN)
    await first.overrides.change([ban], [])
    assert second.known == []
    async with second.overrides.changing():
        assert second.known == [ban]


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
        clock.now_us, before = moment, process.in_force.active
        refreshing = asyncio.create_task(process.overrides.refresh())
        while not refreshing.done():
            await asyncio.sleep(0)
            most = max(most, before - process.in_force.active)
            before = process.in_force.active
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
        asking.service.overrides.add(grants)
        services.append(asking)
    names = [f"user=v{number}" for number in range(6)]

    codes = []
    for number in range(9):
        decision = await services[number % 2].ask(*names)
        codes.append(decision.code)
    assert codes == [Code.OK] * 5 + [Code.OVER_LIMIT] * 4
    assert (await services[0].ask("user=v0")).code is Code.OK
    assert (await services[1].ask("user=v0")).code is Code.OVER_LIMIT


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
