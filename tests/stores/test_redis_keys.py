"""What lies in Redis: keys that expire, and values that are none of ours."""

from __future__ import annotations

import random

import pytest
import redis

from ratelimit_service.algorithms import capacity_of, spec_of
from ratelimit_service.model import MAX_ADDEND, Calendar, Limit, Outcome, Unit
from ratelimit_service.observability.stats import Stats
from ratelimit_service.stores.redis import RedisStore
from ratelimit_service.stores.redis.batch import Background
from ratelimit_service.stores.redis.script import SCRIPT, ScriptCall
from tests.servers.redis import RedisServer
from tests.stores import algorithms
from tests.stores.cases import DAY, MINUTE, SECOND, T, charged, hit, refund
from tests.stores.conftest import Time
from tests.stores.redis_store import COUNTERS

FOREIGN = [b"", b"garbage", b"-1", b"1.5", b"9" * 30, b"4503599627370496"]
FOREIGN += [
    mark + bytes(size) for mark in (b"h", b"w", b"s", b"l", b"t", b"b", b"c") for size in (0, 9)
]


@pytest.mark.parametrize("value", FOREIGN)
async def test_foreign_value_counts_as_new(
    redis_store: RedisStore, redis_server: RedisServer, clock: Time, value: bytes
) -> None:
    """What is no state of an algorithm's in its key is replaced, and denies nobody."""
    full = [
        algorithms.hit(limit, capacity_of(limit), lease=b"lease--1")
        for limit in algorithms.EVERY_ALGORITHM
    ]
    client = redis.Redis.from_url(redis_server.url)
    for one in full:
        client.set(one.key, value)

    first = await charged(redis_store, [[one] for one in full])
    second = await charged(redis_store, [[one] for one in full])

    assert [outcome.over for (outcome,) in first if outcome] == [False] * len(full)
    assert [outcome.over for (outcome,) in second if outcome] == [True] * len(full)


@pytest.mark.parametrize("limit", algorithms.EVERY_ALGORITHM, ids=lambda limit: spec_of(limit).key)
async def test_every_counter_expires(
    redis_store: RedisStore, redis_server: RedisServer, limit: Limit
) -> None:
    """No key outlives what it counts by more than a second."""
    one = algorithms.hit(limit, lease=b"lease--1")
    client = redis.Redis.from_url(redis_server.url)
    earliest_ms, _ = told_ms(client, one.key)
    ((outcome,),) = await charged(redis_store, [[one]])

    latest_ms, left_ms = told_ms(client, one.key)

    assert outcome is not None
    life_us = outcome.reset_us
    if limit is algorithms.SLIDING:
        life_us += MINUTE  # after its own window a count weighs in the next
    elif limit in {algorithms.TOKENS, algorithms.METER}:
        life_us = MINUTE  # the hit is used for as long if the rule's rate falls to one a minute
    ends_ms = latest_ms + left_ms
    assert earliest_ms + life_us / 1_000 < ends_ms <= latest_ms + life_us / 1_000 + 1_001


def told_ms(client: redis.Redis, key: bytes) -> tuple[float, int]:
    """A server's time, and for how long it keeps a key from then on, in milliseconds."""
    with client.pipeline(transaction=True) as both:
        both.time()
        both.pttl(key)
        (seconds, micros), left_ms = both.execute()
    return seconds * 1_000 + micros / 1_000, left_ms


async def test_no_number_fails_a_script_call(redis_store: RedisStore, stats: Stats) -> None:
    """The largest numbers of rules and callers fail nothing that is counted beside them."""
    windows = [(Unit.YEAR, 285), (Unit.YEAR, 1), (Unit.SECOND, 1)]
    limits = [
        limit._replace(unit=unit, multiplier=multiplier, requests_per_unit=number, burst=burst)
        for limit in algorithms.EVERY_ALGORITHM
        for unit, multiplier in windows
        for number in (1, MAX_ADDEND)
        for burst in (None, MAX_ADDEND)
        if not isinstance(limit.anchor, Calendar)
        and (burst is None or limit.burst is not None)
        and (number == 1 or limit.algorithm not in {"sliding_log", "concurrency"})
    ]
    requests = [
        [algorithms.hit(limit, addend, count_denied=True, refund=refund)]
        for limit in limits
        for refund in (False, True)
        for addend in (1, MAX_ADDEND - 1)
    ]

    answers = await charged(redis_store, [*requests, [hit()]])

    assert stats.store_errors == {}
    assert all(outcome and 0 <= outcome.reset_us < 2**55 for (outcome,) in answers)
    assert answers[-1] == [Outcome(False, 4, MINUTE, 1)]


