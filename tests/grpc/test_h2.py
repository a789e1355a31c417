"""Calls over HTTP/2: in any pieces, as windows allow, to a graceful end; and h2spec."""

from __future__ import annotations

import gzip
import os
import subprocess
from pathlib import Path
from urllib.parse import unquote

import hpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ratelimit_service.grpc.h2 import frames
from ratelimit_service.grpc.h2.connection import (
    Calls,
    Cancelled,
    Event,
)
from ratelimit_service.grpc.h2.frames import (
    END_HEADERS,
    END_STREAM,
    PADDED,
    PRIORITY,
    ErrorCode,
    FrameType,
    SettingId,
)
from ratelimit_service.grpc.h2.headers import literal
from ratelimit_service.grpc.h2.limits import (
    BODY_SECONDS,
    MAX_MESSAGE_BYTES,
    MAX_STREAMS,
    STREAM_WINDOW,
)
from tests.conftest import need
from tests.examples import up_to
from tests.grpc.h2_client import HEADERS, PATH, Client, messages
from tests.servers.service import ServiceProcess

TOP = Path(__file__).parents[2]

H2SPEC = str(TOP / ".tools" / "h2spec")


def test_call_in_pieces() -> None:
    """Frames may come in any pieces, and a message in any number of frames."""
    client = Client()
    stream = client.headers()
    whole = client.data(b"x" * 100)[9:]
    pieces = [
        frames.frame(FrameType.DATA, END_STREAM if at == 100 else 0, 1, whole[at : at + 20])
        for at in range(0, 101, 20)
    ]
    stream += b"".join(pieces)

    events = [
        event
        for at in range(len(stream))
        for event in client.connection.receive(stream[at : at + 1])
    ]

    (call,) = events
    assert isinstance(call, Calls)
    assert (call.head.path, call.head.timeout_us) == (PATH.encode(), None)
    assert (call.stream_ids, call.messages) == ([1], [b"x" * 100])


def test_padded_call() -> None:
    """A message fits into a stream's window, however much padding its frames have."""
    client, window, pieces = Client(), STREAM_WINDOW, []
    connection = client.connection
    connection.receive(client.headers())
    whole = client.data(b"x" * MAX_MESSAGE_BYTES)[9:]
    size = 200
    for at in range(0, len(whole), size):
        piece = b"\xff" + whole[at : at + size] + bytes(255)
        flags = PADDED | (END_STREAM if at + size >= len(whole) else 0)
        pieces.append(frames.frame(FrameType.DATA, flags, 1, piece))

    events: list[Event] = []
    for piece in pieces:
        window -= len(piece) - 9
        assert window >= 0, "the client must wait for a window that nobody opens"
        events += connection.receive(piece)
        for kind, _, stream_id, payload in client.said():
            if kind == FrameType.WINDOW_UPDATE and stream_id:
                window += int.from_bytes(payload, "big")
                assert window <= STREAM_WINDOW

    assert messages(events) == [(1, b"x" * MAX_MESSAGE_BYTES)]


def test_several_calls_in_one_read() -> None:
    """All calls of one read come together."""
    client = Client()

    events = client.connection.receive(
        b"".join(client.headers() + client.data(b"%d" % number) for number in range(3))
    )

    assert messages(events) == [(1, b"0"), (3, b"1"), (5, b"2")]


def test_answer_waits_for_the_window() -> None:
    """An answer goes out in pieces as the client's windows allow, then its trailers."""
    client = Client()
    client.connection.receive(
        frames.settings({SettingId.INITIAL_WINDOW_SIZE: 4}) + client.headers() + client.data()
    )
    client.said()

    client.connection.sender.answer(1, b"answer")
    first = [(kind, payload) for kind, _, _, payload in client.said() if kind == FrameType.DATA]
    client.connection.receive(frames.window_update(1, 100))
    second = [(kind, len(payload)) for kind, _, stream, payload in client.said() if stream == 1]

    assert first == [(FrameType.DATA, b"\0\0\0\0")]
    assert second[0] == (FrameType.DATA, 7)
    assert second[1][0] == FrameType.HEADERS
    assert len(client.connection.streams) == 0


