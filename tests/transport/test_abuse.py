"""What a client may cost and make us keep: bounds by counted work and bytes, never by the clock."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Callable
from pathlib import Path

import hpack
import pytest

from ratelimit_service.health import Health
from ratelimit_service.observer import Stats
from ratelimit_service.transport.h2 import H2Server, frames
from ratelimit_service.transport.h2.account import Memory
from ratelimit_service.transport.h2.connection import Connection, Event, Methods
from ratelimit_service.transport.h2.events import Calls, Ended, Message
from ratelimit_service.transport.h2.frames import (
    END_HEADERS,
    END_STREAM,
    PREFACE,
    ErrorCode,
    FrameType,
    SettingId,
)
from ratelimit_service.transport.h2.limits import (
    ACK_SECONDS,
    BLOCKED_SECONDS,
    BODY_SECONDS,
    FRAME_SECONDS,
    HELD_BYTES,
    IDLE_STREAM_SECONDS,
    INBOX_BYTES,
    MAX_STREAMS,
    MAX_TEXT_BYTES,
)
from ratelimit_service.transport.h2.protocol import Http2Protocol
from tests.service.asking import Asking
from tests.transport.test_h2 import HEADERS, PATH, Client, messages, refused
from tests.transport.test_overload import RULES, rounds
from tests.transport.test_overload import Ends as ServedEnds
from tests.transport.test_protocol import Ends

STREAMING = "/a.B/Chat"
WATCH = "/grpc.health.v1.Health/Watch"
CHAT = [(name, STREAMING if name == ":path" else value) for name, value in HEADERS]


class Chatting(Client):
    """A client whose calls go to a streaming method."""

    def __init__(self, memory: Memory | None = None) -> None:
        super().__init__()
        methods = Methods(frozenset({PATH.encode()}), frozenset({STREAMING.encode()}))
        self.connection = Connection(methods, memory)
        self.connection.receive(PREFACE + frames.settings({}) + self.ack())
        self.said()

    def chat(self) -> bytes:
        self.stream_id += 2
        block = self.encoder.encode(CHAT)
        return frames.frame(FrameType.HEADERS, END_HEADERS, self.stream_id, block)

    def talk(self, data: bytes, answer: bytes = b"answer") -> list[Event]:
        """Answers each message at once, as reflection does; returns the events."""
        found = []
        while True:
            events = self.connection.receive(data)
            for event in events:
                if isinstance(event, Message):
                    self.connection.send(event.stream_id, answer)
                elif isinstance(event, Ended):
                    self.connection.finish(event.stream_id)
            found += events
            if not self.connection.has_more:
                return found
            data = b""


def test_settings_with_many_entries() -> None:
    """Each entry of SETTINGS is charged; of a window only the last value is applied."""
    client = Client()
    for _ in range(MAX_STREAMS):
        client.connection.receive(client.headers() + client.data(end=False))
    entry = (SettingId.INITIAL_WINDOW_SIZE).to_bytes(2, "big")
    values = [entry + (number % 2 * 1_000).to_bytes(4, "big") for number in range(2_729)]
    payload = b"".join(values) + entry + (5).to_bytes(4, "big")
    frame = frames.frame(FrameType.SETTINGS, 0, 0, payload)
    client.said()

    client.connection.receive(frame)
    client.connection.send(1, b"answer")
    first = [payload for kind, _, _, payload in client.said() if kind == FrameType.DATA]
    sent = 1
    while not client.connection.closing:
        client.connection.receive(frame)
        sent += 1

    assert [len(each) for each in first] == [5]
    assert sent < 10
    assert client.goaway == ErrorCode.ENHANCE_YOUR_CALM
    assert client.connection.reason == "flood_settings"


def test_windows_of_open_streams() -> None:
    """A new first window holds for streams that are open, together with what they were given."""
    client = Client()
    window = SettingId.INITIAL_WINDOW_SIZE
    client.connection.receive(frames.settings({window: 0}) + client.headers() + client.data())
    client.connection.receive(frames.window_update(1, 3))
    client.said()

    client.connection.answer(1, b"0123456789")
    client.connection.receive(frames.settings({window: 4}))
    client.connection.receive(frames.settings({window: 0}))
    client.connection.receive(frames.settings({window: 6}))
    client.connection.receive(frames.settings({window: 100}))

    sizes = [len(payload) for kind, _, _, payload in client.said() if kind == FrameType.DATA]
    assert sizes == [3, 4, 2, 6]


@pytest.mark.parametrize("later", [False, True])
def test_window_that_is_too_large(later: bool) -> None:
    """A first window that lifts an open stream's above 2^31-1 ends the connection."""
    client = Client()
    client.connection.receive(client.headers() + client.data(end=False))
    client.connection.receive(frames.window_update(1, 2**31 - 1 - 65_535))
    if later:
        client.connection.receive(frames.settings({SettingId.INITIAL_WINDOW_SIZE: 0}))

    client.connection.receive(frames.settings({SettingId.INITIAL_WINDOW_SIZE: 65_536}))

    assert client.goaway == ErrorCode.FLOW_CONTROL_ERROR


