"""Runs of frames that are walked at once: nothing else may come of them than frame by frame."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import cycle, islice, takewhile
from random import Random
from types import FrameType as PythonFrame

import hpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratelimit_service.transport.h2 import frames, runs
from ratelimit_service.transport.h2.connection import Calls, Cancelled, Connection
from ratelimit_service.transport.h2.frames import (
    END_HEADERS,
    END_STREAM,
    MAX_FRAME_SIZE,
    MAX_WINDOW,
    ErrorCode,
    FrameType,
    SettingId,
)
from ratelimit_service.transport.h2.limits import MAX_STREAMS
from ratelimit_service.transport.h2.overload import Haste
from tests.transport.h2_client import HEADERS, PATH, Client

BLOCK = b"the block of all calls"
TRACE = "00-{:032x}-{:016x}-01"
MANY = 300


def call(stream_id: int, message: bytes = b"12345", block: bytes = BLOCK) -> bytes:
    headers = frames.frame(FrameType.HEADERS, END_HEADERS, stream_id, block)
    return headers + frames.frame(FrameType.DATA, END_STREAM, stream_id, message)


def walked(
    data: bytes, last_stream_id: int, blocks: Sequence[bytes] = (BLOCK,)
) -> tuple[int, list[int]]:
    """What `runs` is to find, looked for frame by frame."""
    at, found = 0, list[int]()
    while True:
        stop, stream_id = at, int.from_bytes(data[at + 5 : at + 9], "big")
        for kind, flags in ((FrameType.HEADERS, END_HEADERS), (FrameType.DATA, END_STREAM)):
            length = int.from_bytes(data[stop : stop + 3], "big")
            usual = data[stop + 3 : stop + 5] == bytes((kind, flags))
            same = int.from_bytes(data[stop + 5 : stop + 9], "big") == stream_id
            start, stop = stop + 9, stop + 9 + length
            if not usual or not same or length > MAX_FRAME_SIZE or stop > len(data):
                return at, found
            if kind == FrameType.HEADERS and data[start:stop] not in blocks:
                return at, found
        if stream_id % 2 == 0 or not last_stream_id < stream_id <= MAX_WINDOW:
            return at, found
        last_stream_id = stream_id
        found.append(stream_id)
        at = stop


def test_a_run_ends_where_the_data_ends() -> None:
    """Whole calls are found, whatever their lengths, and the last one's part is left."""
    data = b"".join(call(2 * number + 1, bytes(number % 7)) for number in range(MANY))

    end, streams = runs.calls(data + call(999)[:-1], 0, BLOCK, 0)

    assert end == len(data)
    assert streams == list(range(1, 2 * MANY, 2))


@pytest.mark.parametrize(
    "unusual",
    [
        call(999, block=b"another block, as long"[: len(BLOCK)]),
        call(998),
        call(597),
        call(599),
        call(MAX_WINDOW + 2),
        call(999, bytes(MAX_FRAME_SIZE + 1)),
        frames.ping(bytes(8), ack=False) * 9,
    ],
    ids=["another block", "even", "older", "again", "reserved bit", "too large", "ping"],
)
@pytest.mark.parametrize("usual", [0, 1, 2, 66, 67, 150, MANY])
def test_a_run_ends_before_what_is_unusual(unusual: bytes, usual: int) -> None:
    """Calls of one length are looked at together, but no further than they are usual."""
    first = 601 - 2 * usual
    data = b"".join(call(stream_id) for stream_id in range(first, 601, 2))

    end, streams = runs.calls(data + unusual + call(1_001) * MANY, 0, BLOCK, max(0, first - 2))

    if usual or unusual not in {call(597), call(599)}:
        assert (end, streams) == (len(data), list(range(first, 601, 2)))