def test_no_call_behind_a_shut_window() -> None:
    """What is no gRPC call is refused once, also if a window holds the refusal back."""
    client = Client()
    connection = client.connection
    connection.receive(frames.settings({SettingId.INITIAL_WINDOW_SIZE: 0}))
    client.said()
    page = [*(dict(HEADERS) | {"content-type": "text/html"}).items()]
    block = client.encoder.encode(page)
    part = frames.frame(FrameType.DATA, 0, 1, bytes(16_384))

    connection.receive(frames.frame(FrameType.HEADERS, END_HEADERS, 1, block) + 5 * part)
    held = connection.budget.held
    for _ in range(BODY_SECONDS + 9):
        connection.tick()
    assert connection.budget.held == held
    connection.receive(frames.frame(FrameType.DATA, END_STREAM, 1, b""))
    connection.receive(frames.window_update(1, 1_000))

    said = [(kind, flags) for kind, flags, stream_id, _ in client.said() if stream_id == 1]
    assert said == [(FrameType.HEADERS, END_HEADERS), (FrameType.DATA, END_STREAM)]
    assert (len(connection.streams), connection.budget.held) == (0, 0)


def test_answer_that_is_said_in_full_before_its_window_is_looked_at() -> None:
    """When all windows open, nothing is left to do for an answer that has gone out meanwhile."""
    client = Client()
    client.settle()
    connection = client.connection
    connection.receive(frames.settings({SettingId.INITIAL_WINDOW_SIZE: 0}))
    connection.receive(client.headers() + client.data())
    connection.sender.send(client.stream_id, b"answer")

    connection.receive(frames.settings({SettingId.INITIAL_WINDOW_SIZE: 65_535}), 1)
    connection.sender.finish(client.stream_id)
    connection.receive(b"")

    assert not connection.is_open(client.stream_id)
    assert not connection.has_more


def test_cancelled_call() -> None:
    """A call that the client gives up is told, and an answer to it goes nowhere."""
    client = Client()
    client.connection.receive(client.headers() + client.data())
    client.said()

    events = client.connection.receive(frames.rst_stream(1, ErrorCode.CANCEL))
    client.connection.sender.answer(1, b"late")

    assert events == [Cancelled(1)]
    assert [kind for kind, *_ in client.said()] == [FrameType.SETTINGS]


def zipped(client: Client, packed: bytes) -> tuple[list[tuple[int, bytes]], str]:
    """What comes of a call with a compressed message: the messages handed on, and the refusal."""
    call = client.headers([("grpc-encoding", "gzip")])
    payload = b"\1" + len(packed).to_bytes(4, "big") + packed
    call += frames.frame(FrameType.DATA, END_STREAM, client.stream_id, payload)
    handed_on = messages(client.connection.receive(call))
    decoder = hpack.Decoder()
    said = [payload for kind, _, _, payload in client.said() if kind == FrameType.HEADERS]
    trailers = dict(decoder.decode(said[0], raw=True)) if said else {}
    return handed_on, unquote(trailers.get(b"grpc-message", b"").decode())


@pytest.mark.parametrize("at", [0, 9, None])
def test_stream_that_depends_on_itself(at: int | None) -> None:
    """It is reset, and its call is not handed on, also if its headers come in two frames."""
    client = Client()
    block, flags = client.headers()[9:], PRIORITY if at is not None else PRIORITY | END_HEADERS
    head = frames.frame(FrameType.HEADERS, flags, 1, bytes((0, 0, 0, 1, 15)) + block[:at])
    if at is not None:
        head += frames.frame(FrameType.CONTINUATION, END_HEADERS, 1, block[at:])

    assert messages(client.connection.receive(head + client.data())) == []

    resets = [payload for kind, _, _, payload in client.said() if kind == FrameType.RST_STREAM]
    assert resets == [ErrorCode.PROTOCOL_ERROR.to_bytes(4, "big")]
    assert len(client.connection.streams) == 0