def test_window_that_was_too_large() -> None:
    """A stream that is over does not count when windows are held against their bound."""
    client = Client()
    client.connection.receive(client.headers() + client.data(end=False))
    client.connection.receive(frames.window_update(1, 2**31 - 1 - 65_535))
    client.connection.receive(frames.rst_stream(1, ErrorCode.CANCEL))

    client.connection.receive(frames.settings({SettingId.INITIAL_WINDOW_SIZE: 2**31 - 1}))

    assert not client.connection.closing


def test_small_window_updates() -> None:
    """A window that opens by a byte lets one byte of one answer through, the oldest first."""
    client = Client()
    client.connection._send_window = 0
    for _ in range(MAX_STREAMS):
        for stream_id, _ in messages(client.connection.receive(client.headers() + client.data())):
            client.connection.answer(stream_id, b"x" * 1_000)
    client.said()
    update = frames.window_update(0, 1)

    for _ in range(1_010):
        client.connection.receive(update)
    said = [(stream_id, len(payload)) for _, _, stream_id, payload in client.said() if payload]
    for _ in range(3_000):
        client.connection.receive(update)

    assert [each for each in said if each[1] == 1] == [(1, 1)] * 1_005 + [(3, 1)] * 5
    assert client.goaway == ErrorCode.ENHANCE_YOUR_CALM
    assert client.connection.reason == "flood_windows"


def test_resets_that_the_client_provokes() -> None:
    """A stream that we must reset costs the client as one that it resets itself."""
    client, made = Client(), 0

    while not client.connection.closing:
        call = client.headers() + client.data(end=False)
        client.connection.receive(call + frames.window_update(client.stream_id, 0))
        made += 1

    assert made < 1_000
    assert client.goaway == ErrorCode.ENHANCE_YOUR_CALM
    assert client.connection.reason in {"flood_resets", "flood_windows"}


def dear(client: Client, number: int) -> bytes:
    """HEADERS that cost nearly as much as a call's may: 80 fields unlike any others."""
    fields = [(f"x-{number:05d}-{each}", f"{number}") for each in range(80)]
    client.encoder.header_table_size = 0
    return client.headers(fields)


@pytest.mark.parametrize("ending", ["reset", "provoked", "refused", "malformed", "leaving"])
def test_headers_for_nothing(ending: str) -> None:
    """What header blocks cost is charged when their calls come to nothing, whoever ends them."""
    client = Client()
    client.settle()
    if ending == "refused":
        for _ in range(MAX_STREAMS):
            client.connection.receive(client.headers() + client.data(end=False))
    if ending == "leaving":
        client.connection.receive(client.headers() + client.data(end=False))
        client.connection.shut_down()
        for ping in (b"lastcall", b"all over"):
            client.connection.receive(frames.ping(ping, ack=True))
    before = client.stream_id

    while not client.connection.closing and client.stream_id < before + 20_000:
        data = dear(client, client.stream_id)
        if ending == "reset":
            data += frames.rst_stream(client.stream_id, ErrorCode.CANCEL)
        elif ending == "provoked":
            data += frames.window_update(client.stream_id, 0)
        elif ending == "malformed":
            data = client.headers([(f"X-{client.stream_id}-{each}", "") for each in range(80)])
        client.connection.receive(data)

    assert (client.stream_id - before) // 2 < 100
    assert client.goaway == ErrorCode.ENHANCE_YOUR_CALM