@given(
    st.integers(1, 250),
    st.sampled_from([2, 4, 254]),
    st.lists(st.integers(0, 40), min_size=1, max_size=9),
    st.integers(0, 20_000),
    st.integers(0, 255),
)
def test_no_byte_is_overlooked(
    count: int, step: int, sizes: list[int], place: int, byte: int
) -> None:
    """A run in which any one byte is another ends as it does frame by frame.

    So it does whatever the lengths of messages, and whether or not header blocks differ.
    """
    lengths = list(islice(cycle(sizes), count))
    data = bytearray(
        b"".join(call(step * number + 1, bytes(size)) for number, size in enumerate(lengths))
    )
    data[place % len(data)] = byte

    assert runs.calls(bytes(data), 0, BLOCK, 0) == walked(bytes(data), 0)

    blocks = [BLOCK, BLOCK + b"!", b"", b"?" * 300]
    varied = bytearray(
        b"".join(
            call(step * number + 1, bytes(size), blocks[size % 4])
            for number, size in enumerate(lengths)
        )
    )
    varied[place % len(varied)] = byte

    end, streams, _ = runs.varied_calls(
        bytes(varied), 0, 0, lambda its: sum(1 for _ in takewhile(blocks.__contains__, its))
    )

    assert (end, streams) == walked(bytes(varied), 0, blocks)


def test_wider_windows_are_taken_as_far_as_they_go() -> None:
    """Window updates in a row are taken together; one that is faulty is met as it is alone."""
    client = Told()
    first = client.client.connection.latest_stream + 2
    calls = b"".join(call(each, message(1), BLOCKS[0]) for each in range(first, first + 40, 2))
    updates = [frames.window_update(each, 7) for each in range(first, first + 40, 2)]
    before = client.client.connection._send_window
    client.hear(calls + b"".join(updates * 2) + frames.window_update(0, 9) * 3)

    connection = client.client.connection
    assert connection._send_window == before + 27
    assert credits_of(connection) == dict.fromkeys(range(first, first + 40, 2), 14)

    client.hear(b"".join(updates[:3]) + frames.window_update(first + 6, 0) + updates[5])
    assert (first + 6) not in connection._streams
    assert credits_of(connection)[first + 10] == 21
    client.hear(b"".join(updates[:3]) + frames.window_update(0, 0))
    assert connection.closing


def test_wider_windows_of_calls_that_are_over_are_forgotten() -> None:
    """A client that widens a window with every call makes nothing grow."""
    client = Told()
    connection = client.client.connection
    first = connection.latest_stream + 2
    for stream_id in range(first, first + 4_000, 2):
        client.hear(as_grpcio([stream_id], BLOCKS[:1]))
        connection.answer(stream_id, b"told")

    assert not connection._streams
    assert len(connection._widened) < 300


def test_answers_wait_for_the_windows_of_whole_calls() -> None:
    """A client that opens no window with a stream gets an answer once it opens that stream's."""
    client = Client()
    client.settle()
    connection = client.connection
    connection.receive(frames.settings({SettingId.INITIAL_WINDOW_SIZE: 0}))
    first = connection.latest_stream + 2
    for size, opened in ((3, 2), (100, 100)):
        streams = [first, first + 2]
        first += 4
        connection.receive(
            as_envoy(streams, BLOCKS[:1] * 2)
            + b"".join(frames.window_update(each, opened) for each in streams)
        )
        client.said()
        for each in streams:
            connection.answer(each, b"x" * size)
        told = [len(payload) for kind, _, _, payload in client.said() if kind == FrameType.DATA]
        assert told == [min(opened, size + 5)] * 2


def test_resets_are_found_as_far_as_they_go() -> None:
    """Resets in a row are taken, whatever their codes; anything else ends them."""
    resets = b"".join(frames.rst_stream(number, ErrorCode.CANCEL) for number in range(1, 90, 2))

    assert runs.resets(b"??" + resets + call(91), 2) == (2 + len(resets), list(range(1, 90, 2)))
    assert runs.resets(call(1), 0) == (0, [])
    assert runs.resets(frames.rst_stream(MAX_WINDOW + 2, ErrorCode.CANCEL), 0) == (0, [])


def test_refusals_are_resets() -> None:
    """They are what a client reads as gRPC's RESOURCE_EXHAUSTED, one for each stream."""
    streams = [1, 3, 257, 65_537, MAX_WINDOW]

    made = runs.refusals(streams)

    assert made == b"".join(
        frames.rst_stream(each, ErrorCode.ENHANCE_YOUR_CALM) for each in streams
    )


def failed(error: Exception) -> None:
    """No fault is expected."""
    raise error


