"""What a client may cost: each frame is charged, or weighs in a turn, by counted work."""

from __future__ import annotations

import gzip

import pytest

from ratelimit_service.grpc.h2 import frames
from ratelimit_service.grpc.h2.frames import (
    END_STREAM,
    ErrorCode,
    FrameType,
    SettingId,
)
from ratelimit_service.grpc.h2.limits import MAX_STREAMS
from tests.grpc.h2_client import Client, messages


def test_settings_with_many_entries() -> None:
    """Each entry of SETTINGS is charged; of a window only the last value is applied."""
    client = Client()
    for _ in range(1_000):
        client.connection.receive(client.headers() + client.data(end=False))
    entry = (SettingId.INITIAL_WINDOW_SIZE).to_bytes(2, "big")
    values = [entry + (number % 2 * 1_000).to_bytes(4, "big") for number in range(2_729)]
    payload = b"".join(values) + entry + (5).to_bytes(4, "big")
    frame = frames.frame(FrameType.SETTINGS, 0, 0, payload)
    client.said()

    client.connection.receive(frame)
    client.connection.sender.send(1, b"answer")
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

    client.connection.sender.answer(1, b"0123456789")
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


def blocked(size: int, calls: int = MAX_STREAMS) -> Client:
    """A client on whose connection many answers of that size wait for a window."""
    client = Client()
    client.connection.sender.window = 0
    for _ in range(calls):
        for stream_id, _ in messages(client.connection.receive(client.headers() + client.data())):
            client.connection.sender.answer(stream_id, b"x" * size)
    client.said()
    return client


def test_small_window_updates() -> None:
    """A window that opens by a byte lets one byte of one answer through, the oldest first."""
    client = blocked(1_000)
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
    numbers = range(MAX_STREAMS)
    traced = [[("traceparent", f"00-{number:032x}-{number:016x}-01")] for number in numbers]
    for turn in range(3):
        for fields in traced:
            call = client.headers([*fields, (f"x-{turn}", "1")]) + client.data()
            client.connection.receive(call)
            client.connection.sender.answer(client.stream_id, b"")
        calls = [client.headers([*fields, (f"x-{turn}", "2")]) + client.data() for fields in traced]
        first = client.stream_id - 2 * len(calls) + 2
        client.connection.receive(b"".join(calls))
        assert len(client.connection.streams) == MAX_STREAMS
        for stream_id in range(first, client.stream_id + 1, 2):
            client.connection.receive(frames.rst_stream(stream_id, ErrorCode.CANCEL))

    assert len(client.connection.streams) == 0
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
        client.connection.sender.refuse(opened)
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


def shut(calls: int) -> Client:
    """A client with so many answers that wait for their own windows."""
    client = Client()
    client.connection.receive(frames.settings({SettingId.INITIAL_WINDOW_SIZE: 0}))
    for _ in range(calls):
        client.connection.receive(client.headers() + client.data())
        client.connection.sender.answer(client.stream_id, b"0123456789")
    client.said()
    return client


@pytest.mark.parametrize("whose", ["each", "all"])
def test_answers_let_through_take_turns(whose: str) -> None:
    """Where a window lets many answers through, a turn sends so many; then others are next.

    What the client says behind that waits until they are sent, and not one is lost.
    """
    ping = frames.ping(b"12345678", ack=False)
    if whose == "each":
        client = shut(1_000)
        wider = frames.settings({SettingId.INITIAL_WINDOW_SIZE: 100})
    else:
        client = blocked(100)
        wider = frames.window_update(0, 1_000_000)
    waiting, sent = len(client.connection.streams), []

    client.connection.receive(wider + ping, 32)
    while client.connection.has_more:
        sent.append(waiting - len(client.connection.streams))
        waiting -= sent[-1]
        client.connection.receive(b"", 32)
    said = [kind for kind, *_ in client.said()]

    assert max(sent) == 32
    assert len(client.connection.streams) == client.connection.budget.held == 0
    assert said[-1] == FrameType.PING
    assert said.count(FrameType.PING) == 1


def test_answers_let_through_come_before_those_that_are_new() -> None:
    """Where a window opens behind a turn's last call, new answers do not take it from older ones.

    Else a client with many calls would never get those that a window has held back once.
    """
    client = blocked(6, calls=100)
    waiting = set(client.connection.streams.blocked)

    for _ in range(4):
        calls = b"".join(client.headers() + client.data() for _ in range(31))
        came = client.connection.receive(calls + frames.window_update(0, 31 * 11), 32)
        while came or client.connection.has_more:
            for stream_id, _ in messages(came):
                client.connection.sender.answer(stream_id, b"answer")
            came = client.connection.receive(b"", 32)

    assert not waiting & client.connection.streams.blocked.keys()


def test_long_answers_let_through_take_more_of_a_turn() -> None:
    """The bytes of answers that a window lets through count against a turn as well."""
    client = blocked(40_000, calls=100)

    client.connection.receive(frames.window_update(0, 1_000_000), 32)
    sent = sum(len(payload) for kind, *_, payload in client.said() if kind == FrameType.DATA)

    assert client.connection.has_more
    assert 40_000 < sent < 200_000


def test_windows_that_open_on_a_connection_that_ends() -> None:
    """A connection that is ended sends no more answers, and asks for no more turns."""
    client = shut(100)
    wider = frames.settings({SettingId.INITIAL_WINDOW_SIZE: 100})
    client.connection.receive(wider, 32)
    assert client.connection.has_more

    client.connection.abandon(ErrorCode.NO_ERROR, "")

    assert not client.connection.has_more


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
