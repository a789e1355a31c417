"""The failure policy `local`: each process's share, from zero, and handed back.

It is long because it follows the counts from when the store goes until it has been told of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial

import pytest
import redis

from ratelimit_service.algorithms import ALGORITHMS, capacity_of, spec_of
from ratelimit_service.model import FailurePolicy, Hit, Limit, Mode, Unit
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.stores.local import Local
from ratelimit_service.stores.redis import RedisStore
from ratelimit_service.stores.redis.script import MAX_CALL_WEIGHT, weight
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisServer
from tests.stores import algorithms
from tests.stores.cases import MINUTE, SECOND, YEAR, T, charged
from tests.stores.cases import hit as minutely
from tests.stores.redis_store import GENEROUS_US, started
from tests.waiting import PATIENCE_SECONDS, until


def store_at(server: RedisServer) -> RedisStore:
    return RedisStore(server.url, GENEROUS_US, Stats(), Health())


def hang(server: RedisServer, *stores: RedisStore) -> None:
    """Lets a server hang, and ends the connections to it, so that nobody waits for its answers."""
    server.stop()
    for store in stores:
        for shard in store.shards:
            assert shard.server.connection is not None
            shard.server.connection.close("it hangs")


def hit(addend: int = 1, *, limit: int = 10, key: str = "a") -> Hit:
    one = minutely(addend, limit=limit, key=key, window_us=YEAR)
    return one._replace(policy=FailurePolicy.LOCAL)


@pytest.fixture
async def stores(own_redis: RedisServer) -> AsyncIterator[list[RedisStore]]:
    """Three processes that know of each other."""
    found = [store_at(own_redis) for _ in range(3)]
    for store in found:
        await started(store)
    shards = [shard for store in found for shard in store.shards]
    await until(lambda: {shard.processes for shard in shards} == {3})
    yield found
    for store in found:
        await store.close()


async def admitted(store: RedisStore, one: Hit, times: int) -> int:
    answers = await charged(store, [[one]] * times)
    return sum(outcome.charged for (outcome,) in answers if outcome)


async def counted(store: RedisStore, one: Hit, remaining: int) -> None:
    """Waits until so much is left in the store itself."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            ((outcome,),) = await charged(store, [[one._replace(addend=0)]])
            if outcome and not outcome.local and outcome.remaining == remaining:
                return
            await asyncio.sleep(0.01)


async def test_each_process_gets_its_share(
    stores: list[RedisStore], own_redis: RedisServer
) -> None:
    """Of a limit of 10 each of three processes admits 4, whatever was counted before."""
    await charged(stores[0], [[hit(7)]])
    hang(own_redis, *stores)

    assert [await admitted(store, hit(), 20) for store in stores] == [4, 4, 4]


async def test_what_was_counted_is_handed_back(
    stores: list[RedisStore], own_redis: RedisServer
) -> None:
    """A store that goes on is told what was counted without it, beyond its limit if need be."""
    await charged(stores[0], [[hit(3)]])
    hang(own_redis, *stores)
    assert [await admitted(store, hit(), 2) for store in stores] == [2, 2, 2]

    own_redis.cont()

    await counted(stores[0], hit(), 10 - 3 - 6)


HANDED = [
    algorithms.FIRST_HIT,
    algorithms.UTC_MONTH,
    algorithms.YEARLY_SLIDING,
    algorithms.PARTS,
    algorithms.LOG,
    algorithms.TOKENS,
    algorithms.METER,
    algorithms.LEASES,
]


@pytest.mark.parametrize("limit", HANDED, ids=lambda limit: spec_of(limit).key)
async def test_every_algorithm_counts_here_and_hands_back(
    own_redis: RedisServer, limit: Limit
) -> None:
    """What one process counts alone is in the store afterwards, as if it had been there."""
    store = store_at(own_redis)
    await started(store)
    one = algorithms.hit(limit, lease=b"lease--1")._replace(policy=FailurePolicy.LOCAL)
    hang(own_redis, store)
    ((outcome,),) = await charged(store, [[one._replace(addend=2)]])
    assert outcome is not None
    assert (outcome.local, outcome.remaining, outcome.charged) == (True, capacity_of(limit) - 2, 2)

    own_redis.cont()

    await counted(store, one, capacity_of(limit) - 2)
    await store.close()