class Late(Client):
    """A client whose calls are all late: of one path and one patience they are refused."""

    def __init__(self) -> None:
        super().__init__()
        self.settle()
        self.haste = self.connection.haste = Haste(PATH.encode(), failed)
        self.haste.timeout_us, self.haste.refusing = 20_000, True
        self.over: list[int] = []
        """Calls that were refused, or that ended in another way."""
        self.taken_back: set[int] = set()
        """Calls that the client takes back at some time: they need no refusal then."""
        self.errors: list[int] = []
        self.credit = 0

    def hear(self, data: bytes) -> None:
        """Bytes come; what the connection cannot refuse by itself is left open."""
        events = self.connection.receive(data)
        while self.connection.has_more:
            events += self.connection.receive(b"")
        for event in events:
            if isinstance(event, Calls) and self.haste.concerns(event.head):
                self.connection.refuse(event.stream_ids)
            elif isinstance(event, Cancelled):
                self.over.append(event.stream_id)
        for kind, _, stream_id, payload in self.said():
            if kind == FrameType.RST_STREAM:
                self.over.append(stream_id)
            elif kind == FrameType.GOAWAY:
                self.errors.append(int.from_bytes(payload[4:8], "big"))
            elif kind == FrameType.WINDOW_UPDATE:
                self.credit += int.from_bytes(payload, "big")

    def state(self) -> object:
        connection = self.connection
        if connection.closing:
            return self.errors
        return (
            sorted(set(self.over) - self.taken_back),
            connection.latest_stream,
            sorted(connection._streams),
            self.credit + connection._consumed,
        )


def test_runs_of_single_calls_and_resets_are_handled_in_pieces() -> None:
    """However many late calls come that are taken back at once, a few are handled at a time."""
    client = Late()
    client.hear(call(101, message(1), BLOCKS[0]))  # from now on the block is known
    before = client.haste.refused
    pairs = (
        call(each, message(1), BLOCKS[0]) + frames.rst_stream(each, ErrorCode.CANCEL)
        for each in range(103, 4_103, 2)
    )
    client.connection.receive(b"".join(pairs), 32)
    handled = [client.haste.refused - before]
    while client.connection.has_more:
        client.connection.tick()
        client.connection.receive(b"", 32)
        handled.append(client.haste.refused - before - sum(handled))

    assert max(handled) <= 200
    assert sum(handled) == 2_000


def traced(number: int) -> bytes:
    """The header block of a caller that traces: no two of them are alike, nor of one length."""
    return block("20m", traceparent=TRACE.format(number**9, number**5))


def as_envoy(streams: Sequence[int], blocks: Sequence[bytes]) -> bytes:
    """Each call's frames together; messages differ in length."""
    return b"".join(
        call(each, message(each * each % 11), block)
        for each, block in zip(streams, blocks, strict=True)
    )


def as_go(streams: Sequence[int], blocks: Sequence[bytes]) -> bytes:
    """The HEADERS of several calls, then their DATA."""
    said = b""
    for at in range(0, len(streams), 20):
        pairs = [
            split(as_envoy([each], [block]))
            for each, block in zip(streams[at : at + 20], blocks[at : at + 20], strict=True)
        ]
        said += b"".join(headers for headers, _ in pairs) + b"".join(data for _, data in pairs)
    return said


def as_grpcio(streams: Sequence[int], blocks: Sequence[bytes]) -> bytes:
    """Each call widens its own window, and then that of the connection."""
    said = b""
    for each, block in zip(streams, blocks, strict=True):
        headers, data = split(as_envoy([each], [block]))
        said += headers + frames.window_update(each, 5) + data + frames.window_update(0, 5)
    return said


def as_tonic(streams: Sequence[int], blocks: Sequence[bytes]) -> bytes:
    """The end of each stream in a frame of its own."""
    said = b""
    for each, block in zip(streams, blocks, strict=True):
        headers, data = split(as_envoy([each], [block]))
        said += headers + data[:4] + b"\0" + data[5:]
        said += frames.frame(FrameType.DATA, END_STREAM, each, b"")
    return said


def split(said: bytes) -> tuple[bytes, bytes]:
    """The HEADERS of a call, and the rest."""
    stop = 9 + int.from_bytes(said[:3], "big")
    return said[:stop], said[stop:]


def plain(number: int) -> bytes:
    return BLOCKS[0]


def impatient(number: int) -> bytes:
    """The header block of a caller that says to the nanosecond how much time is left."""
    return block(f"{19_999_999 - number * number}n")


