"""Runs of calls that are walked at once: nothing else may come of them than frame by frame."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle, islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratelimit_service.grpc.h2 import frames, runs
from ratelimit_service.grpc.h2.frames import (
    END_HEADERS,
    END_STREAM,
    MAX_WINDOW,
    ErrorCode,
    FrameType,
)
from tests.examples import up_to
from tests.grpc.counted_work import work_of
from tests.grpc.h2_client import Client
from tests.grpc.many_calls import (
    BLOCK,
    BLOCKS,
    as_envoy,
    as_go,
    as_grpcio,
    as_tonic,
    call,
    impatient,
    message,
    plain,
    traced,
)
from tests.grpc.test_ordering import FIRST, Told, frames_in

ALWAYS_TRACED = -1
"""Blocks of callers that trace, one after the other."""

LONGEST = 119
"""A call with a longer message is no usual one."""


def walked(data: bytes, last: int) -> tuple[int, list[int], list[bytes]]:
    """What `runs` is to find, looked for frame by frame: where it ends, streams, and messages."""
    at, streams, found = 0, list[int](), list[bytes]()
    while True:
        stop, stream_id = at, int.from_bytes(data[at + 5 : at + 9], "big")
        payload = b""
        for kind, flags in ((FrameType.HEADERS, END_HEADERS), (FrameType.DATA, END_STREAM)):
            length = int.from_bytes(data[stop : stop + 3], "big")
            usual = data[stop + 3 : stop + 5] == bytes((kind, flags))
            same = int.from_bytes(data[stop + 5 : stop + 9], "big") == stream_id
            start, stop = stop + 9, stop + 9 + length
            payload = data[start:stop]
            if not usual or not same or stop > len(data):
                return at, streams, found
            if kind == FrameType.HEADERS and payload != BLOCK:
                return at, streams, found
        size = (len(payload) - 5).to_bytes(4, "big", signed=True)
        whole = payload[:5] == b"\0" + size
        if not whole or len(payload) > LONGEST:
            return at, streams, found
        if stream_id % 2 == 0 or not last < stream_id <= MAX_WINDOW:
            return at, streams, found
        last, at = stream_id, stop
        streams.append(stream_id)
        found.append(payload[5:])


@given(
    st.integers(1, 250),
    st.sampled_from([2, 4, 254]),
    st.lists(st.integers(0, 120), min_size=1, max_size=9),
    st.integers(0, 20_000),
    st.integers(0, 255),
)
def test_no_byte_is_overlooked(
    count: int, step: int, sizes: list[int], place: int, byte: int
) -> None:
    """A run in which any one byte is another ends as it does frame by frame."""
    lengths = islice(cycle(sizes), count)
    data = bytearray(b"".join(call(step * at + 1, message(n)) for at, n in enumerate(lengths)))
    data[place % len(data)] = byte

    assert runs.usual_calls(bytes(data), 0, BLOCK, 0, 1_000) == walked(bytes(data), 0)


def test_refusals_are_resets() -> None:
    """They are what a client reads as gRPC's RESOURCE_EXHAUSTED, one for each stream."""
    for streams in ([1, 3, 257, 65_537, MAX_WINDOW], list(range(1, 99, 2))):
        assert runs.refusals(streams) == b"".join(
            frames.rst_stream(each, ErrorCode.ENHANCE_YOUR_CALM) for each in streams
        )


@pytest.mark.parametrize("order", [as_envoy, as_go, as_tonic, as_grpcio])
@pytest.mark.parametrize("headers", [plain, traced, impatient])
def test_a_call_costs_little_whatever_it_looks_like(
    order: Callable[[Sequence[int], Sequence[bytes]], bytes], headers: Callable[[int], bytes]
) -> None:
    """Requests differ in length, and some clients' also in their headers.

    Clients also send the frames of their calls in different orders. Where taking a call costs as
    much as a count, an overload leaves no time for counting.
    """
    client = Client()
    client.settle()
    client.connection.receive(as_envoy(range(101, 201, 2), list(map(headers, range(50)))))
    streams = range(1_001, 2_001, 2)
    data = order(streams, [headers(each // 2 - 440) for each in streams])

    work = work_of(lambda: client.connection.receive(data))

    assert client.connection.streams.latest == streams[-1]
    assert work < 80 * len(streams)


CALLS = st.tuples(
    st.sampled_from([0, 0, 0, 0, 1, 2, 3, 12, *[ALWAYS_TRACED] * 4]),
    st.sampled_from([1, 1, 2, 70, 140]),
    st.lists(st.integers(0, 150), min_size=1, max_size=5),
    st.sampled_from([0, 0, 0, 2, 100]),
)
RESETS = st.lists(st.integers(0, 400), min_size=1, max_size=30)
OTHERS = {
    "ping": frames.ping(b"12345678", ack=False),
    "window": frames.window_update(0, 9),
    "settings": frames.settings({}),
    "priority": frames.frame(FrameType.PRIORITY, 0, 1, bytes(5)),
    "unknown": b"\0\0\3\x63\0\0\0\0\1abc",
}


@settings(max_examples=up_to(200))
@given(
    st.lists(CALLS | RESETS | st.sampled_from(sorted(OTHERS)), max_size=12),
    st.lists(st.integers(1, 3_000), max_size=30),
)
def test_nothing_else_comes_of_runs(
    said: list[tuple[int, int, list[int], int] | list[int] | str], cuts: list[int]
) -> None:
    """Read in one go, in any pieces, or frame by frame: the same calls are handed on."""
    at_once, piecemeal, frame_by_frame = Told(), Told(), Told()
    stream_id, data = FIRST - 2, b""
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
        else:
            data += OTHERS[each]

    at_once.hear(data)
    for at, size in zip(_starts(cuts), [*cuts, len(data) + 1], strict=True):
        piecemeal.hear(data[at : at + size])
    for frame in frames_in(data):
        frame_by_frame.hear(frame)

    assert at_once.state() == piecemeal.state() == frame_by_frame.state()


def _starts(cuts: list[int]) -> list[int]:
    """Where each read begins, if reads are of these sizes, and one more of the rest."""
    return [sum(cuts[:number]) for number in range(len(cuts) + 1)]