COUNTS_DENIED = [
    algorithms.FIRST_HIT,
    algorithms.UTC_MONTH,
    algorithms.SLIDING._replace(unit=Unit.YEAR),
    algorithms.PARTS,
    algorithms.LOG,
]


@pytest.mark.parametrize("limit", COUNTS_DENIED, ids=lambda limit: spec_of(limit).key)
@pytest.mark.parametrize("mode", [Mode.ENFORCED, Mode.QUOTA])
async def test_all_that_was_counted_beyond_the_limit_is_handed_back(
    own_redis: RedisServer, limit: Limit, mode: Mode
) -> None:
    """Of what counts although it is denied the store is told all, not only up to the limit."""
    store = store_at(own_redis)
    await started(store)
    one = algorithms.hit(limit, count_denied=True)
    one = one._replace(mode=mode, policy=FailurePolicy.LOCAL)
    hang(own_redis, store)
    for _ in range(5):
        await charged(store, [[one._replace(addend=1_000)]])

    own_redis.cont()

    # Another store looks: a look of this one, as long as it counts here, would raise the limit.
    onlooker = store_at(own_redis)
    await started(onlooker)
    roomy = one._replace(spec=one.spec.with_numbers(10_000, one.spec.rate))
    await counted(onlooker, roomy, 5_000)
    await onlooker.close()
    await store.close()


HELD = [
    algorithms.FIRST_HIT,
    algorithms.SLIDING,
    algorithms.PARTS,
    algorithms.LOG._replace(requests_per_unit=6),
    algorithms.TOKENS._replace(burst=6),
    algorithms.METER._replace(burst=6),
]


@pytest.mark.parametrize("limit", HELD, ids=lambda limit: spec_of(limit).key)
def test_more_processes_than_when_it_was_counted(limit: Limit) -> None:
    """What one process counted on the whole limit is handed back whole when others have come."""
    local = Local(Stats())
    one = algorithms.hit(limit, capacity_of(limit))._replace(policy=FailurePolicy.LOCAL)
    (outcome,) = local.charge([one], 1, T)
    assert outcome.charged == capacity_of(limit)

    ((requests, _),) = local.hand_back(3, T)

    assert sum(each.addend for (each,) in requests) == capacity_of(limit)


@pytest.mark.parametrize(
    "limit", [*HELD, algorithms.LEASES._replace(requests_per_unit=6)], ids=lambda one: one.algorithm
)
def test_pool_that_denied_a_low_priority_last(limit: Limit) -> None:
    """All that a pool has counted is handed back, also if the limit asked last leaves a reserve."""
    low, least = limit._replace(pool="p", reserved=4), capacity_of(limit) - 4
    refills = ALGORITHMS[limit.algorithm].refills
    low = low._replace(burst=least) if refills else low._replace(requests_per_unit=least)
    local = Local(Stats())
    for number in range(capacity_of(limit)):
        (outcome,) = local.charge([algorithms.hit(limit, lease=b"lease--%d" % number)], 1, T)
        assert outcome.charged == 1
    (outcome,) = local.charge([algorithms.hit(low, lease=b"lease--x")], 1, T)
    assert outcome.over

    ((requests, _),) = local.hand_back(1, T)

    store = Local(Stats())
    for (each,) in requests:
        store.charge([each], 1, T)
    (found,) = store.charge([algorithms.hit(limit, 0)], 1, T)
    assert found.remaining == 0


