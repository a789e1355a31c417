"""The thin transport's own: headers against an oracle, hostile bytes, h2spec."""

from __future__ import annotations

import gzip
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote

import hpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratelimit_service.transport.h2 import frames
from ratelimit_service.transport.h2.calls import METHODS
from ratelimit_service.transport.h2.connection import (
    Calls,
    Cancelled,
    Connection,
    Event,
)
from ratelimit_service.transport.h2.fields import BlockError
from ratelimit_service.transport.h2.frames import (
    ACK,
    END_HEADERS,
    END_STREAM,
    PREFACE,
    ErrorCode,
    FrameType,
    SettingId,
)
from ratelimit_service.transport.h2.headers import HeaderReader
from ratelimit_service.transport.h2.limits import MAX_STREAMS
from tests.conftest import need
from tests.servers.service import ServiceProcess

TOP = Path(__file__).parents[2]
H2SPEC = str(TOP / ".tools" / "h2spec")
PATH = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
HEADERS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", PATH),
    (":authority", "ratelimit"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
]


class Client:
    """The client's end of a connection without sockets."""

    def __init__(self) -> None:
        self.connection = Connection(METHODS)
        self.encoder = hpack.Encoder()
        self.stream_id = -1
        self.connection.receive(PREFACE + frames.settings({}) + self.ack())

    def settle(self) -> None:
        """Makes the first call, after which no header block depends on another."""
        self.connection.receive(self.headers() + self.data())
        self.connection.answer(self.stream_id, b"")
        self.encoder.header_table_size = 0
        self.connection.receive(self.ack() + self.headers() + self.data())
        self.connection.answer(self.stream_id, b"")
        self.said()

    @staticmethod
    def ack() -> bytes:
        return frames.frame(FrameType.SETTINGS, ACK, 0, b"")

    def headers(
        self, extra: Sequence[tuple[str, str]] = (), *, path: str = PATH, end: bool = False
    ) -> bytes:
        self.stream_id += 2
        block = self.encoder.encode([*(dict(HEADERS) | {":path": path}).items(), *extra])
        flags = END_HEADERS | (END_STREAM if end else 0)
        return frames.frame(FrameType.HEADERS, flags, self.stream_id, block)

    def data(self, message: bytes = b"body", *, end: bool = True) -> bytes:
        payload = b"\0" + len(message).to_bytes(4, "big") + message
        return frames.frame(FrameType.DATA, END_STREAM if end else 0, self.stream_id, payload)

    def said(self) -> list[tuple[int, int, int, bytes]]:
        """What the server has said since: type, flags, stream and payload of each frame."""
        data, found = self.connection.take_output(), []
        while data:
            stop = 9 + int.from_bytes(data[:3], "big")
            stream_id = int.from_bytes(data[5:9], "big")
            found.append((data[3], data[4], stream_id, data[9:stop]))
            data = data[stop:]
        return found

    @property
    def goaway(self) -> int | None:
        """The error code with which the server has ended the connection."""
        codes = [
            int.from_bytes(payload[4:8], "big")
            for kind, _, _, payload in self.said()
            if kind == FrameType.GOAWAY
        ]
        return codes[-1] if codes else None


def messages(events: Sequence[Event]) -> list[tuple[int, bytes]]:
    """The unary calls among the events: stream and message of each."""
    return [
        call
        for event in events
        if isinstance(event, Calls)
        for call in zip(event.stream_ids, event.messages, strict=True)
    ]


NAMES = st.sampled_from(["x-request-id", "traceparent", "user-agent", "grpc-timeout", "x-a"])
VALUES = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20)
EXTRA = st.lists(st.tuples(NAMES, VALUES), max_size=6)


