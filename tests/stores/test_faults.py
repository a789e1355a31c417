"""What is admitted and counted while the way to Redis is slow, held up or cut."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

import pytest
import redis

from ratelimit_service.eventloop.clock import elapsed_us
from ratelimit_service.model import FailurePolicy, Hit, Outcome, Receipt
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.stores import Outcomes
from ratelimit_service.stores.redis import RedisStore, server
from ratelimit_service.stores.redis.batch import Background
from ratelimit_service.stores.redis.script import ScriptCall
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisServer
from tests.stores.cases import YEAR, charged
from tests.stores.cases import hit as minutely
from tests.waiting import PATIENCE_SECONDS, until


def hit(addend: int = 1, *, key: str = "a", limit: int = 1_000) -> Hit:
    one = minutely(addend, key=key, limit=limit, window_us=YEAR)
    return one._replace(policy=FailurePolicy.CLOSED)


class Fixture:
    """A store behind a proxy; a test's own clock decides how long it waits."""

    def __init__(self, of: RedisServer) -> None:
        self.server = of
        self.proxy = Proxy(of.port)
        self.stats, self.health = Stats(), Health()

    async def start(self, timeout_us: int) -> None:
        port = await self.proxy.start()
        url = f"redis://127.0.0.1:{port}/0"
        self.store = RedisStore(url, timeout_us, self.stats, self.health)
        await self.store.start()

    async def until(self, condition: Callable[[Outcomes], bool]) -> Outcomes:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                (outcomes,) = await charged(self.store, [[hit()]])
                if condition(outcomes):
                    return outcomes
                await asyncio.sleep(0.01)

    def count(self) -> int:
        state = redis.Redis.from_url(self.server.url).get(hit().key)
        return int(state) & 0xFFFFFFFF if isinstance(state, bytes) else 0


@pytest.fixture
async def fixture(own_redis: RedisServer) -> AsyncIterator[Fixture]:
    fixture = Fixture(own_redis)
    yield fixture
    await fixture.store.close()
    await fixture.proxy.close()


def answered(outcomes: Outcomes) -> bool:
    return outcomes != [None]


async def test_slow_way(fixture: Fixture) -> None:
    """On a way slower than the timeout policies decide, and what came too late counts nothing."""
    await fixture.start(timeout_us=20_000)
    await fixture.until(answered)
    (shard,) = fixture.store.shards
    counted, errors = fixture.count(), fixture.stats.store_errors
    errors.clear()
    fixture.proxy.delay_seconds = 0.3
    # With this on its way the server is late at each charge's end, however slow this machine is.
    ping = shard.call("PING")
    assert ping is not None
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not shard.server.late(elapsed_us(), 20_000):
            await asyncio.sleep(0)
    while shard.available:
        assert await charged(fixture.store, [[hit()]]) == [[None]]
    assert [await charged(fixture.store, [[hit()]]) for _ in range(3)] == [[[None]]] * 3
    del errors["overloaded"]  # those that a busy machine did not send in time
    assert errors == {"timeout": 5, "circuit_open": 3}

    fixture.proxy.clear()

    async with asyncio.timeout(PATIENCE_SECONDS):
        while not shard.available:  # by then all that was sent has come to the server
            await asyncio.sleep(0.01)
    assert fixture.count() == counted
    (outcome,) = await fixture.until(answered)
    assert outcome is not None
    assert outcome.remaining == 1_000 - fixture.count()
    assert fixture.count() > counted


async def test_half_open_connection(fixture: Fixture) -> None:
    """A connection on which nothing moves any more is given up and made anew."""
    await fixture.start(timeout_us=20_000)
    await fixture.until(answered)
    (shard,) = fixture.store.shards
    counted = fixture.count()
    fixture.proxy.hold = True
    await fixture.until(lambda _: not shard.available)
    await until(lambda: "no reply for" in fixture.health.faults["store"])

    fixture.proxy.clear()

    await until(lambda: shard.available)
    assert fixture.count() == counted
    await fixture.until(answered)
    # A busy machine can be slower than the timeout once more, and is then well again.
    await fixture.until(lambda _: fixture.health.faults == {})