def test_callers_that_give_up_are_no_flood() -> None:
    """A client whose calls are answered may give all up that are under way, again and again."""
    client = Client()
    client.settle()
    traced = [[("traceparent", f"00-{number:032x}-{number:016x}-01")] for number in range(1_000)]
    for turn in range(10):
        for fields in traced:
            call = client.headers([*fields, (f"x-{turn}", "1")]) + client.data()
            client.connection.receive(call)
            client.connection.answer(client.stream_id, b"")
        calls = [client.headers([*fields, (f"x-{turn}", "2")]) + client.data() for fields in traced]
        first = client.stream_id - 2 * len(calls) + 2
        client.connection.receive(b"".join(calls))
        assert client.connection.open_streams == MAX_STREAMS
        for stream_id in range(first, client.stream_id + 1, 2):
            client.connection.receive(frames.rst_stream(stream_id, ErrorCode.CANCEL))

    assert client.connection.open_streams == 0
    assert not client.connection.closing


def test_callers_that_we_refuse_are_no_flood() -> None:
    """Who gives up calls that we had no time for is not charged for them, however many at once."""
    client = Client()
    client.settle()
    for _ in range(10):
        calls = [client.headers() + client.data() for _ in range(MAX_STREAMS)]
        opened = [
            stream_id for stream_id, _ in messages(client.connection.receive(b"".join(calls)))
        ]
        client.connection.refuse(opened)
        resets = [frames.rst_stream(stream_id, ErrorCode.CANCEL) for stream_id in opened]
        client.connection.receive(b"".join(resets))

    assert not client.connection.closing


def test_many_calls_at_once_are_no_flood() -> None:
    """A thousand calls may come before the first answer, each with headers of its own."""
    client = Client()
    calls = b"".join(
        client.headers([("traceparent", f"00-{number:032x}-{number:016x}-01"), ("x-id", "a" * 40)])
        + client.data()
        for number in range(MAX_STREAMS)
    )

    handed_on = messages(client.connection.receive(calls))

    assert len(handed_on) == MAX_STREAMS
    assert not client.connection.closing


def test_dear_frames_take_more_of_a_turn() -> None:
    """What a frame costs counts against a turn, so that others come in between."""
    client = Client()
    dear = frames.frame(FrameType.SETTINGS, 0, 0, b"\0\0\0\0\0\0" * 400)
    client.connection.receive(dear * 3, 32)
    turns = 1
    while client.connection.has_more:
        client.connection.receive(b"", 32)
        turns += 1

    assert turns == 3


@pytest.mark.parametrize("whole", [True, False])
def test_packed_messages_take_more_of_a_turn(whole: bool) -> None:
    """A message that must be unpacked counts against a turn, also if that fails."""
    client = Client()
    packed = gzip.compress(bytes(60_000))[: None if whole else -4]
    payload = b"\1" + len(packed).to_bytes(4, "big") + packed
    data = b""
    for _ in range(32):
        data += client.headers([("grpc-encoding", "gzip")])
        data += frames.frame(FrameType.DATA, END_STREAM, client.stream_id, payload)
    client.connection.receive(data, 32)
    turns = 1
    while client.connection.has_more:
        client.connection.receive(b"", 32)
        turns += 1

    assert turns > 8


def test_headers_take_more_of_a_turn() -> None:
    """Headers that must be read one by one count against a turn, if calls come of them or not."""
    client = Client()
    client.settle()
    client.connection.receive(b"".join(dear(client, number) for number in range(30)), 32)
    turns = 1
    while client.connection.has_more:
        client.connection.receive(b"", 32)
        turns += 1

    assert turns > 8