@given(st.lists(st.tuples(EXTRA, st.integers(0, 4_096), st.booleans()), max_size=12))
def test_headers_against_the_oracle(
    blocks: list[tuple[list[tuple[str, str]], int, bool]],
) -> None:
    """Whatever a client indexes, evicts and resizes, each block reads as the hpack package does."""
    reader, encoder, oracle = HeaderReader(), hpack.Encoder(), hpack.Decoder()
    for number, (extra, size, huffman) in enumerate(blocks):
        if number == len(blocks) // 2:
            reader.without_table()
            encoder.header_table_size = 0
        elif number < len(blocks) // 2:
            encoder.header_table_size = size
        block = encoder.encode([*HEADERS, *extra], huffman=huffman)

        head = reader.read(block)

        decoded = dict(oracle.decode(block, raw=True))
        assert (head.path, head.method) == (decoded[b":path"], decoded[b":method"])
        assert head.content_type == decoded[b"content-type"]
        assert not head.malformed
        timeout = decoded.get(b"grpc-timeout", b"")
        assert (head.timeout_us is None) == (
            not (timeout[:-1].isdigit() and timeout[-1:] in b"HMSmun" and len(timeout) < 10)
        )


@given(st.binary(max_size=60))
def test_any_block_without_table(block: bytes) -> None:
    """Arbitrary bytes are a header block or an error, the same as for the oracle."""
    reader, oracle = HeaderReader(), hpack.Decoder()
    for each in (reader, oracle):
        size_zero = b"\x20"
        _ = each.read(size_zero) if isinstance(each, HeaderReader) else each.decode(size_zero)
    oracle.max_allowed_table_size = 0
    expected: object = None
    try:
        expected = dict(oracle.decode(block, raw=True)).get(b":path", b"")
    except (hpack.HPACKError, IndexError, ValueError):
        expected = None

    try:
        found: object = reader.read(block).path
    except BlockError:
        found = None

    # Values that do not matter are not decoded, so that faults in them may go unseen.
    assert found == expected or expected is None


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

    client.connection.answer(1, b"answer")
    first = [(kind, payload) for kind, _, _, payload in client.said() if kind == FrameType.DATA]
    client.connection.receive(frames.window_update(1, 100))
    second = [(kind, len(payload)) for kind, _, stream, payload in client.said() if stream == 1]

    assert first == [(FrameType.DATA, b"\0\0\0\0")]
    assert second[0] == (FrameType.DATA, 7)
    assert second[1][0] == FrameType.HEADERS
    assert client.connection.open_streams == 0


def test_cancelled_call() -> None:
    """A call that the client gives up is told, and an answer to it goes nowhere."""
    client = Client()
    client.connection.receive(client.headers() + client.data())
    client.said()

    events = client.connection.receive(frames.rst_stream(1, ErrorCode.CANCEL))
    client.connection.answer(1, b"late")

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


FLOODS = {
    "ping": frames.ping(b"12345678", ack=False),
    "settings": frames.settings({}),
    "window": frames.window_update(1, 1),
    "priority": frames.frame(FrameType.PRIORITY, 0, 3, b"\0\0\0\0\0"),
    "empty data": frames.frame(FrameType.DATA, 0, 1, b""),
    "unknown": frames.frame(FrameType.GOAWAY, 0, 0, b"\0" * 8),
}


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
def test_floods(flood: bytes) -> None:
    """A client that only costs is told to calm down, long before it costs much."""
    client = Client()
    client.connection.receive(client.headers() + client.data(end=False))

    for _ in range(3_000):
        client.connection.receive(flood)

    assert client.goaway == ErrorCode.ENHANCE_YOUR_CALM
    assert client.connection.closing


def test_rapid_reset() -> None:
    """Calls that are given up as soon as they are made count as nothing but cost."""
    client = Client()

    for _ in range(3_000):
        headers = client.headers()
        reset = frames.rst_stream(client.stream_id, ErrorCode.CANCEL)
        client.connection.receive(headers + reset)

    assert client.goaway == ErrorCode.ENHANCE_YOUR_CALM