async def test_replies_that_trickle(fixture: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection on which bytes come, but no reply becomes whole, is given up and made anew."""
    monkeypatch.setattr(server, "_STALLED_SECONDS", 0.2)
    await fixture.start(timeout_us=20_000)
    await fixture.until(answered)
    (shard,) = fixture.store.shards
    fixture.proxy.surplus = b"$4000\r\n" + bytes(4_000)
    fixture.proxy.trickle = True
    await fixture.until(lambda _: not shard.available)
    await until(lambda: "no whole reply for" in fixture.health.faults["store"])

    fixture.proxy.clear()

    await until(lambda: shard.available)
    await fixture.until(answered)


async def test_reset_in_the_middle_of_a_reply(fixture: Fixture) -> None:
    """A lost reply is an outcome unknown; the next connection counts on."""
    await fixture.start(timeout_us=5_000_000)
    await fixture.until(answered)
    fixture.proxy.cut = True

    assert await charged(fixture.store, [[hit()]]) == [[None]]

    assert fixture.stats.store_errors == {"unknown": 1}
    await fixture.until(answered)
    assert fixture.count() == 3


async def undo(fixture: Fixture) -> Background:
    """What gives back a charge of 3 that was counted."""
    assert await fixture.until(answered)
    await charged(fixture.store, [[hit(2)]])
    now = fixture.store.shards[0].server.clock.now_us()
    window_us = hit().spec.window_us
    receipt = Receipt(now, now - now % window_us + window_us)
    return Background([[hit(3)._replace(refund=True, receipt=receipt)]])


async def test_give_back_whose_reply_is_lost(fixture: Fixture) -> None:
    """What may have been given back is not given back again, and counts as lost."""
    await fixture.start(timeout_us=5_000_000)
    errand = await undo(fixture)
    (shard,) = fixture.store.shards
    fixture.proxy.cut = True

    shard.charge(errand)

    await until(lambda: bool(fixture.stats.lost_give_backs))
    await fixture.until(answered)
    assert fixture.stats.lost_give_backs == {"unknown": 1}
    assert fixture.count() == 1


async def test_give_back_that_is_refused(fixture: Fixture) -> None:
    """What a server refuses to give back for now is given back once it does so, and once only."""
    await fixture.start(timeout_us=5_000_000)
    errand = await undo(fixture)
    (shard,) = fixture.store.shards
    with redis.Redis.from_url(fixture.server.url) as client:
        client.replicaof("127.0.0.1", "1")
        shard.charge(errand)
        await until(lambda: "READONLY" in str(fixture.health.faults))

        client.replicaof("NO", "ONE")

    await until(lambda: not fixture.count())
    assert fixture.stats.lost_give_backs == {}


async def test_too_many_give_backs_wait(fixture: Fixture, caplog: pytest.LogCaptureFixture) -> None:
    """Of more than 10,000 give-backs for a server that is away the oldest are lost: it is said."""
    await fixture.start(timeout_us=5_000_000)
    (shard,) = fixture.store.shards
    fixture.server.kill()
    await until(lambda: not shard.available)
    told: list[object] = []

    with caplog.at_level(logging.WARNING):
        for _ in range(10_003):
            shard.charge(Background([[hit(2, key="b")._replace(refund=True)]], told.append))

    assert fixture.stats.lost_give_backs == {"overflow": 3}
    assert told == [None] * 3
    assert caplog.text.count("too much waits to be given back") == 1
    await shard.close()


NUMBER = b":%d\r\n"
SURPLUS = {
    "a number": NUMBER % 1,
    "a word": b"+OK\r\n",
    "nothing": b"$-1\r\n",
    "an error": b"-ERR of somebody else\r\n",
    "no integers": b"*0\r\n",
    "integers of another form": b"*6\r\n" + NUMBER % 7 * 6,
    "words for integers": b"*6\r\n" + b"+7\r\n" * 6,
    "integers in a list in a list": b"*1\r\n*6\r\n" + NUMBER % 7 * 6,
    "below zero": b"*6\r\n" + NUMBER % -1 * 6,
    "a text of that length": b"$38\r\n" + bytes(38) + b"\r\n",
    "no Redis": b"HTTP/1.1 200 OK\r\n\r\n",
    "the last reply again": b"",
}


@pytest.mark.parametrize("surplus", SURPLUS.values(), ids=SURPLUS)
async def test_surplus_reply(fixture: Fixture, surplus: bytes) -> None:
    """However replies get out of step, nobody is given another's; then counting goes on."""
    await fixture.start(timeout_us=5_000_000)
    await fixture.until(answered)
    ((rich,),) = await charged(fixture.store, [[hit(key="rich")]])
    assert rich is not None
    fixture.proxy.surplus = surplus or fixture.proxy.last_reply
    calls = []
    for number in range(50):
        one = hit(key=f"{number}", limit=number + 2)
        calls.append(asyncio.ensure_future(charged(fixture.store, [[one]])))
        await asyncio.sleep(0)

    answers = [(await call)[0][0] for call in calls]

    remaining = [(place, outcome.remaining) for place, outcome in enumerate(answers) if outcome]
    assert remaining == [(place, place + 1) for place, _ in remaining]
    assert len(remaining) < 50
    await fixture.until(answered)
    ((after,),) = await charged(fixture.store, [[hit(key="rich")]])
    assert after == rich.replaced(
        remaining=rich.remaining - 1, reset_us=after.reset_us if after else 0
    )


@pytest.mark.parametrize("surplus", [b"*0\r\n", b"*2\r\n+x\r\n+y\r\n", b"+PONG\r\n", b":7\r\n"])
async def test_surplus_reply_while_nothing_is_charged(fixture: Fixture, surplus: bytes) -> None:
    """A reply that a beat gets instead of its own ends the connection; the next one is well."""
    await fixture.start(timeout_us=5_000_000)
    await fixture.until(answered)
    (shard,) = fixture.store.shards
    first = shard.server.connection

    fixture.proxy.surplus = surplus
    await until(lambda: shard.server.connection is not first)

    await fixture.until(answered)
    assert shard.processes == 1


@pytest.mark.parametrize(
    "surplus",
    [b"*2\r\n+x\r\n+y\r\n", b":7\r\n", b"*1\r\n:1\r\n", b"$-1\r\n", b"*-1\r\n", b"-ERR no\r\n"],
)
async def test_surplus_reply_to_a_greeting(fixture: Fixture, surplus: bytes) -> None:
    """What a new connection is told out of step is a fault to live with: it is tried again."""
    fixture.proxy.surplus = surplus
    await fixture.start(timeout_us=5_000_000)

    await fixture.until(answered)

    assert fixture.health.faults == {}


HEAD = (77).to_bytes(8, "big") + (1_700_000_000_000_000).to_bytes(8, "big")
OUTCOME = b"\0" + (5).to_bytes(4, "big") + (5).to_bytes(8, "big") + (1).to_bytes(8, "big") + b"\0"


def script_call(requests: list[list[Hit]]) -> ScriptCall:
    """A call of the number that replies begin with."""
    call = ScriptCall(77, 0)
    call.add(Background(requests), range(len(requests)))
    return call


def test_reply_that_can_be() -> None:
    """A reply is the call's number, the time, and what became of each hit."""
    call = script_call([[hit()], [hit()]])

    assert call.read(HEAD + OUTCOME + b"\1" + OUTCOME[1:])
    assert call.at_us == 1_700_000_000_000_000
    assert list(call.found) == [Outcome(False, 5, 5, 1), Outcome(True, 5, 5, 1)]
    assert not call.damaged
    assert not call.late


@pytest.mark.parametrize(
    ("rest", "within"),
    [(OUTCOME, True), (b"\1" + OUTCOME[1:], False), (OUTCOME + b"\0\2", False)],
    ids=["within", "one is over", "one came too late"],
)
def test_whether_all_hits_of_a_reply_are_within(rest: bytes, within: bool) -> None:
    """They are if none is over and each has an outcome."""
    call = script_call([[hit()], [hit()]])

    assert call.read(HEAD + OUTCOME + rest)
    assert call.within is within


@pytest.mark.parametrize(
    "reply",
    [
        HEAD,
        HEAD + OUTCOME[1:],
        HEAD + OUTCOME * 2,
        HEAD + OUTCOME + b"\0\0",
        b"\1" + HEAD[1:] + OUTCOME,
        [77, 1_700_000_000_000_000, 0, 5, 5, 1, 0],
        77,
        None,
    ],
)
def test_reply_of_another_form(reply: object) -> None:
    """A reply that is too short, too long, of another call or of another kind is not taken."""
    assert not script_call([[hit()]]).read(reply)


@pytest.mark.parametrize(("at", "value"), [(0, 2), (5, 1), (5, 255), (22, 4), (22, 255)])
def test_reply_with_values_that_cannot_be(at: int, value: int) -> None:
    """A reply of the right form that says what no counter can say is no answer."""
    said = bytearray(OUTCOME + b"\0")
    said[at] = value

    assert not script_call([[hit()]]).read(HEAD + bytes(said))
