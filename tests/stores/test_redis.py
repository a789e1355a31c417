"""What the Redis store does when Redis is away, slow, full or restarted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
import redis

from ratelimit_service.eventloop.clock import elapsed_us
from ratelimit_service.stores import NEVER, Outcomes, Settled
from ratelimit_service.stores.redis import call_window
from tests.servers.redis import RedisServer
from tests.stores import algorithms
from tests.stores.cases import MINUTE, YEAR, charged, hearing, hit
from tests.stores.redis_store import COUNTERS, Fixture, started
from tests.waiting import PATIENCE_SECONDS, until


@pytest.fixture
async def connected(own_redis: RedisServer) -> AsyncIterator[Fixture]:
    fixture = Fixture(own_redis.url)
    await started(fixture.store)
    yield fixture
    await fixture.store.close()


async def test_redis_clock_counts(connected: Fixture) -> None:
    """Without a clock of its own the store counts by Redis' time."""
    ((outcome,),) = await charged(connected.store, [[hit(limit=5)]])

    assert outcome is not None
    assert (outcome.over, outcome.remaining, outcome.charged) == (False, 4, 1)
    assert 0 < outcome.reset_us <= MINUTE


async def test_away_at_start() -> None:
    """A store that is away at the start is a fault in health, and hits have no outcome."""
    fixture = Fixture("redis://127.0.0.1:1")
    await fixture.store.start()

    outcomes = await fixture.hit()

    assert outcomes == [None]
    assert fixture.stats.store_errors == {"disconnected": 1}
    assert "127.0.0.1:1" in fixture.health.faults["store"]
    await fixture.store.close()


async def test_recovers_by_itself(connected: Fixture, own_redis: RedisServer) -> None:
    """Killed and started again, Redis is used again without anybody's doing."""
    await connected.hit()
    own_redis.kill()
    await connected.until(lambda outcomes: outcomes == [None])
    assert "store" in connected.health.faults

    own_redis.start()

    outcomes = await connected.until(lambda outcomes: outcomes != [None])
    assert outcomes[0] is not None
    assert connected.health.faults == {}


async def test_hung_redis_costs_the_timeout_and_no_more(own_redis: RedisServer) -> None:
    """A Redis that does not answer leaves hits without outcome after the store's timeout."""
    fixture = Fixture(own_redis.url, timeout_us=20_000)
    await started(fixture.store)
    errors = fixture.stats.store_errors
    own_redis.stop()

    while not errors["timeout"]:
        assert await fixture.hit() == [None]

    del errors["overloaded"]  # those that a busy machine did not send in time
    assert errors == {"timeout": 1}
    own_redis.cont()
    await fixture.until(lambda outcomes: outcomes != [None])
    await fixture.store.close()


async def test_lost_scripts_are_taught_again(connected: Fixture, own_redis: RedisServer) -> None:
    """SCRIPT FLUSH costs no decision."""
    await connected.hit(limit=5)
    redis.Redis.from_url(own_redis.url).script_flush()

    outcomes = await connected.hit(limit=5)

    assert outcomes[0] is not None
    assert outcomes[0].remaining == 3
    assert connected.stats.store_errors == {}


async def test_full_redis_is_a_fault_not_an_answer(
    connected: Fixture, own_redis: RedisServer
) -> None:
    """A refused write leaves hits without outcome, and says what Redis said."""
    client = redis.Redis.from_url(own_redis.url)
    client.config_set("maxmemory", "1")

    outcomes = await connected.hit()

    assert outcomes == [None]
    assert connected.stats.store_errors == {"refused": 1}
    assert "OOM" in connected.health.faults["store"]
    client.config_set("maxmemory", "0")
    assert await connected.hit() != [None]