def test_busy_client_is_no_flood() -> None:
    """Calls that are answered make up for what a client says besides."""
    client = Client()

    for _ in range(10_000):
        client.connection.receive(client.headers() + client.data() + frames.window_update(0, 1))
        client.connection.answer(client.stream_id, b"")
        client.connection.take_output()

    assert not client.connection.closing


def test_careful_client_is_no_flood() -> None:
    """A client may say several things with each call, as grpcio does that measures its way."""
    client = Client()
    client.settle()
    pings = frames.ping(b"12345678", ack=False) + frames.ping(b"87654321", ack=True)

    for _ in range(3_000):
        client.connection.receive(frames.window_update(0, 5) + pings)
        client.connection.receive(client.headers() + client.data())
        client.connection.answer(client.stream_id, b"")

    assert not client.connection.closing


def test_continuation_flood() -> None:
    """A header block without end is cut off."""
    client = Client()
    client.connection.receive(frames.frame(FrameType.HEADERS, 0, 1, b""))

    for _ in range(100):
        client.connection.receive(frames.frame(FrameType.CONTINUATION, 0, 1, b""))

    assert client.goaway == ErrorCode.ENHANCE_YOUR_CALM


def test_header_bomb() -> None:
    """A few bytes that stand for many headers end the connection."""
    client = Client()
    encoder = hpack.Encoder()
    block = encoder.encode([*HEADERS, ("x-bomb", "x" * 3_000)])
    client.connection.receive(frames.frame(FrameType.HEADERS, END_HEADERS, 1, block))
    # 0xbe is the newest entry of the dynamic table.
    client.connection.receive(
        frames.frame(FrameType.HEADERS, END_HEADERS, 3, encoder.encode(HEADERS) + b"\xbe" * 10_000)
    )

    assert client.goaway == ErrorCode.COMPRESSION_ERROR


def refused(client: Client) -> dict[int, str]:
    """The status with which each call was refused since."""
    decoder = hpack.Decoder()
    found = {}
    for kind, _, stream_id, payload in client.said():
        if kind == FrameType.HEADERS:
            status = dict(decoder.decode(payload, raw=True)).get(b"grpc-status")
            if status:
                found[stream_id] = status.decode()
    return found


def large(client: Client, extra: Sequence[tuple[str, str]], *, huffman: bool) -> bytes:
    """The frames of a call with many headers, whose block is cut into pieces."""
    client.stream_id += 2
    block = client.encoder.encode([*HEADERS, *extra], huffman=huffman)
    pieces = [block[at : at + 16_000] for at in range(0, len(block), 16_000)]
    kinds = [FrameType.HEADERS] + [FrameType.CONTINUATION] * (len(pieces) - 1)
    flags = [0] * (len(pieces) - 1) + [END_HEADERS]
    return b"".join(
        frames.frame(kind, flag, client.stream_id, piece)
        for kind, flag, piece in zip(kinds, flags, pieces, strict=True)
    )


@pytest.mark.parametrize("huffman", [False, True])
@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize(
    "extra",
    [
        [("x-large", "x" * 20_000)],
        [("grpc-timeout", "x" * 20_000)],
        [(f"x-{number}", "x" * 1_000) for number in range(20)],
        [(f"x-{number}", "y") for number in range(500)],
        [("x", "")] * 500,
    ],
    ids=["value", "value that matters", "values", "names", "repeated"],
)
def test_call_with_too_many_headers(
    extra: list[tuple[str, str]], settled: bool, huffman: bool
) -> None:
    """A call with more headers than announced is refused; its neighbours' are read as before."""
    client = Client()
    if settled:
        client.settle()
    before = client.headers([("x-before", "1")]) + client.data()
    call = large(client, extra, huffman=huffman) + client.data()
    after = client.headers([("x-before", "1"), ("x-0", "x" * 1_000)]) + client.data()

    handed_on = messages(client.connection.receive(before + call + after))

    assert [stream_id for stream_id, _ in handed_on] == [
        client.stream_id - 4,
        client.stream_id,
    ]
    assert refused(client) == {client.stream_id - 2: "8"}
    assert not client.connection.closing