@pytest.mark.parametrize("order", [as_envoy, as_go, as_tonic, as_grpcio])
@pytest.mark.parametrize("headers", [plain, traced, impatient])
def test_a_refusal_costs_next_to_nothing_whatever_calls_look_like(
    order: Callable[[Sequence[int], Sequence[bytes]], bytes], headers: Callable[[int], bytes]
) -> None:
    """Requests differ in length, and some clients' also in their headers.

    Clients also send the frames of their calls in different orders. Where each refusal costs as
    much as a count, an overload leaves no time for counting.
    """
    client = Late()
    client.haste.timeout_us = 19_456 if headers is impatient else 20_000
    client.hear(as_envoy(range(101, 201, 2), list(map(headers, range(50)))))
    before = client.haste.refused
    data = order(range(1_001, 2_001, 2), list(map(headers, range(60, 560))))

    work = 0

    def count(frame: PythonFrame | None, event: str, argument: object) -> None:
        nonlocal work
        work += event in {"call", "c_call"}

    sys.setprofile(count)
    try:
        client.connection.receive(data)
    finally:
        sys.setprofile(None)

    assert client.haste.refused - before == 500
    assert work < 20 * 500


def credits_of(connection: Connection) -> dict[int, int]:
    """How much wider the window of each open stream is."""
    records = {each: connection._stream(each) for each in list(connection._streams)}
    return {each: record.credit for each, record in records.items() if record}


class Told:
    """A client, and what is made of all that it says."""

    def __init__(self) -> None:
        self.client = Client()
        self.client.settle()
        self.calls: dict[int, bytes] = {}
        self.cancelled: list[int] = []
        self.frames: list[tuple[int, int, int, bytes]] = []

    def hear(self, data: bytes, *, followed: bool = False) -> None:
        connection = self.client.connection
        events = connection.receive(data, 32, followed=followed)
        while connection.has_more:
            events += connection.receive(b"", 32, followed=followed)
        for event in events:
            if isinstance(event, Calls):
                self.calls.update(zip(event.stream_ids, event.messages, strict=True))
            elif isinstance(event, Cancelled):
                self.cancelled.append(event.stream_id)
        self.frames += self.client.said()

    def state(self) -> object:
        connection = self.client.connection
        resets = sorted(each for each in self.frames if each[0] == FrameType.RST_STREAM)
        if connection.closing:
            return "closed"
        return (
            sorted(self.calls.items()),
            sorted(self.cancelled),
            resets,
            connection.latest_stream,
            sorted(connection._streams),
            sorted(connection._unfinished),
            connection._send_window,
            credits_of(connection),
        )


PARTS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "whole",
                "ends apart",
                "in parts",
                "never ends",
                "reset",
                "ping",
                "wider",
                "too wide",
            ]
        ),
        st.integers(0, 200),
        st.sampled_from([0, 0, 0, 1, 2]),
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=200)
@given(PARTS, st.randoms(use_true_random=False), st.lists(st.integers(1, 900), max_size=20))
def test_the_order_of_frames_of_different_calls_means_nothing(
    parts: list[tuple[str, int, int]], chance: Random, cuts: list[int]
) -> None:
    """However the frames of calls are mixed, and cut into reads, the same calls are handed on."""
    at_once, piecemeal, first = Told(), Told(), 101
    queues = []
    for number, (kind, size, which) in enumerate(parts):
        stream_id = first + 2 * number
        headers, data = split(call(stream_id, message(size), BLOCKS[which]))
        parted = data[:4] + b"\0" + data[5:]
        end = frames.frame(FrameType.DATA, END_STREAM, stream_id, b"")
        half = 5 + size // 2
        some = frames.frame(FrameType.DATA, 0, stream_id, data[9 : 9 + half])
        rest = frames.frame(FrameType.DATA, END_STREAM, stream_id, data[9 + half :])
        queues.append(
            {
                "whole": [headers, data],
                "ends apart": [headers, parted, end],
                "in parts": [headers, some, rest],
                "never ends": [headers, parted],
                "reset": [headers, data, frames.rst_stream(stream_id, ErrorCode.CANCEL)],
                "wider": [
                    headers,
                    frames.window_update(stream_id, 5),
                    data,
                    frames.window_update(0, size + 1),
                ],
                "too wide": [headers, data, frames.window_update(stream_id, MAX_WINDOW)],
                "ping": [headers, data, frames.ping(b"12345678", ack=False)],
            }[kind]
        )
    said, begun = b"", 0
    while any(queues):
        # A stream begins after those with lower numbers.
        open_now = [at for at, queue in enumerate(queues) if queue and at <= begun]
        at = chance.choice(open_now)
        begun = max(begun, at + 1)
        said += queues[at].pop(0)

    at_once.hear(said)
    at = 0
    for size in cuts:
        piecemeal.hear(said[at : at + size], followed=chance.random() < 0.7)
        at += size
    piecemeal.hear(said[at:])

    assert at_once.state() == piecemeal.state()
    frame_by_frame, at = Told(), 0
    while at < len(said):
        stop = at + 9 + int.from_bytes(said[at : at + 3], "big")
        frame_by_frame.hear(said[at:stop])
        at = stop
    assert at_once.state() == frame_by_frame.state()


