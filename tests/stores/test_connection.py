"""One connection to Redis: what it has read is handed on in order, and not all in one go."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from functools import partial

import pytest
import redis
import uvloop

from ratelimit_service import compiled
from ratelimit_service.eventloop import scheduler
from ratelimit_service.eventloop.clock import elapsed_us
from ratelimit_service.eventloop.scheduler import TURN_US, shared_scheduler
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.stores import Outcomes
from ratelimit_service.stores.redis import RedisStore, connection
from ratelimit_service.stores.redis.connection import RedisConnection, Reply
from tests.grpc.served_ends import rounds
from tests.servers.redis import RedisServer
from tests.stores.cases import YEAR, T, hearing, hit
from tests.stores.redis_store import started

HITS = 128
"""Of a full script call."""

TIMEOUT_US = 300_000
"""Longer than a busy machine holds up a server, and short enough to wait for its end."""

Ends = Callable[[RedisConnection], None]


class Wire(asyncio.Transport):
    """Where the bytes go: nowhere."""

    def write(self, data: bytes | bytearray | memoryview) -> None: ...

    def abort(self) -> None: ...


def take_a_turn() -> None:
    """Works for as long as a turn may take."""
    until = elapsed_us() + TURN_US
    while elapsed_us() < until:
        pass


class Bytes:
    """A client that has sent something for so many visits, each of which takes a turn."""

    used_us = 0

    def __init__(self, pieces: int, take: Callable[[], None] = take_a_turn) -> None:
        self._pieces, self._take, self.handled = pieces, take, 0

    def has_much(self) -> bool:
        return False

    def ready(self, since_us: int, events: int) -> bool:
        return True

    def visit(self, now_us: int, most: int, each_us: int, *, alone: bool) -> bool:
        self._take()
        self.handled += 1
        return self.handled < self._pieces

    def flush(self) -> None: ...

    def fail(self, error: Exception) -> None:
        raise error


class Way:
    """A connection whose server's bytes a test writes, and what it hands on."""

    def __init__(self, *, slow: bool = False) -> None:
        """Those who are `slow` need a turn's time for each reply."""
        self._slow = slow
        self.connection = RedisConnection()
        self.connection.connection_made(Wire())
        self.told: list[tuple[int, bool]] = []
        """The numbers of calls in the order in which they were answered, and whether they were."""

    def ask(self, count: int) -> None:
        for number in range(count):
            self.connection.send(("PING",), partial(self.tell, number))

    def tell(self, number: int, reply: Reply) -> None:
        self.told.append((number, reply is not None))
        if self._slow:
            take_a_turn()

    def say(self, count: int, hits: int = HITS) -> None:
        """Sends so many replies, each as long as the one to a script call of so many hits."""
        text = b"x" * (16 + 22 * hits)
        self.connection.data_received(b"$%d\r\n%b\r\n" % (len(text), text) * count)

    async def turns(self, count: int) -> list[int]:
        """Lets the loop turn until all is told; how many were told in each turn."""
        found = [len(self.told)]
        while len(self.told) < count:
            await asyncio.sleep(0)
            found.append(len(self.told) - sum(found))
        return found


async def test_many_replies_at_once() -> None:
    """Of many replies that come in one read and take a turn's time each has its own, in order."""
    way = Way(slow=True)
    way.ask(10)

    way.say(10)

    assert max(await way.turns(10)) == 1
    assert way.told == [(number, True) for number in range(10)]