def test_gzip() -> None:
    """A compressed message is one whole gzip member and nothing else."""
    whole, client = gzip.compress(b"a message " * 100), Client()

    assert zipped(client, whole) == ([(1, b"a message " * 100)], "")
    for size in (0, 5, len(whole) // 2, len(whole) - 8, len(whole) - 1):
        assert zipped(client, whole[:size]) == ([], "the message's gzip is cut short")
    for rest in (b"\0", b"garbage", whole):
        assert zipped(client, whole + rest) == ([], "the message has bytes after its gzip")
    assert zipped(client, b"no gzip")[1].startswith("the message is no gzip")
    assert not client.connection.closing


def test_end_of_a_call_that_is_answered_already() -> None:
    """What was on its way when a call was answered or reset early is taken without a word."""
    client = Client()
    connection = client.connection
    trailers, end = literal(b"x-checksum", b"0"), END_HEADERS | END_STREAM

    connection.receive(client.headers(path="/nobody/serves"))
    rest = client.data(end=False) + frames.frame(FrameType.HEADERS, end, 1, trailers)
    answered = [kind for kind, _, stream_id, _ in client.said() if stream_id == 1]
    connection.receive(rest)

    assert answered == [FrameType.HEADERS, FrameType.RST_STREAM]
    assert client.said() == []

    connection.receive(client.headers() + frames.window_update(3, 0))
    reset = [kind for kind, _, stream_id, _ in client.said() if stream_id == 3]
    connection.receive(client.data() + frames.frame(FrameType.HEADERS, end, 3, trailers))

    assert reset == [FrameType.RST_STREAM]
    assert client.said() == []
    assert messages(connection.receive(client.headers() + client.data())) == [(5, b"body")]


def test_more_streams_than_announced() -> None:
    """A stream above the announced number is refused, and may be tried again."""
    client = Client()
    for _ in range(MAX_STREAMS):
        client.connection.receive(client.headers())
    client.said()

    client.connection.receive(client.headers())

    assert client.said() == [
        (FrameType.RST_STREAM, 0, client.stream_id, b"\0\0\0\x07"),
    ]


def test_graceful_end() -> None:
    """Calls that are under way when the end is told are served, and then the connection closes.

    A client that has the notice may still have calls in a queue, so it is asked twice.
    """
    client = Client()

    def pings() -> list[bytes]:
        return [payload for kind, _, _, payload in client.said() if kind == FrameType.PING]

    client.connection.receive(client.headers() + client.data())
    client.connection.shut_down()
    (first,) = pings()
    client.connection.receive(client.headers() + client.data())
    client.connection.receive(frames.ping(first, ack=True))
    (second,) = pings()
    queued = client.connection.receive(client.headers() + client.data())
    client.connection.receive(frames.ping(second, ack=True))
    late = client.connection.receive(client.headers() + client.data())
    for stream_id in (1, 3, 5):
        assert not client.connection.closing
        client.connection.sender.answer(stream_id, b"")

    assert messages(queued) == [(5, b"body")]
    assert late == []
    assert client.connection.closing


FRAME = st.builds(
    frames.frame,
    st.sampled_from(FrameType),
    st.integers(0, 255),
    st.integers(0, 9),
    st.binary(max_size=40) | st.just(hpack.Encoder().encode(HEADERS)),
)


@settings(max_examples=up_to(500))
@given(st.lists(FRAME | st.binary(max_size=20), max_size=20), st.booleans())
def test_any_frames(stream: list[bytes], settled: bool) -> None:
    """Whatever frames come in whatever order, nothing is raised, and what is open stays bounded."""
    client = Client()
    if settled:
        client.settle()
    for data in stream:
        for stream_id, message in messages(client.connection.receive(data)):
            client.connection.sender.answer(stream_id, message)
        client.said()

    assert len(client.connection.streams) <= MAX_STREAMS


BLOCK = hpack.Encoder().encode([*HEADERS, ("x-b3", "\x00" * 3)], huffman=False)

PIECES = st.one_of(
    st.builds(
        lambda stream_id, value, message, size: (
            frames.frame(FrameType.HEADERS, END_HEADERS, stream_id, BLOCK[:-3] + value)
            + frames.frame(
                FrameType.DATA, END_STREAM, stream_id, b"\0\0\0\0" + bytes((size,)) + message
            )
        ),
        st.sampled_from([5, 7, 9, 11, 13]),
        st.binary(min_size=3, max_size=3),
        st.binary(min_size=2, max_size=3),
        st.integers(2, 3),
    ),
    FRAME,
    st.sampled_from([5, 7, 9]).map(lambda number: frames.rst_stream(number, ErrorCode.CANCEL)),
    st.integers(0, 100).map(lambda size: frames.settings({SettingId.INITIAL_WINDOW_SIZE: size})),
    st.sampled_from([0, 5, 7]).map(lambda number: frames.window_update(number, 7)),
)


def opened_twice() -> list[bytes]:
    """A stream that is opened twice, whose fault ends it, before another is given up."""
    body = b"\0\0\0\0\2ab"
    first, second = (
        frames.frame(FrameType.HEADERS, END_HEADERS, number, BLOCK)
        + frames.frame(FrameType.DATA, END_STREAM, number, body)
        for number in (5, 9)
    )
    return [first, second, second, frames.rst_stream(5, ErrorCode.CANCEL)]


def reset_before_one_that_was_never_open() -> list[bytes]:
    """A call that is given up, and in the same run of resets a stream that nobody has opened."""
    call = frames.frame(FrameType.HEADERS, END_HEADERS, 5, BLOCK)
    call += frames.frame(FrameType.DATA, END_STREAM, 5, b"\0\0\0\0\2ab")
    return [call, *(frames.rst_stream(number, ErrorCode.CANCEL) for number in (5, 7))]


@settings(max_examples=up_to(500))
@given(st.lists(PIECES, max_size=12))
@example(opened_twice())
@example(reset_before_one_that_was_never_open())
def test_calls_at_once_and_in_pieces(stream: list[bytes]) -> None:
    """A call means the same in one read, byte by byte, or where reading stops at each frame.

    Which of several calls is given up first means nothing, nor which of several streams hears
    something first.
    """
    found = []
    for size, most in ((1, 100), (1 << 20, 100), (1 << 20, 1)):
        client = Client()
        client.settle()
        data = b"".join(stream)
        events = []
        for at in range(0, len(data), size):
            events += client.connection.receive(data[at : at + size], most)
            while client.connection.has_more:
                events += client.connection.receive(b"", most)
        others = [event for event in events if not isinstance(event, Calls)]
        in_order = [event for event in others if not isinstance(event, Cancelled)]
        others.sort(key=lambda event: event.stream_id)
        for stream_id, message in messages(events):
            client.connection.sender.answer(stream_id, message)
        said = sorted(client.said(), key=lambda frame: frame[2])
        found.append((messages(events), in_order, others, said, len(client.connection.streams)))

    assert found[0] == found[1] == found[2]


def test_h2spec(tmp_path: Path) -> None:
    """All cases of h2spec --strict pass."""
    need(H2SPEC, "install Go")
    service = ServiceProcess(tmp_path, "--rules", str(TOP / "rules"))
    service.start()
    flags = ["--strict", "--host", "127.0.0.1", "--port", str(service.grpc_port), "--timeout", "10"]

    done = subprocess.run(
        [H2SPEC, *flags], capture_output=True, text=True, check=False, env=dict(os.environ)
    )

    service.kill()
    assert "146 tests, 146 passed" in done.stdout, done.stdout[-4_000:]