@pytest.mark.parametrize("limit", algorithms.EVERY_ALGORITHM, ids=lambda limit: spec_of(limit).key)
async def test_garbage_fails_no_script_call(
    redis_store: RedisStore, redis_server: RedisServer, clock: Time, limit: Limit
) -> None:
    """Whatever bytes lie in a counter's key, its hits are counted, and those of its neighbours."""
    chance = random.Random(7)
    client = redis.Redis.from_url(redis_server.url)
    full = algorithms.hit(limit, capacity_of(limit), lease=b"lease--1")
    await charged(redis_store, [[full]])
    state = client.get(full.key)
    assert isinstance(state, bytes)
    head = state[:1] if state[:1].isalpha() else b""
    for number in range(300):
        garbage = bytearray(state)
        if number % 2:
            garbage = bytearray(head + chance.randbytes(len(state) + chance.randrange(9)))
        for _ in range(chance.randrange(3)):
            garbage[chance.randrange(len(garbage))] = chance.choice([0, 127, 128, 255])
        garbage[: len(head)] = head
        client.set(full.key, bytes(garbage))
        neighbour = hit(key=f"{limit}{number}")
        one = full._replace(addend=chance.choice([0, 1, full.addend]), refund=chance.random() < 0.3)

        (first,), (second,) = await charged(redis_store, [[one], [neighbour]])

        assert second == Outcome(False, 4, MINUTE, 1), bytes(garbage)
        assert first is not None
        assert 0 <= first.remaining <= capacity_of(limit), bytes(garbage)
        assert 0 <= first.reset_us < 2**55, bytes(garbage)


@pytest.mark.parametrize("stepped", [False, True])
async def test_a_bucket_outlives_its_refill(
    redis_store: RedisStore, redis_server: RedisServer, stepped: bool
) -> None:
    """A bucket is kept until one hit a unit would have come back, or ten minutes."""
    client = redis.Redis.from_url(redis_server.url)
    for used, least_s in ((1, 0), (100, 99), (5_000, 600)):
        limit = Limit(5_000, Unit.SECOND, algorithm="token_bucket", stepped=stepped)
        one = algorithms.hit(limit, used, key=f"{used}")
        await charged(redis_store, [[one]])
        assert least_s * 1_000 - 500 < client.pttl(one.key) <= (least_s + 2) * 1_000


@pytest.mark.parametrize("wrong_us", [-DAY, 0, DAY, 400 * DAY])
async def test_redis_picks_the_calendar_s_period(redis_server: RedisServer, wrong_us: int) -> None:
    """Whichever periods a process with a wrong clock sends, Redis' time says which one counts."""
    client = redis.Redis.from_url(redis_server.url)
    client.flushall()
    charge = client.register_script(SCRIPT)
    one = algorithms.hit(algorithms.BERLIN_DAY)
    seconds, micros = client.time()
    now_us = seconds * SECOND + micros
    for sent_us in (now_us, now_us + wrong_us):
        call = ScriptCall(0, sent_us)
        call.add(Background([[one]]), [0])
        _, _, *words = call.arguments()
        assert call.read(charge(keys=[str(one.key, "utf-8")], args=[*words, 0]))

    (outcome,) = call.found
    assert outcome is not None
    reset_us = outcome.reset_us
    assert (outcome.over, outcome.remaining) == (False, 0 if abs(wrong_us) <= DAY else 1)
    assert reset_us > 0
    if abs(wrong_us) <= DAY:
        _, _, end_us, _ = Calendar(Unit.DAY, "Europe/Berlin").periods(now_us).at(now_us)
        assert abs(reset_us - (end_us - now_us)) < 10 * SECOND


async def test_foreign_type_counts_as_new(
    redis_store: RedisStore, redis_server: RedisServer
) -> None:
    """A key that holds a list is replaced, and denies nobody."""
    one = hit(5)
    redis.Redis.from_url(redis_server.url).rpush(one.key, "x")

    answers = await charged(redis_store, [[one], [one]])

    assert [outcome.over for (outcome,) in answers if outcome] == [False, True]


@pytest.mark.parametrize("now_us", [T, (1 << 25) * MINUTE], ids=["now", "when numbers wrap"])
@pytest.mark.parametrize("addends", [[1], [1, 1], [2, 4]])
async def test_counters_expire(
    redis_store: RedisStore, redis_server: RedisServer, clock: Time, now_us: int, addends: list[int]
) -> None:
    """Every counter has an expiry, a little after its window, however it was counted."""
    clock.now_us = now_us
    await charged(redis_store, [[hit(addend)] for addend in addends])
    clock.now_us += MINUTE
    await charged(redis_store, [[hit(addend)] for addend in addends])

    left_ms = redis.Redis.from_url(redis_server.url).pttl(hit().key)

    assert MINUTE / 1_000 - 1_000 < left_ms <= MINUTE / 1_000 + 1_000


async def test_denied_requests_leave_no_trace(
    redis_store: RedisStore, redis_server: RedisServer
) -> None:
    """A request that one hit denies changes nothing in Redis for the others."""
    client = redis.Redis.from_url(redis_server.url)
    await charged(redis_store, [[hit(2, key="a"), hit(3, key="b")]])
    before = {key: (client.get(key), client.pttl(key)) for key in client.scan_iter(COUNTERS)}

    denied = [hit(1, key="a"), hit(1, key="new"), hit(1, key="a"), hit(3, key="b")]
    await charged(redis_store, [denied, denied])

    after = {key: (client.get(key), client.pttl(key)) for key in client.scan_iter(COUNTERS)}
    assert {key: value for key, (value, _) in after.items()} == {
        key: value for key, (value, _) in before.items()
    }
    assert all(0 < left_ms <= before[key][1] for key, (_, left_ms) in after.items())


async def test_peeks_and_refunds_make_no_keys(
    redis_store: RedisStore, redis_server: RedisServer
) -> None:
    """Only what is counted is stored."""
    await charged(redis_store, [[hit(0)], [hit(6)], [refund(hit(3))]])

    assert list(redis.Redis.from_url(redis_server.url).scan_iter(COUNTERS)) == []
