"""What needs a clock: greetings that never come, silence, age, windows that stay shut."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from ratelimit_service import compiled
from ratelimit_service.eventloop import clock
from ratelimit_service.eventloop.turns import TURN_US, Turns
from ratelimit_service.grpc.h2 import frames
from ratelimit_service.grpc.h2.connection import Received
from ratelimit_service.grpc.h2.frames import ACK, PREFACE, FrameType
from ratelimit_service.grpc.h2.limits import BLOCKED_SECONDS, GREETING_SECONDS, PING_SECONDS
from ratelimit_service.grpc.h2.protocol import Http2Protocol
from ratelimit_service.observability.health import Health
from tests.grpc.ends import TURN_SECONDS, Calls, Ends, Wire, held_back
from tests.grpc.h2_client import Client, messages
from tests.grpc.taken_turns import take_turn
from tests.grpc.transports import TRANSPORTS
from tests.servers.process import PATIENCE_SECONDS
from tests.service.asking import Asking


def many(client: Client, count: int, size: int = 100) -> bytes:
    messages = [b"%0*d" % (size, each) for each in range(count)]
    return b"".join(client.headers() + client.data(each) for each in messages)


async def test_large_reads_take_turns() -> None:
    """What a client sends at once is handled in turns, in order, and meanwhile others are heard."""
    turns = held_back()
    ends, other = Ends(seconds=TURN_SECONDS, turns=turns), Ends(turns=turns)
    client = Client()

    ends.protocol.data_received(many(Client(), 900))
    other.protocol.data_received(client.headers() + client.data(b"of another"))
    take_turn(turns)
    first = len(ends.calls.messages)
    take_turn(turns)

    assert 0 < first < 100
    assert other.calls.messages == [b"of another"]
    assert len(ends.calls.messages) < 200
    while turns._waiting:
        take_turn(turns)
    assert ends.calls.messages == [b"%0100d" % each for each in range(900)]


async def test_who_uses_little_time_goes_first() -> None:
    """Of many clients that all send much that is dear, none is handled twice before another."""
    turns = held_back()
    greedy = [Ends(seconds=TURN_SECONDS, turns=turns) for _ in range(20)]
    other, client = Ends(turns=turns), Client()
    for ends in greedy:
        ends.protocol.data_received(many(Client(), 900))
    for _ in greedy:  # a second time some have used as much as a piece may count, on a slow machine
        take_turn(turns)

    handled = sum(len(ends.calls.messages) for ends in greedy)
    other.protocol.data_received(client.headers() + client.data(b"of another"))
    take_turn(turns)
    take_turn(turns)

    assert other.calls.messages == [b"of another"]
    assert sum(len(ends.calls.messages) for ends in greedy) <= handled + 64
    assert min(len(ends.calls.messages) for ends in greedy) > 0


@pytest.mark.skipif(compiled(), reason="its clock cannot be replaced then")
@pytest.mark.parametrize(("piece_us", "together"), [(0, True), (TURN_US // 2, False)])
async def test_a_read_of_little_work_is_handled_in_a_row(
    monkeypatch: pytest.MonkeyPatch, piece_us: int, together: bool
) -> None:
    """Two pieces of a client follow each other if the first takes less than half a turn."""
    now = SimpleNamespace(us=10**9)
    system = SimpleNamespace(monotonic_ns=lambda: now.us * 1_000, time_ns=lambda: now.us * 1_000)
    monkeypatch.setattr(clock, "time", system)
    turns, order = held_back(), list[str]()

    class Noting(Calls):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def handle(self, protocol: Http2Protocol, received: Received, *, at_once: bool) -> None:
            order.append(self.name)
            now.us += piece_us

    both = [Ends(turns=turns), Ends(turns=turns)]
    for name, ends in zip("ab", both, strict=True):
        ends.protocol._calls = Noting(name)
        ends.protocol.data_received(many(Client(), 48))
    while turns._waiting:
        take_turn(turns)

    assert "".join(order[:4]) == ("aabb" if together else "abab")


async def test_calls_in_bulk_are_one_piece() -> None:
    """Many usual calls that a client sends at once, again and again, are handed on together.

    After a message that is no usual one the next piece is small again.
    """
    ends, client, pieces = Ends(), Client(), list[int]()

    class Noting(Calls):
        def handle(self, protocol: Http2Protocol, received: Received, *, at_once: bool) -> None:
            pieces.append(len(messages(received)))

    ends.protocol._calls = Noting()
    client.connection = ends.protocol.connection
    client.settle()
    found = []
    for count, size in ((48, 100), (48, 100), (1, 200), (48, 100)):
        data = many(client, count, size)
        pieces.clear()
        ends.receive(data)
        found.append(len(pieces))

    assert found == [3, 1, 1, 3]


async def test_many_undecided_calls_are_known_for_a_while() -> None:
    """A client that had many calls under way counts as one that has, until the second look."""
    protocol = Ends().protocol

    assert protocol.most_undecided(50) == 50
    assert protocol.most_undecided(1) == 50
    protocol.look(0.0, 0.0)
    assert protocol.most_undecided(1) == 50
    protocol.look(0.0, 0.0)
    assert protocol.most_undecided(1) == 1


async def test_little_is_handled_as_it_is_read() -> None:
    """Where nobody else waits no turn of the loop lies between a call and its answer."""
    ends, client = Ends(turns=Turns()), Client()

    ends.protocol.data_received(client.headers() + client.data(b"at once"))

    assert ends.calls.messages == [b"at once"]


async def test_what_is_read_together_takes_turns() -> None:
    """Dear calls of many clients, read one after the other, are not all handled in one go."""
    turns = Turns()
    clients = [Ends(seconds=TURN_SECONDS, turns=turns) for _ in range(20)]
    while turns._waiting:
        take_turn(turns)
    turns._lately_us = 0
    for ends in clients:
        ends.calls.messages.clear()

    client = Client()
    call = client.headers() + client.data(b"dear")
    for ends in clients:
        ends.protocol.data_received(call)

    assert 0 < sum(len(ends.calls.messages) for ends in clients) <= 2


async def test_a_step_that_fails() -> None:
    """A fault in one's step is for the log of the loop, and costs nobody else their turn."""
    turns, done, said = Turns(), asyncio.Event(), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, about: said.append(about["message"]))

    def fail() -> None:
        raise ValueError("of ours")

    turns.alone(fail, 1)
    turns.go_on(fail)
    turns.alone(done.set, 1)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await done.wait()

    assert len(said) == 2