def test_streaming_calls_wait_for_their_answers() -> None:
    """A streaming call's next message is handed on when the last one's answer is on its way."""
    client = Chatting()
    shut = frames.settings({SettingId.INITIAL_WINDOW_SIZE: 0})
    body = b"".join(b"\0\0\0\0\1" + bytes((number,)) for number in range(200))
    data = frames.frame(FrameType.DATA, END_STREAM, 1, body)

    first = client.talk(shut + client.chat() + data, b"x" * 1_000)
    held = client.connection.held
    rest = client.talk(frames.window_update(1, 2_000_000))

    assert [event.message for event in first if isinstance(event, Message)] == [b"\0"]
    assert held < 10_000
    assert [event.message for event in rest if isinstance(event, Message)] == [
        bytes((number,)) for number in range(1, 200)
    ]
    assert isinstance(rest[-1], Ended)
    assert client.connection.open_streams == client.connection.held == 0


def test_streaming_calls_wait_in_frames_of_their_own() -> None:
    """A message that comes while the last one's answer waits is kept, and handed on after it."""
    client = Chatting()
    shut = frames.settings({SettingId.INITIAL_WINDOW_SIZE: 0})
    client.talk(shut + client.chat())
    parts = [frames.frame(FrameType.DATA, 0, 1, b"\0\0\0\0\1" + bytes((at,))) for at in range(20)]

    first = [event for part in parts for event in client.talk(part, b"x" * 1_000)]
    rest = client.talk(frames.window_update(1, 2_000_000))

    assert [event.message for event in first if isinstance(event, Message)] == [b"\0"]
    assert len(rest) == 19


def test_streaming_calls_wait_for_a_slow_client() -> None:
    """While a client does not read, its streaming calls are given no more messages."""
    client = Chatting()
    body = b"".join(b"\0\0\0\0\1" + bytes((number,)) for number in range(200))
    client.connection.congested = True

    first = client.talk(client.chat() + frames.frame(FrameType.DATA, END_STREAM, 1, body))
    client.connection.congested = False
    rest = client.talk(b"")

    assert len(first) == 1
    assert len(rest) == 200


def test_window_of_a_streaming_call() -> None:
    """A streaming call may go on for ever, in messages that come in any pieces."""
    client = Chatting()
    client.talk(client.chat())
    body = (b"\0\0\0\3\xe8" + b"x" * 1_000) * 1_000
    sent, window, count = 0, 131_072, 0

    while sent < len(body):
        assert window > 0
        part = body[sent : sent + min(window, 777)]
        events = client.talk(frames.frame(FrameType.DATA, 0, 1, part))
        count += sum(isinstance(event, Message) for event in events)
        sent, window = sent + len(part), window - len(part)
        for kind, _, stream_id, payload in client.said():
            if kind == FrameType.WINDOW_UPDATE and stream_id:
                window += int.from_bytes(payload, "big")
        client.connection.receive(frames.window_update(0, 100_000) + frames.window_update(1, 9_999))
        client.connection.tick()

    assert count == 1_000


def unfinished(client: Client, size: int) -> bytes:
    """A call whose message does not come whole."""
    call = client.headers()
    payload = b"\0" + (60_000).to_bytes(4, "big") + b"x" * size
    pieces = [payload[at : at + 16_000] for at in range(0, len(payload), 16_000)]
    return call + b"".join(
        frames.frame(FrameType.DATA, 0, client.stream_id, piece) for piece in pieces
    )


def test_unfinished_messages() -> None:
    """One connection makes us keep so much, and calls above that are refused."""
    client = Chatting()

    for _ in range(MAX_STREAMS - 1):
        client.connection.receive(unfinished(client, 50_000))
        assert client.connection.held <= HELD_BYTES + 66_000

    codes = set(refused(client).values())
    assert codes == {"8"}
    assert 100 < client.connection.open_streams < 200


def test_unfinished_messages_of_many() -> None:
    """All connections make us keep so much: then none may keep more than its share."""
    memory = Memory(1_000_000)
    clients = [Chatting(memory) for _ in range(10)]
    memory.connections = len(clients)

    for _ in range(20):
        for client in clients:
            client.connection.receive(unfinished(client, 50_000))

    assert memory.held < 2_000_000
    assert all(client.connection.open_streams for client in clients)
    assert all(refused(client) for client in clients)
    for client in clients:
        client.connection.forget()
    assert memory.held == 0