def test_shares_follow_the_number_of_processes() -> None:
    """A share is the Nth part by the number of now, also while others are being handed back."""
    local = Local(Stats())
    buckets = algorithms.TOKENS._replace(requests_per_unit=12, burst=12)
    local.charge([algorithms.hit(buckets, key="a")], 3, T)
    local.charge([algorithms.hit(buckets, key="b")], 3, T)
    handed = [next(back := local.hand_back(3, T))]

    one = hit(4, limit=12)
    assert local.charge([one], 3, T)[0].charged == 4
    assert local.charge([one._replace(key=hit(key="b").key)], 4, T)[0].over

    handed += back
    assert [requests for requests, _ in handed] == [
        [[one._replace(mode=Mode.SHADOW, count_denied=True)] for one in (first,)]
        for first in (algorithms.hit(buckets, key="a"), algorithms.hit(buckets, key="b"))
    ]
    assert len({left_us for _, left_us in handed}) == 1


def test_ended_leases_are_not_handed_back() -> None:
    """A lease that has ended while the store was away is over, also beside one that has not."""
    local = Local(Stats())
    one = algorithms.hit(algorithms.LEASES)._replace(policy=FailurePolicy.LOCAL)
    local.charge([one._replace(lease=b"lease--1")], 1, T)
    local.charge([one._replace(lease=b"lease--2")], 1, T + one.spec.window_us - 1)

    ((requests, _),) = local.hand_back(1, T + one.spec.window_us)

    assert [hit.addend for (hit,) in requests] == [1]
    ((told,),) = requests
    assert b"lease--2" in told.lease
    assert b"lease--1" not in told.lease


async def test_lease_taken_alone_is_given_back_by_its_id(own_redis: RedisServer) -> None:
    """A lease that was handed to the store is known there."""
    store = store_at(own_redis)
    await started(store)
    one = algorithms.hit(algorithms.LEASES, lease=b"lease--1")
    one = one._replace(policy=FailurePolicy.LOCAL)
    hang(own_redis, store)
    await charged(store, [[one], [one._replace(lease=b"lease--2")]])
    own_redis.cont()
    await counted(store, one, 1)

    ((outcome,),) = await charged(store, [[one._replace(refund=True)]])

    assert outcome is not None
    assert (outcome.remaining, outcome.charged) == (2, 1)
    await store.close()


FULL = [algorithms.LEASES, algorithms.TOKENS._replace(unit=Unit.DAY)]


@pytest.mark.parametrize("limit", FULL, ids=lambda limit: limit.algorithm)
async def test_limit_lowered_while_the_store_is_away(own_redis: RedisServer, limit: Limit) -> None:
    """Buckets and leases are full by the limit that was asked for last, also if it only denied."""
    store = store_at(own_redis)
    await started(store)
    one = algorithms.hit(limit, lease=b"lease--1")._replace(policy=FailurePolicy.LOCAL)
    lower = one._replace(spec=one.spec.with_numbers(2, one.spec.rate))
    hang(own_redis, store)
    assert await admitted(store, one, 3) == 3
    assert await admitted(store, lower, 1) == 0

    own_redis.cont()

    await counted(store, lower, 0)
    await counted(store, one, 1)
    await store.close()


async def test_found_too_late_by_the_server(own_redis: RedisServer) -> None:
    """A charge that the server finds too late, as its clock has stepped, is sent again: once."""
    store = store_at(own_redis)
    await started(store)
    (shard,) = store.shards
    assert shard.server.clock.ahead_us is not None
    shard.server.clock.ahead_us -= MINUTE  # as after a step of the server's clock

    ((outcome,),) = await charged(store, [[hit()]])

    assert outcome is not None
    assert (outcome.local, outcome.remaining) == (False, 9)
    await store.close()


async def test_denied_beside_another_policy_counts_nowhere(own_redis: RedisServer) -> None:
    """What this process counts is given back if the policy of another descriptor denies."""
    store = store_at(own_redis)
    await started(store)
    hang(own_redis, store)
    closed = hit(key="b")._replace(policy=FailurePolicy.CLOSED)

    await charged(store, [[hit(), closed]])

    assert await admitted(store, hit(), 20) == 10
    await store.close()


