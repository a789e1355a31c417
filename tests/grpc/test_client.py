"""What needs a clock: greetings that never come, silence, age, windows that stay shut."""

from __future__ import annotations

import asyncio
import select
from pathlib import Path

import pytest

from ratelimit_service.eventloop.clock import elapsed_us
from ratelimit_service.eventloop.scheduler import Scheduler
from ratelimit_service.grpc.h2 import client as served
from ratelimit_service.grpc.h2 import frames
from ratelimit_service.grpc.h2.budget import Memory
from ratelimit_service.grpc.h2.client import Visit
from ratelimit_service.grpc.h2.connection import Event
from ratelimit_service.grpc.h2.frames import ACK, PREFACE, FrameType
from ratelimit_service.grpc.h2.limits import BLOCKED_SECONDS, GREETING_SECONDS, PING_SECONDS
from ratelimit_service.observability.health import Health
from tests.grpc.ends import TURN_SECONDS, Calls, Ends, Wire, take_turn, take_turns
from tests.grpc.h2_client import Client
from tests.grpc.transports import TRANSPORTS
from tests.service.asking import Asking
from tests.waiting import PATIENCE_SECONDS


def many(client: Client, count: int, size: int = 100) -> bytes:
    messages = [b"%0*d" % (size, each) for each in range(count)]
    return b"".join(client.headers() + client.data(each) for each in messages)


class Deciding(Calls):
    """Has each call decided at the end of the turn."""

    def handle(self, client: served.Client, events: list[Event], visit: Visit) -> None:
        before = len(self.messages)
        super().handle(client, events, visit)
        if len(self.messages) > before:
            client.scheduler.later(self._decide, client, len(self.messages) - before)

    def _decide(self, now_us: int) -> None: ...


async def test_large_reads_take_turns() -> None:
    """What a client sends at once is handled in turns, in order, and meanwhile others are heard."""
    scheduler = Scheduler()
    ends = Ends(scheduler=scheduler, calls=(calls := Deciding()))
    other, client = Ends(scheduler=scheduler), Client()

    ends.come(many(Client(), 900))
    other.come(client.headers() + client.data(b"of another"))
    take_turn(scheduler)
    first = len(calls.messages)
    take_turn(scheduler)

    assert 0 < first < 400
    assert other.calls.messages == [b"of another"]
    assert len(calls.messages) < 800
    take_turns(scheduler)
    assert calls.messages == [b"%0100d" % each for each in range(900)]


async def test_who_uses_little_time_goes_first() -> None:
    """Of many clients that all send much that is dear, none is handled twice before another."""
    scheduler = Scheduler()
    greedy = [Ends(seconds=TURN_SECONDS, scheduler=scheduler) for _ in range(20)]
    other, client = Ends(scheduler=scheduler), Client()
    for ends in greedy:
        ends.come(many(Client(), 900))
    for _ in greedy:
        take_turn(scheduler)
    assert [len(ends.calls.visits) for ends in greedy] == [1] * 20

    other.come(client.headers() + client.data(b"of another"))
    take_turn(scheduler)
    take_turn(scheduler)

    assert other.calls.messages == [b"of another"]
    assert sum(len(ends.calls.visits) for ends in greedy) <= 22


async def test_calls_of_a_visit_say_how_long_they_waited() -> None:
    """What has come since some time, at an even pace, has waited for as long as that at most."""
    ends, client = Ends(), Client()

    ends.receive(client.headers() + client.data(b"late"), waited_us=50_000)
    ends.receive(client.headers() + client.data(b"fresh"))

    late, fresh = ends.calls.visits[-2:]
    assert late.oldest_us >= 50_000
    assert fresh.oldest_us < late.oldest_us
    assert (late.behind, fresh.behind) == (0.0, 0.0)


async def test_turns_end_by_themselves() -> None:
    """What was read is handled without anything more being read."""
    ends = Ends()

    ends.come(many(Client(), 900))
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(ends.calls.messages) < 900:
            await asyncio.sleep(0)

    take_turns(ends.scheduler)
    assert len(ends.calls.messages) == 900


