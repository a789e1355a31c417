"""Every store answers the table of cases, and a random walk, with the same integers."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest
import redis

from ratelimit_service.algorithms import capacity_of, spec_of
from ratelimit_service.model import MAX_ADDEND, Calendar, Hit, Limit, Mode, Receipt, Unit
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.stores import Outcomes, Store
from ratelimit_service.stores.keys import grant_key
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.stores.redis import RedisStore
from tests.algorithms.ways import WALKED
from tests.servers.cluster import RedisCluster
from tests.servers.redis import RedisServer
from tests.stores.algorithms import (
    ALGORITHM_CASES,
    FIRST_HIT,
    LEASES,
    LOG,
    METER,
    PARTS,
    SLIDING,
    STEPPED,
    TOKENS,
    UTC_MONTH,
    hit,
)
from tests.stores.cases import CASES, DAY, MINUTE, SECOND, T, charged, hearing, in_turn, ok
from tests.stores.cases import hit as minutely
from tests.stores.conftest import Time
from tests.stores.redis_store import started


async def test_table_of_cases(store: Store, clock: Time) -> None:
    """Each row of the table holds on every store, on counters of its own."""
    for number, case in enumerate([*CASES, *ALGORITHM_CASES]):
        answers = []
        for charge in case.charges:
            clock.now_us = charge.now_us
            hits = [each._replace(key=each.key + b" %d" % number) for each in charge.hits]
            answers += await charged(store, [hits])

        assert answers == [charge.outcomes for charge in case.charges], case.rule


STEPS = 100_000
PAUSES_US = [0, 0, 1, 999, 999_999, 7 * SECOND, MINUTE // 2, MINUTE, 3 * MINUTE]
STEPS_BACK_US = [-1, -MINUTE // 3, -MINUTE]


async def test_random_walk(redis_store: RedisStore, redis_server: RedisServer, clock: Time) -> None:
    """Over 100,000 random hits memory and Redis answer the same, step by step."""
    chance = random.Random(20260512)
    memory = MemoryStore(10_000, Stats(), Health(), clock)
    client = redis.Redis.from_url(redis_server.url)
    keys = sorted({hit(limit, key=key).key for limit in WALKED for key in "ab"})
    undoable: list[Hit] = []
    walked = 0
    # Memory looks for what is over when a counter is new, and the walk's clock steps back further
    # than what is over is kept for: so none is new later.
    first = [[hit(limit, key=key)] for limit in WALKED for key in "ab"]
    assert await charged(memory, first) == await charged(redis_store, first)
    while walked < STEPS:
        clock.now_us += chance.choice(PAUSES_US if chance.random() < 0.8 else STEPS_BACK_US)
        requests = [random_hits(chance) for _ in range(chance.choice([1, 2, 30, 60]))]
        requests += [[chance.choice(undoable)] for _ in range(3) if undoable]
        walked += sum(map(len, requests))

        expected = await charged(memory, requests)

        assert await charged(redis_store, requests) == expected
        undoable += _undone(requests, expected, clock.now_us)
        del undoable[:-200]
        pipeline = client.pipeline(transaction=False)
        for key in keys:
            pipeline.persist(key)  # Redis' expiry runs by a clock that is not the walk's
        pipeline.execute()


@pytest.mark.parametrize("max_counters", [8, 1_000], ids=["full", "roomy"])
async def test_random_walk_of_keys_that_come_and_go(
    redis_store: RedisStore, redis_server: RedisServer, clock: Time, max_counters: int
) -> None:
    """Memory forgets nothing that still counts, but the live counters that it says it put out."""
    chance = random.Random(20261122)
    stats = Stats()
    memory = MemoryStore(max_counters, stats, Health(), clock)
    client = redis.Redis.from_url(redis_server.url)
    limits = [*WALKED, *(limit._replace(unit=Unit.SECOND) for limit in WALKED if not _dated(limit))]
    names, back_us = "abcdefgh", SECOND - 1
    if max_counters == 8:
        # What is over makes room at once: also for a clock that steps back, or a lower rate.
        back_us = 0
        limits = [limit for limit in limits if limit.requests_per_unit not in {7, 600, MAX_ADDEND}]
    asked: dict[bytes, Hit] = {}
    forgotten, put_out, latest_us = 0, 0, clock.now_us
    for _ in range(STEPS // 50):
        pause_us = chance.choice([*PAUSES_US, SECOND, -1, -999_999])
        clock.now_us = max(clock.now_us + pause_us, latest_us - back_us)
        latest_us = max(latest_us, clock.now_us)
        hits = random_hits(chance, limits, names)

        expected = await charged(memory, [hits])

        assert await charged(redis_store, [hits]) == expected
        asked |= {one.key: one for one in hits}
        for key in {one.key for one in hits}:
            client.persist(key)  # Redis' expiry runs by a clock that is not the walk's
        gone = [one for key, one in asked.items() if memory.state(key) is None]
        peeks = [[Hit(one.key, one.spec, 0, Mode.SHADOW)] for one in gone]
        answers = await charged(redis_store, peeks)
        for one, (outcome,) in zip(gone, answers, strict=True):
            assert outcome is not None
            del asked[one.key]
            if outcome.over or outcome.remaining < one.spec.limit:
                put_out += client.delete(one.key)
            else:
                forgotten += client.exists(one.key)
        assert put_out <= stats.evictions.get("live", 0)

    assert forgotten > STEPS // 1_000
    assert (put_out > 0) == (max_counters == 8)


def _dated(limit: Limit) -> bool:
    return isinstance(limit.anchor, Calendar)


def _undone(
    requests: Sequence[Sequence[Hit]], outcomes: Sequence[Outcomes], now_us: int
) -> Iterator[Hit]:
    """What undoes the hits that were counted."""
    for hits, each in zip(requests, outcomes, strict=True):
        for one, outcome in zip(hits, each, strict=True):
            if outcome and outcome.charged and not outcome.over and not one.refund:
                receipt = Receipt(now_us, now_us + outcome.reset_us)
                plain = one._replace(mode=Mode.ENFORCED, joined=False)
                yield plain._replace(refund=True, receipt=receipt)


def random_hits(
    chance: random.Random, limits: Sequence[Limit] = WALKED, names: str = "ab"
) -> list[Hit]:
    hits: list[Hit] = []
    grants = [limit for limit in limits if limit.algorithm == FIRST_HIT.algorithm]
    for _ in range(chance.choice([1, 1, 2, 3, 5])):
        refund = chance.random() < 0.1
        mode = chance.choice([Mode.ENFORCED, Mode.ENFORCED, Mode.SHADOW, Mode.QUOTA])
        joined = bool(hits) and not refund and not hits[-1].refund and chance.random() < 0.3
        if joined:
            mode = hits[-1].mode
        one = hit(
            chance.choice(limits),
            chance.choice([0, 1, 1, 1, 2, 3, 7, 400]),
            key=chance.choice(names),
            count_denied=mode is Mode.QUOTA or chance.random() < 0.2,
            refund=refund,
            lease=chance.choice([b"", b"lease--1", b"lease--2", b"lease--3"]),
        )._replace(mode=mode, joined=joined)
        for _ in range(0 if refund else chance.choice([0, 0, 0, 1, 3])):
            grant = hit(chance.choice(grants), one.addend, key=chance.choice(names))
            hits.append(grant._replace(mode=Mode.GRANT, joined=joined))
        hits.append(one)
    if chance.random() < 0.2:
        behind = [hit(chance.choice(limits), key=chance.choice(names)) for _ in range(3)]
        first = hit(chance.choice(limits), chance.choice([0, 1, 2, 7]), key=chance.choice(names))
        hits += in_turn(first, *behind[: chance.choice([1, 2, 3])])
    return hits


async def test_all_or_none_under_concurrency(
    redis_server: RedisServer,
    redis_store: RedisStore,
    redis_cluster: RedisCluster,
    ring_url: str,
    memory: MemoryStore,
    clock: Time,
) -> None:
    """Whatever comes at once, what is counted afterwards is what allowed requests asked for."""
    chance = random.Random(7)
    limits = [limit._replace(requests_per_unit=40, burst=None, max_wait_us=0) for limit in COUNTING]
    urls = [redis_server.url] * 3 + [ring_url] * 4 + [redis_cluster.url] * 4
    redis_cluster.flush()
    others = [RedisStore(url, 10_000_000, Stats(), Health(), clock) for url in urls]
    for other in others:
        await started(other)

    for stores in ([memory] * 4, [redis_store, *others[:3]], others[3:7], others[7:]):
        asked = [[_mixed_request(chance, limits) for _ in range(100)] for _ in stores]
        answers = await asyncio.gather(*map(charged, stores, asked))

        allowed: Counter[bytes] = Counter()
        for requests, outcomes in zip(asked, answers, strict=True):
            for hits, each in zip(requests, outcomes, strict=True):
                assert each
                if not any(outcome is None or outcome.over for outcome in each):
                    counted = zip(hits, each, strict=True)
                    allowed.update({one.key: told.charged for one, told in counted if told})
        peeks = [hit(limit, 0, key=key) for limit in limits for key in "abc"]
        peeks += [_grant(peek)._replace(mode=Mode.ENFORCED) for peek in peeks]
        (remaining,) = await charged(stores[0], [peeks])
        assert [40 - outcome.remaining for outcome in remaining if outcome] == [
            allowed[peek.key] for peek in peeks
        ]
        if stores[0] in {memory, redis_store}:  # elsewhere one may deny others before it is undone
            assert max(allowed.values()) == 40
        redis_server.flush()
    for other in others:
        await other.close()


COUNTING = (FIRST_HIT, UTC_MONTH, SLIDING, PARTS, LOG, TOKENS, STEPPED, METER, LEASES)


def _mixed_request(chance: random.Random, limits: list[Limit]) -> list[Hit]:
    """Hits of different counters."""
    names = chance.sample([(limit, key) for limit in limits for key in "abc"], 3)
    hits = [hit(limit, chance.choice([1, 2, 3]), key=key) for limit, key in names]
    return [each for one in hits for each in (_grant(one), one)[chance.choice([0, 0, 1]) :]]


def _grant(one: Hit) -> Hit:
    """A grant of 40 hits, which takes a hit before its own counter does."""
    grant = hit(FIRST_HIT._replace(requests_per_unit=40), one.addend)
    return grant._replace(key=grant_key(one.key, "g"), mode=Mode.GRANT)


@pytest.mark.parametrize("limit", [*COUNTING, LEASES], ids=lambda limit: spec_of(limit).key)
async def test_damage_is_counted(
    limit: Limit, store: Store, clock: Time, stats: Stats, caplog: pytest.LogCaptureFixture
) -> None:
    """A state from more than a window ahead starts anew, is counted, and said in the log."""
    await charged(store, [[hit(limit, capacity_of(limit))]])
    clock.now_us -= 2 * 366 * DAY if limit == UTC_MONTH else 2 * MINUTE + SECOND

    answers = await charged(store, [[hit(limit, 0)]])

    assert [outcome.remaining for (outcome,) in answers if outcome] == [capacity_of(limit)]
    assert stats.damaged == 1
    assert "did the clock of the store step back?" in caplog.text


async def test_a_log_of_denied_hits_stays_bounded(
    memory: MemoryStore, redis_store: RedisStore, redis_server: RedisServer, clock: Time
) -> None:
    """Hits that count in any case pass a log's limit; past 64 KiB they share the newest entry."""
    one = hit(LOG._replace(unit=Unit.YEAR), MAX_ADDEND, count_denied=True)
    client = redis.Redis.from_url(redis_server.url)
    for number in range(120):
        clock.now_us += SECOND
        if number == 112:  # until here memory alone: each of these costs Redis half a second
            kept_in_memory = memory.state(one.key)
            assert isinstance(kept_in_memory, bytes)
            client.set(one.key, kept_in_memory)
        expected = await charged(memory, [[one]] * 100)
        if not 4 <= number < 112:
            assert await charged(redis_store, [[one]] * 100) == expected
            assert client.get(one.key) == memory.state(one.key)

    (kept,) = await charged(memory, [[one._replace(addend=0)]])
    assert [outcome.over for outcome in kept if outcome] == [True]
    assert 65_536 <= client.strlen(one.key) < 66_000