class Behind:
    """A store behind a proxy, one process alone."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.proxy = Proxy(server.port)
        self.stats = Stats()

    async def start(self, timeout_us: int = GENEROUS_US) -> None:
        port = await self.proxy.start()
        url = f"redis://127.0.0.1:{port}/0"
        self.store = RedisStore(url, timeout_us, self.stats, Health())
        await started(self.store)
        (self.shard,) = self.store.shards

    async def close(self) -> None:
        await self.store.close()
        await self.proxy.close()

    async def outage(self) -> None:
        """Ends all connections, and lets none be made, until `proxy.refuse` is taken back."""
        self.proxy.refuse = True
        await until(lambda: not self.shard.available)

    async def hold(self) -> None:
        """Lets nothing through any more, until charges are counted here at once."""
        self.proxy.hold = True
        while self.shard.available:
            await charged(self.store, [[hit(key="probe")]])

    @property
    def connections(self) -> int:
        """How many connections the store has opened. It leaves one that is silent for a second."""
        return self.proxy.accepted

    def counts(self, keys: Sequence[str]) -> list[int]:
        """What each counter holds in Redis."""
        with redis.Redis(port=self.server.port) as client:
            states = client.mget([hit(key=key).key for key in keys])
        return [int(state or 0) & 0xFFFFFFFF for state in states]


@pytest.fixture
async def behind(own_redis: RedisServer) -> AsyncIterator[Behind]:
    behind = Behind(own_redis)
    yield behind
    await behind.close()


@pytest.mark.parametrize("fault", ["hold", "cut", "slow"])
async def test_server_that_turns_sick_again_while_it_is_told(behind: Behind, fault: str) -> None:
    """Whatever happens while a server is told what was counted without it, it hears of all."""
    await behind.start(timeout_us=20_000)
    keys = [f"{number}" for number in range(3_000)]
    await behind.hold()
    answers = await charged(behind.store, [[hit(3, key=key)] for key in keys])
    assert [outcome.charged for (outcome,) in answers if outcome] == [3] * 3_000

    for _ in range(2):
        before = sum(behind.counts(keys))
        behind.proxy.clear()
        await until(partial(_more, behind, keys, before))
        if fault == "cut":
            behind.proxy.cut = True
            await until(lambda: not behind.proxy.cut)
        elif fault == "hold":
            await behind.hold()
        else:
            behind.proxy.delay_seconds = 0.1
            while behind.shard.available:
                await charged(behind.store, [[hit(key="probe")]])
    behind.proxy.clear()

    await until(lambda: min(behind.counts(keys)) >= 3)
    if behind.connections == 1:  # what was counted as a connection was lost is counted again
        assert set(behind.counts(keys)) == {3}


OWED = [algorithms.SLIDING if one is algorithms.YEARLY_SLIDING else one for one in HANDED]
"""Ticks of a year's window are minutes long."""


@pytest.mark.parametrize("limit", OWED, ids=lambda limit: spec_of(limit).key)
def test_owed_as_long_as_it_counts(limit: Limit) -> None:
    """What was counted here is owed until nothing of it counts any more, and no longer."""
    one = algorithms.hit(limit, lease=b"lease--1")._replace(policy=FailurePolicy.LOCAL)
    told, kept = Local(Stats()), Local(Stats())
    for each in (told, kept):
        each.charge([one._replace(addend=2)], 1, T)

    ((_, expires_us),) = told.hand_back(1, T)

    peek = one._replace(addend=0, lease=b"")
    (before,) = kept.charge([peek], 1, T + expires_us - 1)
    (then,) = kept.charge([peek], 1, T + expires_us)
    assert before.remaining < capacity_of(limit) == then.remaining


async def test_many_leases_are_handed_back_at_once(own_redis: RedisServer) -> None:
    """A large concurrency limit's leases come back in few hits; each is known by its id then."""
    store = RedisStore(own_redis.url, 5_000_000, Stats(), Health())
    await started(store)
    leases = algorithms.LEASES._replace(requests_per_unit=10_000, unit=Unit.DAY)
    one = algorithms.hit(leases)._replace(policy=FailurePolicy.LOCAL)
    local = Local(Stats())
    ids = [b"%8d" % number for number in range(2_000)]
    for each in ids:
        local.charge([one._replace(lease=each)], 1, T)

    ((requests, _),) = local.hand_back(1, T)

    assert len(requests) <= 10
    assert sum(each.addend for (each,) in requests) == 2_000
    answers = await charged(store, requests)
    assert sum(outcome.charged for (outcome,) in answers if outcome) == 2_000
    refunds = [one._replace(lease=each, refund=True) for each in (ids[0], ids[-1], ids[0])]
    answers = await charged(store, [[each] for each in refunds])
    assert [outcome.charged for (outcome,) in answers if outcome] == [1, 1, 0]
    await store.close()