async def test_batches_are_cut_by_what_they_take(
    connected: Fixture, own_redis: RedisServer
) -> None:
    """Light requests share script calls, heavy ones go with few others or alone, none is split."""
    client = redis.Redis.from_url(own_redis.url)
    leases = algorithms.LEASES._replace(requests_per_unit=10_000)
    light = [[hit(key=str(number)), hit(key=f"{number}b")] for number in range(192)]
    heavy = [[algorithms.hit(leases, key=str(number))] for number in range(5)]
    large = [[hit(key=str(number)) for number in range(256)]]
    calls = []
    for requests in (light, heavy, large):
        client.config_resetstat()
        await charged(connected.store, requests)
        calls.append(client.info("commandstats")["cmdstat_evalsha"]["calls"])

    assert calls == [3, 5, 1]


async def test_how_long_a_request_waits_follows_from_what_stands_before_it(
    own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as for the last reply, and four times as long for each two script calls before it.

    So there is time left if the server is slower than it was. What is of a larger priority does not
    stand before it.
    """
    # Nothing is forgotten if the machine is slow to stop the server.
    monkeypatch.setattr(call_window, "_FORGOTTEN_US", 60_000_000)
    fixture = Fixture(own_redis.url, timeout_us=60_000_000)
    await started(fixture.store)
    await fixture.hit()
    own_redis.stop()

    for _ in range(125):
        requests = [[hit(key=f"{number}")] for number in range(16)]
        fixture.store.charge(requests, lambda _: None, priority=7)
    while fixture.store.shard_states()[0].under_way < 2:
        await asyncio.sleep(0)

    reply_us = fixture.store.wait_us(0)
    assert fixture.store.reply_us() == reply_us > 0
    assert fixture.store.wait_us(7) == reply_us + reply_us * 4 * (125 * 16 - 256) // 256
    fixture.store.charge([[hit(key="other")]], lambda _: None)
    while fixture.store.shard_states()[0].under_way < 3:
        await asyncio.sleep(0)
    # A call of few, before which those of a larger priority stand back, tells not how many fit.
    assert fixture.store.wait_us(7) == reply_us + reply_us * 4 * (125 * 16 - 256) // 256
    own_redis.cont()
    await fixture.store.close()


async def test_how_long_calls_took_is_forgotten_while_nothing_is_under_way(
    own_redis: RedisServer,
) -> None:
    """After a reply that came late who looks is soon told that a new request would not wait.

    Else nobody would send one, and nothing would show that replies come in time again.
    """
    fixture = Fixture(own_redis.url, timeout_us=60_000_000)
    await started(fixture.store)
    await fixture.hit()
    own_redis.stop()
    answered: list[list[Settled]] = []
    fixture.store.charge([[hit()]], answered.append)
    until_us = elapsed_us() + 100_000
    while elapsed_us() < until_us:
        await asyncio.sleep(0)
    own_redis.cont()

    async with asyncio.timeout(PATIENCE_SECONDS):
        while not answered:
            await asyncio.sleep(0)
        while fixture.store.wait_us(0) > 1_000:
            await asyncio.sleep(0)

    await fixture.store.close()


async def test_a_late_reply_is_no_wait_for_others(own_redis: RedisServer) -> None:
    """A server that was late last takes too long for everybody, until it answers in time again.

    Who asks that lets failure policies answer for it, and refuses nobody.
    """
    fixture = Fixture(own_redis.url, timeout_us=50_000)
    await started(fixture.store)
    await fixture.hit()
    assert fixture.store.reply_us() < NEVER
    own_redis.stop()

    await charged(fixture.store, [[hit()]])

    assert fixture.store.reply_us() == NEVER
    own_redis.cont()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while fixture.store.reply_us() == NEVER:
            await charged(fixture.store, [[hit()]])
    await fixture.store.close()


async def test_what_nobody_wants_takes_no_room(own_redis: RedisServer) -> None:
    """Requests that nobody wants any more fill no script call, also if there is nothing else.

    How long others wait is known as before.
    """
    fixture = Fixture(own_redis.url, timeout_us=60_000_000)
    await started(fixture.store)
    await fixture.hit()
    client = redis.Redis.from_url(own_redis.url)
    client.config_resetstat()
    answered: list[list[Settled]] = []

    def charge(count: int, wanted: int) -> None:
        requests = [[hit(key=f"{number}")] for number in range(count)]
        fixture.store.charge(requests, answered.append, lambda at: at >= count - wanted)

    charge(1_000, 0)
    charge(1_000, 127)
    charge(1, 1)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(answered) < 3:
            await asyncio.sleep(0)

    assert [sum(bool(one.outcomes) for one in each) for each in answered] == [0, 127, 1]
    assert client.info("commandstats")["cmdstat_evalsha"]["calls"] == 1
    assert fixture.store.wait_us(0) > 0
    await fixture.store.close()


async def test_who_has_much_under_way_comes_after_others(own_redis: RedisServer) -> None:
    """Before 2,000 requests of a larger priority that wait, one of the lowest is sent at once."""
    fixture = Fixture(own_redis.url, timeout_us=60_000_000)
    await started(fixture.store)
    order: list[str] = []

    def charge(name: str, count: int, priority: int) -> None:
        requests = [[hit(key=f"{name}{number}")] for number in range(count)]
        fixture.store.charge(requests, lambda _: order.append(name), priority=priority)

    own_redis.stop()
    for _ in range(125):
        charge("flood", 16, 7)
    while fixture.store.shard_states()[0].under_way < 2:
        await asyncio.sleep(0)
    charge("other", 1, 0)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while fixture.store.shard_states()[0].under_way < 3:
            await asyncio.sleep(0)
    assert fixture.store.shard_states()[0].waiting == 125 - 256 // 16
    own_redis.cont()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(order) < 126:
            await asyncio.sleep(0)

    assert order.index("other") == 256 // 16
    assert fixture.stats.store_errors == {}
    await fixture.store.close()


async def test_what_waits_too_long_goes_though_others_come_first(own_redis: RedisServer) -> None:
    """A request whose time is over is forgotten, also if those before it fill every call."""
    fixture = Fixture(own_redis.url, timeout_us=60_000_000)
    await started(fixture.store)
    ended: list[int] = []
    deadline_us = elapsed_us() + 10_000

    own_redis.stop()
    fixture.store.charge([[hit()]], lambda _: ended.append(0), deadline_us=deadline_us, priority=7)
    while elapsed_us() <= deadline_us:
        pass  # nothing is sent yet
    for _ in range(4):
        requests = [[hit(key=str(number))] for number in range(128)]
        fixture.store.charge(requests, lambda _: ended.append(1))
    while fixture.store.shard_states()[0].under_way < 2:
        await asyncio.sleep(0)

    assert fixture.store.shard_states()[0].waiting == 2
    assert ended == [0]
    own_redis.cont()
    await fixture.store.close()


async def test_a_sick_server_is_left_alone(own_redis: RedisServer) -> None:
    """After five charges without an answer the others are decided at once, until pings are."""
    fixture = Fixture(own_redis.url, timeout_us=20_000)
    await started(fixture.store)
    (shard,) = fixture.store.shards
    errors = fixture.stats.store_errors
    own_redis.stop()

    while shard.available:
        assert await fixture.hit() == [None]
    assert await fixture.hit() == [None]

    del errors["overloaded"]  # those that a busy machine did not send in time
    assert errors == {"timeout": 5, "circuit_open": 1}
    own_redis.cont()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not shard.available:  # by then all that was sent has come to the server
            await asyncio.sleep(0.01)
    assert redis.Redis.from_url(own_redis.url).keys(COUNTERS) == []
    await fixture.until(lambda outcomes: outcomes != [None])
    await fixture.store.close()


async def test_a_server_that_is_sick_by_turns_is_told_of_once(
    own_redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has one warning that the server is sick, however often it is within a minute."""
    fixture = Fixture(own_redis.url, timeout_us=20_000)
    await started(fixture.store)
    (shard,) = fixture.store.shards

    for _ in range(3):
        own_redis.stop()
        while shard.available:
            await fixture.hit()
        own_redis.cont()
        await until(lambda: shard.available)

    assert sum(["is sick" in each.getMessage() for each in caplog.records]) == 1
    await fixture.store.close()


async def test_unread_replies_are_read_before_a_timer_is_believed(own_redis: RedisServer) -> None:
    """A process that was held up for longer than the timeout still finds the answers."""
    fixture = Fixture(own_redis.url, timeout_us=500_000)
    await started(fixture.store)
    client = redis.Redis.from_url(own_redis.url)
    asked = asyncio.create_task(fixture.hit())
    for _ in range(3):
        await asyncio.sleep(0)  # the call is sent

    time.sleep(0.52)  # noqa: ASYNC251 -- which is to hold everything up
    while not client.keys(COUNTERS):
        time.sleep(0.01)  # noqa: ASYNC251 -- until the answer is there

    assert await asked != [None]
    assert fixture.stats.store_errors == {}
    await fixture.store.close()


async def test_a_slow_process_is_not_the_servers_fault(own_redis: RedisServer) -> None:
    """Turns of the loop longer than the timeout make no server sick; all that waits is counted."""
    fixture = Fixture(own_redis.url, timeout_us=300_000)
    await started(fixture.store)
    client = redis.Redis.from_url(own_redis.url)
    answers: list[list[Outcomes]] = []

    for _ in range(8):
        for _ in range(20):  # more than may be under way, so that the last ones are never sent
            fixture.store.charge(
                [[hit(limit=100_000)] for _ in range(100)], hearing(answers.append)
            )
        time.sleep(0.31)  # noqa: ASYNC251 -- which is to hold everything up
        # What was sent before runs by the first answer, perhaps beside it, and is answered by the
        # second: the server writes what it has to say before it reads again.
        client.ping()
        client.ping()
        for _ in range(4):
            await asyncio.sleep(0)
    await until(lambda: len(answers) >= 8 * 20)

    assert fixture.stats.store_errors["circuit_open"] == 0
    assert fixture.stats.store_errors["timeout"] == 0
    assert fixture.stats.store_errors["overloaded"] == 0
    assert sum(outcomes.count([None]) for outcomes in answers) == 0
    assert fixture.health.faults == {}
    await fixture.until(lambda outcomes: outcomes != [None])
    await fixture.store.close()


async def test_a_hung_server_is_found_by_a_slow_process(own_redis: RedisServer) -> None:
    """A process with long turns of its own still leaves a server alone that does not answer."""
    fixture = Fixture(own_redis.url, timeout_us=100_000)
    await started(fixture.store)
    own_redis.stop()

    for _ in range(14):
        fixture.store.charge([[hit()]], lambda _: None)
        time.sleep(0.06)  # noqa: ASYNC251
        for _ in range(4):
            await asyncio.sleep(0)

    assert fixture.stats.store_errors["circuit_open"] > 0
    own_redis.cont()
    assert await fixture.until(lambda outcomes: outcomes != [None])
    await fixture.store.close()


async def test_callers_deadline(own_redis: RedisServer) -> None:
    """A hung server costs a caller that waits for less no more than that; nothing is charged."""
    fixture = Fixture(own_redis.url, timeout_us=3_600_000_000)
    await started(fixture.store)
    own_redis.stop()
    answers: list[list[Outcomes]] = []

    one = hit(limit=1_000, window_us=YEAR)
    fixture.store.charge([[one]], hearing(answers.append), deadline_us=elapsed_us() + 20_000)
    fixture.store.charge([[one]], hearing(answers.append), deadline_us=elapsed_us() - 1)

    assert answers == [[[None]]]
    await until(lambda: len(answers) >= 2)
    own_redis.cont()
    (outcome,) = await fixture.until(lambda outcomes: outcomes != [None])
    assert outcome is not None
    assert outcome.remaining == 999
    await fixture.store.close()