def test_answers_that_nobody_takes() -> None:
    """A client that lets answers pile up above the bound is ended."""
    client = Client()
    client.connection.receive(frames.settings({SettingId.INITIAL_WINDOW_SIZE: 0}))

    for _ in range(MAX_STREAMS):
        for stream_id, _ in messages(client.connection.receive(client.headers() + client.data())):
            client.connection.answer(stream_id, b"x" * 50_000)
        client.connection.tick()

    assert client.connection.held <= HELD_BYTES + 60_000
    assert client.connection.closing
    assert client.connection.reason == "memory"


def test_what_is_kept_is_let_go() -> None:
    """When all calls are over nothing is kept for the client, however they ended."""
    client = Chatting()
    cut = unfinished(client, 1_000) + frames.rst_stream(client.stream_id, ErrorCode.CANCEL)
    plain = client.headers() + client.data(b"x" * 10_000)
    large = client.headers() + client.data(b"x" * 10_000, end=False)
    large += frames.frame(FrameType.DATA, END_STREAM, client.stream_id, b"y")
    chat = client.chat() + frames.frame(FrameType.DATA, END_STREAM, client.stream_id, b"\0\0")

    for event in client.talk(cut + plain + large + chat):
        if isinstance(event, Calls):
            for stream_id in event.stream_ids:
                client.connection.answer(stream_id, b"x" * 30_000)
    client.connection.receive(frames.window_update(0, 100_000))

    assert client.connection.open_streams == 0
    assert client.connection.held == 0


def ticks(connection: Connection, seconds: int) -> bool:
    """Lets so many seconds pass; tells whether the connection was ended."""
    for _ in range(seconds):
        connection.tick()
    return connection.closing


def test_call_that_is_never_finished() -> None:
    """A unary call has its time to come whole; then it alone is refused."""
    client = Client()
    client.connection.receive(unfinished(client, 100))

    assert not ticks(client.connection, BODY_SECONDS)
    assert refused(client) == {}
    assert not ticks(client.connection, 1)

    assert refused(client) == {1: "4"}
    assert client.connection.open_streams == client.connection.held == 0


def test_open_stream_without_messages() -> None:
    """A streaming call may be silent for its time, which begins anew with each message."""
    client = Chatting()
    client.talk(client.chat())

    assert not ticks(client.connection, IDLE_STREAM_SECONDS)
    client.talk(frames.frame(FrameType.DATA, 0, 1, b"\0\0\0\0\0"))
    assert not ticks(client.connection, IDLE_STREAM_SECONDS)
    assert client.connection.open_streams == 1
    ticks(client.connection, 1)

    assert refused(client) == {1: "4"}
    assert client.connection.open_streams == 0


@pytest.mark.parametrize(
    "begun",
    [
        frames.frame(FrameType.HEADERS, 0, 1, hpack.Encoder().encode(HEADERS)),
        frames.ping(b"12345678", ack=False)[:-1],
        b"\0",
    ],
    ids=["header block", "frame", "head of a frame"],
)
def test_what_is_begun_is_to_be_ended(begun: bytes) -> None:
    """A header block or a frame that is not finished in its time ends the connection."""
    client = Client()
    client.connection.receive(begun)

    assert not ticks(client.connection, FRAME_SECONDS)
    assert ticks(client.connection, 1)
    assert client.connection.reason == "timeout"


def test_settings_that_are_not_acknowledged() -> None:
    """Each SETTINGS of ours is to be acknowledged in its time."""
    client = Client()
    ticks(client.connection, 2 * ACK_SECONDS)
    client.connection.receive(client.headers() + client.data())
    client.connection.answer(1, b"")

    assert not ticks(client.connection, ACK_SECONDS)
    assert ticks(client.connection, 1)
    assert client.goaway == ErrorCode.SETTINGS_TIMEOUT