def test_calls_that_are_never_answered_have_a_bound() -> None:
    """No more calls wait without an answer than streams are allowed; others are refused at once."""
    client = Late()
    client.hear(call(101, message(1), BLOCKS[0]))
    before, client.haste.gone_percent = client.haste.refused, 100
    for first in range(10_001, 210_001, 20_000):
        streams = range(first, first + 2_000, 2)
        client.connection.receive(b"".join(call(each, message(1), BLOCKS[0]) for each in streams))
    refused = [len(client.said())]
    for _ in range(3):
        client.connection.tick()
        refused.append(len(client.said()))

    assert client.haste.refused - before == 10_000
    assert refused == [10_000 - MAX_STREAMS, 0, MAX_STREAMS, 0]


def block(timeout: str, path: str = PATH, **others: str) -> bytes:
    encoder = hpack.Encoder()
    encoder.header_table_size = 0
    listed = [*(dict(HEADERS) | {":path": path}).items(), ("grpc-timeout", timeout)]
    listed += others.items()
    return encoder.encode(listed)


BLOCKS = [
    block("20m"),
    block("90m"),
    block("20m", "/grpc.health.v1.Health/Check"),
    *[block("20m", traceparent=TRACE.format(number, number)) for number in range(9)],
    block("90m", traceparent=TRACE.format(1, 1)),
]
ALWAYS_TRACED = -1
"""Blocks of callers that trace, one after the other."""


def message(size: int) -> bytes:
    return b"\0" + size.to_bytes(4, "big") + bytes(size)


CALLS = st.tuples(
    st.sampled_from([0, 0, 0, 0, 1, 2, 3, 12, *[ALWAYS_TRACED] * 4]),
    st.sampled_from([1, 1, 2, 70, 140]),
    st.lists(st.integers(0, 30), min_size=1, max_size=5),
    st.sampled_from([0, 0, 0, 2, 100]),
)
RESETS = st.lists(st.integers(0, 400), min_size=1, max_size=30)
OTHERS = st.sampled_from(["ping", "window", "settings", "priority", "unknown"])


@settings(max_examples=200)
@given(st.lists(CALLS | RESETS | OTHERS, max_size=12), st.lists(st.integers(1, 3_000), max_size=30))
def test_nothing_else_comes_of_runs(
    said: list[tuple[int, int, list[int], int] | list[int] | str], cuts: list[int]
) -> None:
    """Read in one go or in any pieces, the same calls are refused, and the same remain."""
    at_once, piecemeal = Late(), Late()
    taken_back = at_once.taken_back = piecemeal.taken_back
    stream_id, data = at_once.connection.latest_stream, b""
    for each in said:
        if isinstance(each, tuple):
            which, count, sizes, gap = each
            stream_id += gap
            for number, size in enumerate(islice(cycle(sizes), count)):
                stream_id += 2
                chosen = 3 + number % 9 if which == ALWAYS_TRACED else which
                data += call(stream_id, message(size), BLOCKS[chosen])
        elif isinstance(each, list):
            back = [max(1, stream_id - 2 * places) for places in each]
            data += b"".join(frames.rst_stream(one, ErrorCode.CANCEL) for one in back)
            taken_back.update(back)
        else:
            data += {
                "ping": frames.ping(b"12345678", ack=False),
                "window": frames.window_update(0, 9),
                "settings": frames.settings({}),
                "priority": frames.frame(FrameType.PRIORITY, 0, 1, bytes(5)),
                "unknown": b"\0\0\3\x63\0\0\0\0\1abc",
            }[each]

    at_once.hear(data)
    at = 0
    for size in cuts:
        piecemeal.hear(data[at : at + size])
        at += size
    piecemeal.hear(data[at:])

    assert at_once.state() == piecemeal.state()