@pytest.mark.parametrize("settled", [False, True])
def test_block_without_end(settled: bool) -> None:
    """A header block above all measure ends the connection before it is read."""
    client = Client()
    if settled:
        client.settle()

    client.connection.receive(large(client, [("x", "x" * 70_000)], huffman=False))

    assert client.goaway == ErrorCode.ENHANCE_YOUR_CALM


BLOCKS = {
    "indexed fields": (b"\x82" * 16_100, 2_000),
    "dynamic fields": (b"\x40\x01x\x01y" + b"\xbe" * 16_000, 2_000),
    "a Huffman path": (b"\x04\xff\x81\x7c" + b"\xaa" * 16_000, 2),
    "Huffman names": ((b"\x00\xfe" + b"\x1f" * 126 + b"\x00") * 120, 120),
}


@pytest.mark.parametrize(("block", "most"), BLOCKS.values(), ids=BLOCKS)
@pytest.mark.parametrize("settled", [False, True])
def test_cost_of_a_block(block: bytes, most: int, settled: bool) -> None:
    """The fields that are read, and the Huffman codes that are decoded, have bounds for any block.

    The bound is what 5 ms of CPU allow.
    """
    reader = HeaderReader()
    if settled:
        reader.without_table()
        reader.read(b"\x20")

    try:
        head = reader.read(block)
    except BlockError:
        pass
    else:
        assert head.oversized or head.malformed

    assert reader._fields.count <= (min(most, 400) if settled else most)
    assert reader._fields.unhuffed <= 32_768
    assert reader.cost_us <= 5_000


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
        client.connection.answer(stream_id, b"")

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


@settings(max_examples=500)
@given(st.lists(FRAME | st.binary(max_size=20), max_size=20), st.booleans())
def test_any_frames(stream: list[bytes], settled: bool) -> None:
    """Whatever frames come in whatever order, nothing is raised, and what is open stays bounded."""
    client = Client()
    if settled:
        client.settle()
    for data in stream:
        for stream_id, message in messages(client.connection.receive(data)):
            client.connection.answer(stream_id, message)
        client.said()

    assert client.connection.open_streams <= MAX_STREAMS


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


@settings(max_examples=500)
@given(st.lists(PIECES, max_size=12))
def test_calls_at_once_and_in_pieces(stream: list[bytes]) -> None:
    """A call means the same in one read, byte by byte, or where reading stops at each frame."""
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
        for stream_id, message in messages(events):
            client.connection.answer(stream_id, message)
        said = client.said()
        found.append((messages(events), others, said, client.connection.open_streams))

    assert found[0] == found[1] == found[2]


def test_tracing_clients() -> None:
    """Blocks that differ only in headers that do not matter are told apart from others."""
    client = Client()
    client.settle()
    calls = b"".join(
        client.headers([("traceparent", f"00-{number:032x}-{number:016x}-01"), ("grpc-timeout", t)])
        + client.data()
        for number, t in enumerate(["20m", "20m", "20m", "21m", "21m", "21m"])
    )

    events = client.connection.receive(calls)

    assert [event.head.timeout_us for event in events if isinstance(event, Calls)] == [
        20_000,
        21_000,
    ]
    assert len(messages(events)) == 6


def test_h2spec(tmp_path: Path) -> None:
    """All cases of h2spec --strict pass."""
    need(H2SPEC, "install Go, and run make test again")
    service = ServiceProcess(tmp_path, "--rules", str(TOP / "rules"))
    service.start()
    flags = ["--strict", "--host", "127.0.0.1", "--port", str(service.grpc_port), "--timeout", "10"]

    done = subprocess.run(
        [H2SPEC, *flags], capture_output=True, text=True, check=False, env=dict(os.environ)
    )

    service.kill()
    assert "146 tests, 146 passed" in done.stdout, done.stdout[-4_000:]