def test_long_refusal() -> None:
    """Of what a caller is told only so much is sent, in one frame, and cut between characters."""
    client = Client()
    client.connection.receive(client.headers() + client.data())
    client.said()

    client.connection.finish(1, 3, "\u2713" * 120_000)

    (block,) = [payload for kind, _, _, payload in client.said() if kind == FrameType.HEADERS]
    said = dict(hpack.Decoder().decode(block, raw=True))[b"grpc-message"]
    assert said == b"%E2%9C%93" * (MAX_TEXT_BYTES // 3)


async def test_client_that_reads_slowly() -> None:
    """A client that takes some of its answers now and then is served; one that stops is not."""
    ends, client = Ends(), Client()
    shut = frames.settings({SettingId.INITIAL_WINDOW_SIZE: 0})
    ends.receive(shut + client.headers() + client.data())
    ends.protocol.connection.answer(1, b"answer")
    step = BLOCKED_SECONDS - 1

    for turn in range(8):
        ends.look(turn * step)
        ends.receive(frames.window_update(1, 1))
        ends.protocol._heard_at = ends.started + turn * step
        assert not ends.wire.closed
    ends.protocol._heard_at = ends.started + 9 * step
    ends.look(8 * step)
    assert not ends.wire.closed
    ends.look(8 * step + BLOCKED_SECONDS + 1)

    assert ends.wire.closed
    assert ends.protocol.connection.reason == "stuck"


async def test_pauses_are_counted(tmp_path: Path) -> None:
    """Each pause in reading from a client is counted once, by its reason."""
    stats = Stats()
    server = H2Server("127.0.0.1:0", Asking(tmp_path, RULES).service, Health(), stats=stats)
    ends = Ends(memory=server._memory)
    for _ in range(3):
        ends.protocol.data_received(b"x" * (INBOX_BYTES + 1))
    ends.protocol.pause_writing()
    other = Ends(memory=server._memory)
    other.protocol.pause_writing()

    server._look()

    assert stats.paused_reads == {"unhandled": 1, "unread": 1}
    await server.stop(0)


async def test_chat_goes_on_when_the_client_reads_again() -> None:
    """Messages of a client that does not read wait, and are handed on once it reads."""
    ends, client = Ends(), Chatting()
    ends.protocol.connection = client.connection
    answered = []

    def handle(protocol: Http2Protocol, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Message):
                answered.append(event.message)
                protocol.connection.send(event.stream_id, b"answer")
                if len(answered) == 3:
                    protocol.pause_writing()

    ends.calls.handle = handle  # type: ignore[method-assign]
    body = b"".join(b"\0\0\0\0\1" + bytes((number,)) for number in range(20))
    ends.receive(client.chat() + frames.frame(FrameType.DATA, 0, 1, body))
    assert len(answered) == 3
    assert not ends.wire.reading

    ends.protocol.resume_writing()
    while ends.turns._waiting:
        ends.turns._turn()

    assert len(answered) == 20
    assert ends.wire.reading


async def test_a_watch_ends_with_its_stream(tmp_path: Path) -> None:
    """Whatever a client does to have a watched stream reset, nothing of the watch stays."""
    ends = ServedEnds(Asking(tmp_path, RULES))
    before = len(asyncio.all_tasks())

    def watch(then: Callable[[int], bytes]) -> None:
        ends.receive(ends.client.headers(path=WATCH) + ends.client.data(b""))
        ends.receive(then(ends.client.stream_id))

    endings: list[Callable[[int], bytes]] = [
        lambda of: frames.frame(FrameType.RST_STREAM, 0, of, bytes(4)),
        lambda of: frames.frame(FrameType.DATA, 0, of, b"more"),
        lambda of: frames.frame(FrameType.HEADERS, END_HEADERS, of, b"\x82"),
        lambda of: frames.window_update(of, 0),
        lambda of: frames.window_update(of, frames.MAX_WINDOW),
        lambda of: frames.frame(FrameType.PRIORITY, 0, of, b"?"),
        lambda of: frames.frame(FrameType.PRIORITY, 0, of, of.to_bytes(4, "big") + b"\0"),
    ]
    for ending in endings:
        watch(ending)
    await rounds()

    assert len(asyncio.all_tasks()) == before


def test_nothing_is_kept_for_a_client_that_is_gone() -> None:
    """An answer that comes after its connection's end is kept nowhere, also behind shut windows."""
    memory = Memory()
    client = Chatting(memory)
    client.connection.receive(frames.settings({SettingId.INITIAL_WINDOW_SIZE: 0}))
    for _ in range(10):
        client.connection.receive(client.headers() + client.data())

    client.connection.close()
    client.connection.forget()
    for stream_id in range(1, client.stream_id + 1, 2):
        client.connection.answer(stream_id, b"late")

    assert memory.held == 0