@pytest.mark.parametrize("pair", range(6))
async def test_quotas_of_several_limits(store: Store, pair: int) -> None:
    """A quota that is over in one limit still counts in its others, wherever these lie."""
    leases = LEASES._replace(requests_per_unit=20)
    taken = hit(leases, key=f"l{pair}")._replace(mode=Mode.QUOTA)
    window = minutely(key=f"w{pair}", limit=11, mode=Mode.QUOTA)._replace(joined=True)
    others = [minutely(key=f"o{number}", limit=1_000, mode=Mode.QUOTA) for number in range(6)]

    answers = await charged(
        store,
        [[taken._replace(lease=b"lease%3d" % number), window, *others] for number in range(20)],
    )

    assert [[one and (one.over, one.charged) for one in each[:2]] for each in answers] == [
        *[[(False, 1), (False, 1)]] * 11,
        *[[(False, 1), (True, 1)]] * 9,
    ]
    ((peek,),) = await charged(store, [[taken._replace(addend=0, mode=Mode.SHADOW)]])
    assert peek is not None
    assert peek.remaining == 0


async def test_batch_is_settled_in_order(store: Store) -> None:
    """Requests of one batch see each other's charges, in their order."""
    answers = await charged(store, [[minutely(2)], [minutely(2)], [minutely(2)], [minutely(1)]])

    assert [outcome.over for (outcome,) in answers if outcome] == [False, False, True, False]