async def test_no_time_can_be_saved_up() -> None:
    """A client that has long been silent does not keep others from their turns."""
    turns = held_back()
    busy, silent = Ends(seconds=TURN_SECONDS, turns=turns), Ends(seconds=TURN_SECONDS, turns=turns)
    busy.protocol.data_received(many(Client(), 900))
    for _ in range(10):
        take_turn(turns)
    handled = len(busy.calls.messages)

    silent.protocol.data_received(many(Client(), 900))
    last_us = busy.protocol.used_us - turns._least_us  # more than a turn, if the machine stalled
    for _ in range(5 + last_us // TURN_US):
        take_turn(turns)

    assert len(busy.calls.messages) > handled


@pytest.mark.parametrize("size", [9_000, 15_000, 60_000])
async def test_large_messages_have_turns_of_their_own(size: int) -> None:
    """However little else was handled in a turn, a large message is decided in the next one."""
    turns = Turns()
    many = [(Ends(turns=turns), Client()) for _ in range(5)]
    for ends, client in many:
        payload = b"\0" + size.to_bytes(4, "big") + bytes(size)
        parts = [payload[at : at + 16_000] for at in range(0, len(payload), 16_000)]
        data = [client.headers() + client.data(b"small"), client.headers()]
        for part in parts:
            flags = frames.END_STREAM if part is parts[-1] else 0
            data.append(frames.frame(FrameType.DATA, flags, client.stream_id, part))
        ends.protocol.data_received(b"".join(data))

    heard = [ends.calls.messages for ends, _ in many]
    large = [0]
    while turns._waiting:
        take_turn(turns)
        large.append(sum(len(each) == size for messages in heard for each in messages))

    assert [sorted(map(len, each)) for each in heard] == [[5, size]] * 5
    assert max(after - before for before, after in pairwise(large)) == 1


async def test_small_calls_go_before_large_ones() -> None:
    """Who asks little has the next turn, however many others have sent large messages."""
    turns = held_back()
    other, client = Ends(turns=turns), Client()
    large = [(Ends(turns=turns, seconds=TURN_SECONDS), Client()) for _ in range(20)]
    for ends, each in large:
        ends.protocol.data_received(each.headers() + each.data(bytes(12_000)))
    for _ in range(3):
        take_turn(turns)

    for number in range(3):
        other.protocol.data_received(client.headers() + client.data(b"%d" % number))
        while other.protocol._waiting:
            take_turn(turns)

    assert other.calls.messages == [b"0", b"1", b"2"]
    assert sum(len(ends.calls.messages) for ends, _ in large) <= 10


@pytest.mark.parametrize("at_once", [True, False])
async def test_new_connections_have_saved_nothing_up(at_once: bool) -> None:
    """A client that was long alone, and used much time, is not behind those that come new."""
    turns = Turns() if at_once else held_back()
    old, client = Ends(turns=turns, seconds=TURN_SECONDS), Client()
    for _ in range(20):
        if at_once:
            turns._lately_us = 0
        old.receive(client.headers() + client.data(b"alone"))
    new = Ends(turns=turns, seconds=TURN_SECONDS)
    turns._lately_us = 1 << 62

    new.protocol.data_received(many(Client(), 900))
    old.protocol.data_received(client.headers() + client.data(b"beside others"))
    last_us = old.protocol.used_us - turns._least_us  # more than a turn, if the machine stalled
    for _ in range(3 + last_us // TURN_US):
        take_turn(turns)

    assert old.calls.messages[-1] == b"beside others"
    assert len(new.calls.messages) < 100


async def test_turns_end_by_themselves() -> None:
    """What was read is handled without anything more being read."""
    ends = Ends()

    ends.protocol.data_received(many(Client(), 900))
    while turns := len(ends.calls.messages) < 900:
        await asyncio.sleep(0)

    assert not turns
    assert not ends.turns._waiting


async def test_client_that_sends_faster_than_it_is_handled() -> None:
    """A client of which much waits to be handled is not read from until it is."""
    ends = Ends()

    ends.protocol.data_received(many(Client(), 900, size=1_000))
    assert not ends.wire.reading

    while ends.turns._waiting:
        take_turn(ends.turns)
    assert ends.wire.reading
    assert len(ends.calls.messages) == 900


class Failing(Calls):
    """Fails on everything."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[str] = []

    def handle(self, protocol: Http2Protocol, received: Received, *, at_once: bool) -> None:
        raise KeyError("a fault of ours")

    def failed(self, error: Exception) -> None:
        self.errors.append(repr(error))


async def test_fault_of_ours_ends_the_connection() -> None:
    """A fault that no call can be blamed for is told, and ends the connection with a word."""
    ends, client = Ends(), Client()
    ends.calls = ends.protocol._calls = Failing()

    ends.receive(client.headers() + client.data())

    assert ends.calls.errors == ["KeyError('a fault of ours')"]
    assert ends.wire.kinds()[-1] == FrameType.GOAWAY
    assert ends.wire.closed


class Torn(Wire):
    """A socket that cannot be written to, by a fault that nobody thought of."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        raise RuntimeError("the handle is closed")


async def test_fault_of_a_socket_ends_its_connection_alone() -> None:
    """Others of the same turn are answered, turns go on, and the torn connection is dropped."""
    turns = Turns()
    torn, other = Ends(turns=turns), Ends(turns=turns)
    torn.protocol._calls = failing = Failing()
    torn.protocol._transport = wire = Torn()

    for _ in range(2):
        torn.protocol.data_received(frames.ping(b"12345678", ack=False))
        other.receive(frames.ping(b"12345678", ack=False))
        assert other.wire.kinds() == [FrameType.PING]

    assert wire.closed
    assert "closed" in failing.errors[0]


async def test_client_that_does_not_read() -> None:
    """A client that does not read is not read from, nor is anything handled until it reads."""
    ends = Ends(seconds=TURN_SECONDS)
    ends.protocol.data_received(many(Client(), 900))
    take_turn(ends.turns)

    ends.protocol.pause_writing()
    while ends.turns._waiting:
        take_turn(ends.turns)
    handled = len(ends.calls.messages)

    assert handled < 100
    assert not ends.wire.reading
    ends.protocol.resume_writing()
    while ends.turns._waiting:
        take_turn(ends.turns)
    assert len(ends.calls.messages) == 900
    assert ends.wire.reading


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
    ends.protocol.connection.sender.answer(1, b"answer")

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