async def test_step_of_a_call() -> None:
    """While a call of a client is to be decided in its own turn, what came behind it waits."""
    client = Client()

    class Stepping(Calls):
        def handle(self, client: served.Client, events: list[Event], visit: Visit) -> None:
            super().handle(client, events, visit)
            if self.messages[-1:] == [b"large"]:
                client.in_a_turn_alone(lambda: self.messages.append(b"decided"))

    calls = Stepping()
    ends = Ends(calls=calls)
    ends.come(client.headers() + client.data(b"large"))
    take_turn(ends.scheduler)
    ends.come(client.headers() + client.data(b"small"))
    assert calls.messages == [b"large"]

    take_turns(ends.scheduler)

    assert calls.messages == [b"large", b"decided", b"small"]


async def test_many_undecided_calls_are_known_for_a_while() -> None:
    """A client that had many calls under way counts as one that has, until the second look."""
    its = Ends().served

    assert its.most_undecided(50) == 50
    assert its.most_undecided(1) == 50
    its.look(0.0, 0.0)
    assert its.most_undecided(1) == 50
    its.look(0.0, 0.0)
    assert its.most_undecided(1) == 1


class Told(Calls):
    """Hears of faults."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[str] = []

    def failed(self, error: Exception) -> None:
        self.errors.append(repr(error))


class Failing(Told):
    """Fails on everything."""

    def handle(self, client: served.Client, events: list[Event], visit: Visit) -> None:
        raise KeyError("a fault of ours")


async def test_fault_of_ours_ends_the_connection() -> None:
    """A fault that no call can be blamed for is told, and ends the connection with a word."""
    client, failing = Client(), Failing()
    ends = Ends(calls=failing)

    ends.receive(client.headers() + client.data())

    assert failing.errors == ["KeyError('a fault of ours')"]
    assert ends.wire.kinds()[-1] == FrameType.GOAWAY
    assert ends.wire.closed


class Torn(Wire):
    """A socket that cannot be written to, by a fault that nobody thought of."""

    def write(self, data: bytes) -> None:
        raise RuntimeError("the handle is closed")


async def test_fault_of_a_socket_ends_its_connection_alone() -> None:
    """Others of the same turn are answered, turns go on, and the torn connection is dropped."""
    scheduler = Scheduler()
    failing = Failing()
    torn, other = Ends(scheduler=scheduler, calls=failing), Ends(scheduler=scheduler)
    torn.served.channel = wire = Torn()

    torn.come(frames.ping(b"12345678", ack=False))
    for _ in range(2):
        other.receive(frames.ping(b"12345678", ack=False))
        assert other.wire.kinds() == [FrameType.PING]

    assert wire.closed
    assert "closed" in failing.errors[0]


class Full(Wire):
    """A socket whose other end does not read for now."""

    full = False

    def write(self, data: bytes) -> None:
        super().write(data)
        self.unsent = self.full

    def write_on(self) -> None:
        self.unsent = self.full = False


@pytest.mark.parametrize("sends", [True, False])
async def test_client_that_does_not_read(sends: bool) -> None:
    """Nothing is read from a client that does not read, nor handled, until it reads again."""
    memory, scheduler = Memory(), Scheduler()
    ends = Ends(scheduler=scheduler, memory=memory)
    wire = Full()
    ends.served.channel, old = wire, ends.wire
    scheduler.unwatch(old.socket)
    scheduler.watch(wire.socket, ends.served)
    wire.full = True
    ends.receive(frames.ping(b"12345678", ack=False))
    if sends:
        ends.receive(many(Client(), 900))

    assert ends.calls.messages == []
    assert memory.paused_unread == 1
    wire.full = False
    if ends.served.ready(0, select.EPOLLOUT):
        scheduler.add(ends.served)
    if not sends:
        ends.come(many(Client(), 900))
    take_turns(scheduler)

    assert len(ends.calls.messages) == 900


async def test_clients_that_hang_up() -> None:
    """A client that has gone is dropped without a word, also if it says something first."""
    for said in (b"", frames.ping(b"12345678", ack=False)):
        ends = Ends()
        if ends.served.ready(0, select.EPOLLRDHUP):
            ends.scheduler.add(ends.served)
        ends.wire.unread += said
        take_turns(ends.scheduler)

        assert ends.wire.closed


class Empty(Wire):
    """A socket of whose records most have no contents."""

    empty = 100_000


async def test_records_without_contents() -> None:
    """Who sends many is told to calm down; who then goes on is dropped, and heard no more."""
    client, calls, wire = Client(), Told(), Empty()
    ends = Ends(calls=calls)
    ends.scheduler.unwatch(ends.wire.socket)
    ends.served.channel = wire
    ends.scheduler.watch(wire.socket, ends.served)
    call = client.headers() + client.data(b"call")

    ends.receive(call)
    assert FrameType.GOAWAY in wire.kinds()
    before = len(calls.visits)
    ends.receive(client.headers() + client.data(b"call"))

    assert wire.closed
    assert len(calls.visits) == before
    assert calls.errors == []


async def test_client_that_says_nothing() -> None:
    """A connection on which nothing was said is closed after a while."""
    ends = Ends(greeted=False)

    assert ends.look(GREETING_SECONDS - 1) == []
    assert ends.look(GREETING_SECONDS + 1) == [FrameType.GOAWAY]
    assert ends.wire.closed


async def test_silent_client_that_is_there() -> None:
    """A client that is silent is asked, and if it answers its connection stays for ever."""
    ends = Ends()
    for turn in range(1, 100):
        now = turn * (PING_SECONDS + 1)
        ends.look(now - PING_SECONDS - 1)

        assert ends.look(now + 1) == [FrameType.PING]
        ends.receive(frames.ping(b"are you?", ack=True))
    assert not ends.wire.closed


async def test_client_that_is_gone() -> None:
    """A client that does not answer a ping is given up."""
    ends = Ends()
    ends.look(0)

    assert ends.look(PING_SECONDS + 1) == [FrameType.PING]
    assert ends.look(PING_SECONDS + 2) == []
    assert not ends.wire.closed
    ends.look(2 * PING_SECONDS + 3)
    assert ends.wire.closed


async def test_windows_that_stay_shut() -> None:
    """A client that lets no answer through is given up after a while."""
    ends, client = Ends(), Client()
    window = frames.settings({frames.SettingId.INITIAL_WINDOW_SIZE: 0})
    ends.receive(window + client.headers() + client.data())
    ends.served.connection.sender.answer(1, b"answer")

    ends.look(1)
    ends.look(BLOCKED_SECONDS - 1)
    assert not ends.wire.closed
    ends.look(BLOCKED_SECONDS + 2)
    assert ends.wire.closed


async def test_old_connection() -> None:
    """A connection above the age is ended gracefully: notice, last call, last round, end."""
    ends = Ends()

    assert ends.look(5, max_age=10) == []
    assert ends.look(11, max_age=10) == [FrameType.GOAWAY, FrameType.PING]
    ends.receive(frames.ping(b"lastcall", ack=True))
    assert ends.wire.kinds() == [FrameType.PING]
    ends.receive(frames.ping(b"all over", ack=True))
    assert ends.wire.kinds() == [FrameType.GOAWAY]
    assert ends.wire.closed


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_age_over_real_sockets(tmp_path: Path, transport: str) -> None:
    """Both transports send clients elsewhere when their connection is old."""
    service = Asking(tmp_path, "domain: edge").service
    server = TRANSPORTS[transport]("127.0.0.1:0", service, Health(), 1_000)
    port = await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(PREFACE + frames.settings({}) + frames.frame(FrameType.SETTINGS, ACK, 0, b""))

    kind = None
    async with asyncio.timeout(PATIENCE_SECONDS):
        while kind != FrameType.GOAWAY:
            head = await reader.readexactly(9)
            kind = head[3]
            await reader.readexactly(int.from_bytes(head[:3], "big"))

    assert kind == FrameType.GOAWAY
    writer.close()
    await server.stop(0)


async def test_a_call_after_a_silence_is_fresh() -> None:
    """What comes together with the client's reading again has not waited since it stopped."""
    ends, client = Ends(), Client()
    ends.wire.unsent = True
    ends.receive(frames.ping(b"12345678", ack=False))
    ends.served._since_us -= 60_000_000
    ends.served._until_us -= 60_000_000
    ends.wire.unsent = False

    ends.wire.unread += client.headers() + client.data(b"fresh")
    assert ends.served.ready(elapsed_us(), select.EPOLLIN | select.EPOLLOUT)
    ends.scheduler.add(ends.served)
    take_turns(ends.scheduler)

    assert ends.calls.messages == [b"fresh"]
    assert ends.calls.visits[-1].oldest_us < 60_000_000