@pytest.mark.skipif(compiled(), reason="its clock cannot be changed then")
async def test_replies_share_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many large replies are handed on in a turn as fit into its time, before any bytes.

    So what is asked for in a turn of bytes does not take several turns to come back.
    """
    now_us = 0
    for part in (scheduler, connection):
        monkeypatch.setattr(part, "elapsed_us", lambda: now_us)

    def take_a_third(number: int, reply: Reply) -> None:
        nonlocal now_us
        now_us += TURN_US // 3
        way.told.append((number, reply is not None))

    def take_a_turn() -> None:
        nonlocal now_us
        now_us += TURN_US

    way, client = Way(), Bytes(3, take_a_turn)
    for number in range(7):
        way.connection.send(("PING",), partial(take_a_third, number))
    shared_scheduler().add(client)

    way.say(7)

    found = []
    while client.handled < 3:
        await asyncio.sleep(0)
        found.append((len(way.told), client.handled))
    assert found == [(4, 0), (7, 1), (7, 2), (7, 3)]


async def test_a_reply_without_end() -> None:
    """What a server sends of one reply has a bound; a long reply that is whole has been read."""
    connection = RedisConnection()
    connection.connection_made(Wire())
    replies: list[Reply] = []
    for _ in range(2):
        connection.send(("PING",), replies.append)
    whole, part = b"$1000000\r\n" + bytes(1_000_000) + b"\r\n", bytes(1 << 20)

    connection.data_received(whole)
    connection.data_received(b"$500000000\r\n")
    sent = 0
    while not connection.lost.done():
        connection.data_received(part)
        sent += len(part)
        assert sent <= 65 << 20

    await rounds()
    assert sent > 63 << 20
    assert replies == [bytes(1_000_000), None]
    assert connection.lost.result() == "a reply without end"


async def test_small_replies() -> None:
    """Small replies that come in one read are handed on in few turns: they share them."""
    way = Way()
    way.ask(128)

    way.say(128, 1)

    assert sum(told > 0 for told in await way.turns(128)) <= 4
    assert way.told == [(number, True) for number in range(128)]


async def test_usual_reply() -> None:
    """A reply that comes alone is handed on as it is read, also the largest."""
    way = Way()
    way.ask(1)

    way.say(1)

    assert way.told == [(0, True)]


@pytest.mark.parametrize("first", ["bytes", "replies"])
async def test_replies_beside_bytes(first: str) -> None:
    """In a round of the loop replies are handed on or bytes are handled, and both go on in turn."""
    ways, client = [Way(slow=True), Way(slow=True)], Bytes(8)
    for way in ways:
        way.ask(4)
    if first == "bytes":
        shared_scheduler().add(client)
        before = client.handled
    for way in ways:
        way.say(4)
    if first == "replies":
        shared_scheduler().add(client)
        before = 0

    found: list[int] = []
    while sum(found) < 16 - before:
        done = client.handled + sum(len(way.told) for way in ways)
        found.append(done - before)
        before = done
        await asyncio.sleep(0)

    assert max(found) == 1


async def test_reply_before_a_turn() -> None:
    """A reply that is read while a turn is due is handed on in it, before any bytes."""
    way, client = Way(), Bytes(1, lambda: told.extend(way.told))
    told: list[tuple[int, bool]] = []
    way.ask(1)
    shared_scheduler().add(client)

    way.say(1)
    assert way.told == []
    await asyncio.sleep(0)

    assert client.handled == 1
    assert told == [(0, True)]


@pytest.mark.parametrize(
    "end",
    [
        lambda connection: connection.connection_lost(None),
        lambda connection: connection.close("given up"),
        lambda connection: connection.data_received(b"no reply of Redis\r\n"),
    ],
    ids=["lost", "closed", "damaged"],
)
async def test_end_with_replies_read(end: Ends) -> None:
    """A reply that was read is handed on, though the connection ends; other calls get none."""
    way = Way(slow=True)
    way.ask(5)
    way.say(3)

    end(way.connection)

    assert max(await way.turns(5)) <= 2
    assert way.told == [(0, True), (1, True), (2, True), (3, False), (4, False)]


async def test_distrusted_with_replies_read() -> None:
    """If a reply does not fit its call, none that was read behind it is believed."""
    way = Way()
    way.ask(3)
    way.connection.send(("PING",), lambda _: way.connection.distrust())
    way.connection.send(("PING",), partial(way.tell, 3))

    way.say(5)

    await way.turns(4)
    assert way.told == [(0, True), (1, True), (2, True), (3, False)]


def test_replies_read_in_time(redis_server: RedisServer) -> None:
    """Replies that are read when time is over are believed, however long handing on takes."""
    redis_server.flush()

    found = uvloop.run(busy_while_replies_come(redis_server.url))

    assert len(found) == 256
    assert [None] not in found


async def busy_while_replies_come(url: str) -> list[Outcomes]:
    store = RedisStore(url, TIMEOUT_US, Stats(), Health(), lambda: T)
    await started(store)
    found: list[Outcomes] = []
    for batch in range(2):
        hits = [[hit(key=f"{batch}-{key}", window_us=YEAR)] for key in range(128)]
        store.charge(hits, hearing(found.extend))
        await asyncio.sleep(0)  # sent
    client = redis.Redis.from_url(url)
    busy, wake = socket.socketpair()

    def be_busy() -> None:
        """Reads nothing until the replies have come and time is over; then timers ring first."""
        asyncio.get_running_loop().remove_reader(busy)
        until = elapsed_us() + TIMEOUT_US + 10_000
        while elapsed_us() < until or not client.keys("*1-127*"):
            client.ping()
        # The last call has run, and may have run beside the question. The server writes what it
        # has to say before it reads again, so with this answer all replies have come.
        client.ping()

    asyncio.get_running_loop().add_reader(busy, be_busy)
    wake.send(b"x")
    while len(found) < 256:
        await asyncio.sleep(0)
    await store.close()
    busy.close()
    wake.close()
    return found