async def test_node_that_goes_while_it_is_told(behind: Behind) -> None:
    """What a server had not been told when it lost its slots is there to be told to others."""
    keys = [f"{number}" for number in range(1_000)]
    await behind.start()
    await behind.outage()
    await charged(behind.store, [[hit(3, key=key)] for key in keys])
    behind.proxy.refuse = False
    await until(lambda: bool(behind.counts(keys)))

    await behind.shard.retire(lambda _: None)

    left = {one[0].key for requests, _ in behind.shard.uncounted() for one in requests}
    told = behind.counts(keys)
    assert left | {hit(key=key).key for key, count in zip(keys, told, strict=True) if count} == {
        *(hit(key=key).key for key in keys),
        *({hit(key="probe").key} & left),
    }


def _more(behind: Behind, keys: Sequence[str], before: int) -> bool:
    return sum(behind.counts(keys)) > before


async def test_what_is_over_is_told_to_nobody(behind: Behind) -> None:
    """What was counted in a window that is over when the server is back is not told any more."""
    one = minutely(3, key="a", window_us=2 * SECOND)._replace(policy=FailurePolicy.LOCAL)
    last = minutely(3, key="b", window_us=YEAR)._replace(policy=FailurePolicy.LOCAL)
    await behind.start()
    await behind.outage()
    await charged(behind.store, [[one], [last]])
    ends = asyncio.get_running_loop().time() + 2.1
    await until(lambda: asyncio.get_running_loop().time() > ends)

    behind.proxy.refuse = False

    await until(lambda: behind.counts(["b"]) == [3])
    assert behind.counts(["a"]) == [0]


async def test_many_leases_do_not_make_the_server_sick(behind: Behind) -> None:
    """However heavy what a server is told, charges come between and are answered by it."""
    leases = algorithms.LEASES._replace(requests_per_unit=10_000, unit=Unit.DAY)
    one = algorithms.hit(leases)._replace(policy=FailurePolicy.LOCAL)
    await behind.start(timeout_us=100_000)
    await behind.outage()
    await charged(behind.store, [[one._replace(lease=b"%8d" % number)] for number in range(400)])
    behind.proxy.refuse = False
    await until(lambda: behind.shard.available)
    behind.stats.store_errors.clear()

    async with asyncio.timeout(PATIENCE_SECONDS):
        remaining = 10_000
        while remaining > 9_600:
            ((outcome,),) = await charged(behind.store, [[one._replace(addend=0)]])
            assert behind.shard.available
            # `ShardState.waiting` has batches only, and what is not sent can be one large batch.
            waiting = behind.shard._batches._queues[0]
            assert sum(len(part.requests) - part.sent for part in waiting) <= 1
            if outcome and not outcome.local:
                remaining = outcome.remaining
            await asyncio.sleep(0.01)

    assert remaining == 9_600


async def test_many_counters_are_told_between_charges(behind: Behind) -> None:
    """While a charge waits a server is told no more than two script calls can count."""
    keys = [f"{number}" for number in range(5_000)]
    await behind.start()
    await behind.outage()
    await charged(behind.store, [[hit(3, key=key)] for key in keys])
    behind.proxy.refuse = False
    await until(lambda: behind.shard.available)

    told, most = sum(behind.counts(keys)), 0
    async with asyncio.timeout(PATIENCE_SECONDS):
        while told < 3 * 5_000:
            await charged(behind.store, [[hit(key="probe")]])
            before, told = told, sum(behind.counts(keys))
            most = max(most, (told - before) // 3)

    assert told == 3 * 5_000
    assert most * weight([hit()]) <= 2 * MAX_CALL_WEIGHT