async def test_unwanted_requests_are_not_charged(redis_store: RedisStore) -> None:
    """What nobody waits for any more when its turn comes has no outcome and is not counted."""
    future: asyncio.Future[list[Outcomes]] = asyncio.get_running_loop().create_future()
    requests = [[minutely(), minutely(key="b")], [minutely()], [minutely()]]

    redis_store.charge(requests, hearing(future.set_result), lambda place: place == 1)

    assert await future == [[], [ok(4)], []]
    assert await charged(redis_store, [[minutely()]]) == [[ok(3)]]


async def test_nothing_is_sent_where_nothing_is_wanted(redis_store: RedisStore) -> None:
    """A batch that nobody waits for ends all the same."""
    future: asyncio.Future[list[Outcomes]] = asyncio.get_running_loop().create_future()

    redis_store.charge([[minutely()], [minutely()]], hearing(future.set_result), lambda _: False)

    assert await future == [[], []]


async def test_nothing_to_charge(store: Store) -> None:
    """An empty batch is an empty answer."""
    assert await charged(store, []) == []


async def test_any_microsecond_of_this_century(store: Store, clock: Time) -> None:
    """Window numbers wrap after 2^20 windows without ever mistaking an old count for a new."""
    await charged(store, [[minutely(5)]])
    clock.now_us = T + MINUTE * (2**20 - 2)

    (answer,) = await charged(store, [[minutely(5)]])

    assert [outcome.over for outcome in answer if outcome] == [False]


@pytest.mark.parametrize("idle", [2**20 - 1, 2**20, 2**21, 2**25, 2**28 - 2])
@pytest.mark.parametrize("window_us", [SECOND, MINUTE])
async def test_an_idle_counter_never_counts_again(
    memory: MemoryStore, clock: Time, window_us: int, idle: int
) -> None:
    """In memory, where nothing expires by itself, a count is over after any number of windows."""
    await charged(memory, [[minutely(5, window_us=window_us)]])
    clock.now_us = T + window_us * idle

    (answer,) = await charged(memory, [[minutely(5, window_us=window_us)]])

    assert answer == [ok(0, 5, window_us)]


async def test_an_idle_calendar_never_counts_again(memory: MemoryStore, clock: Time) -> None:
    """The same holds for a calendar's days."""
    one = hit(Limit(5, Unit.DAY, anchor=Calendar(Unit.DAY)), 5)
    await charged(memory, [[one]])
    clock.now_us += DAY * 2**20

    ((outcome,),) = await charged(memory, [[one]])

    assert outcome is not None
    assert not outcome.over
