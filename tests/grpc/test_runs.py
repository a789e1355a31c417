"""Runs of frames that are walked at once: nothing else may come of them than frame by frame."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle, islice, takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratelimit_service.grpc.h2 import frames, passing, runs
from ratelimit_service.grpc.h2.frames import (
    END_HEADERS,
    END_STREAM,
    MAX_FRAME_SIZE,
    MAX_WINDOW,
    ErrorCode,
    FrameType,
)
from ratelimit_service.grpc.h2.limits import MAX_STREAMS
from tests.grpc.counted_work import work_of
from tests.grpc.many_calls import (
    BLOCK,
    BLOCKS,
    Late,
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

MANY = 300

RESET_HEAD = frames.rst_stream(1, ErrorCode.CANCEL)[:5]

ALWAYS_TRACED = -1
"""Blocks of callers that trace, one after the other."""


def walked(
    data: bytes, last_stream_id: int, blocks: Sequence[bytes] = (BLOCK,)
) -> tuple[int, list[int], list[int]]:
    """What `runs` is to find, looked for frame by frame: where it ends, calls, and resets."""
    at, found, taken_back = 0, list[int](), list[int]()
    while True:
        if found and data[at : at + 5] == RESET_HEAD and at + 13 <= len(data):
            stream_id = int.from_bytes(data[at + 5 : at + 9], "big")
            if stream_id % 2 == 0 or not 0 < stream_id <= last_stream_id:
                return at, found, taken_back
            taken_back.append(stream_id)
            at += 13
            continue
        stop, stream_id = at, int.from_bytes(data[at + 5 : at + 9], "big")
        for kind, flags in ((FrameType.HEADERS, END_HEADERS), (FrameType.DATA, END_STREAM)):
            length = int.from_bytes(data[stop : stop + 3], "big")
            usual = data[stop + 3 : stop + 5] == bytes((kind, flags))
            same = int.from_bytes(data[stop + 5 : stop + 9], "big") == stream_id
            start, stop = stop + 9, stop + 9 + length
            if not usual or not same or length > MAX_FRAME_SIZE or stop > len(data):
                return at, found, taken_back
            if kind == FrameType.HEADERS and data[start:stop] not in blocks:
                return at, found, taken_back
        if stream_id % 2 == 0 or not last_stream_id < stream_id <= MAX_WINDOW:
            return at, found, taken_back
        last_stream_id = stream_id
        found.append(stream_id)
        at = stop


def test_a_run_ends_where_the_data_ends() -> None:
    """Whole calls are found, whatever their lengths, and the last one's part is left."""
    data = b"".join(call(2 * number + 1, bytes(number % 7)) for number in range(MANY))

    end, streams, *_ = passing.calls(data + call(999)[:-1], 0, BLOCK, 0)

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

    found = passing.calls(data + unusual + call(1_001) * MANY, 0, BLOCK, max(0, first - 2))

    if usual or unusual not in {call(597), call(599)}:
        assert (found.until, found.streams) == (len(data), list(range(first, 601, 2)))


def said_of(
    step: int, lengths: Sequence[int], backs: Sequence[Sequence[int]], blocks: Sequence[bytes]
) -> bytearray:
    """Calls with messages of these lengths; behind them some take back what was so far before."""
    said = bytearray()
    for number, (size, back) in enumerate(zip(lengths, cycle(backs), strict=False)):
        stream_id = step * number + 1
        said += call(stream_id, bytes(size), blocks[size % len(blocks)])
        for places in back:
            said += frames.rst_stream(max(1, stream_id - 2 * places), ErrorCode.CANCEL)
    return said


def passed_on(
    walk: Callable[[bytes, int, int], passing.Passed], data: bytes
) -> tuple[int, list[int], list[int]]:
    """What runs find that begin where the last one ended: many resets end one."""
    at, streams, taken_back = 0, list[int](), list[int]()
    while True:
        found = walk(data, at, streams[-1] if streams else 0)
        streams += found.streams
        taken_back += found.taken_back
        if found.until == at:
            return at, streams, taken_back
        at = found.until


@given(
    st.integers(1, 250),
    st.sampled_from([2, 4, 254]),
    st.lists(st.integers(0, 40), min_size=1, max_size=9),
    st.lists(st.just([]) | st.lists(st.integers(-1, 99), max_size=9), min_size=1, max_size=9),
    st.integers(0, 20_000),
    st.integers(0, 255),
)
def test_no_byte_is_overlooked(
    count: int, step: int, sizes: list[int], backs: list[list[int]], place: int, byte: int
) -> None:
    """A run in which any one byte is another ends as it does frame by frame.

    So it does whatever the lengths of messages, wherever calls are taken back, and whether or not
    header blocks differ.
    """
    lengths = list(islice(cycle(sizes), count))
    data = said_of(step, lengths, backs, [BLOCK])
    data[place % len(data)] = byte

    def like_one(said: bytes, at: int, last: int) -> passing.Passed:
        return passing.calls(said, at, BLOCK, last)

    assert passed_on(like_one, bytes(data)) == walked(bytes(data), 0)

    blocks = [BLOCK, BLOCK + b"!", b"", b"?" * 300]
    varied = said_of(step, lengths, backs, blocks)
    varied[place % len(varied)] = byte

    def known(its: Sequence[bytes]) -> int:
        return sum(1 for _ in takewhile(blocks.__contains__, its))

    expected = walked(bytes(varied), 0, blocks)

    assert passed_on(partial(passing.varied_calls, alike=known), bytes(varied)) == expected

    # This one goes on where calls are not whole.
    until, streams, taken_back = passed_on(partial(passing.begun_calls, alike=known), bytes(varied))

    assert until >= expected[0]
    assert streams[: len(expected[1])] == expected[1]
    assert taken_back[: len(expected[2])] == expected[2]


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


@pytest.mark.parametrize("together", [0, 1, 8])
@pytest.mark.parametrize("order", [as_envoy, as_go, as_tonic, as_grpcio])
@pytest.mark.parametrize("headers", [plain, traced, impatient])
def test_a_refusal_costs_next_to_nothing_whatever_calls_look_like(
    order: Callable[[Sequence[int], Sequence[bytes]], bytes],
    headers: Callable[[int], bytes],
    together: int,
) -> None:
    """Requests differ in length, and some clients' also in their headers.

    Clients also send the frames of their calls in different orders, and take back what they waited
    for in vain, so many calls `together`. Where each refusal costs as much as a count, an overload
    leaves no time for counting.
    """
    client = Late()
    client.haste.timeout_us = 19_456 if headers is impatient else 20_000
    client.hear(as_envoy(range(101, 201, 2), list(map(headers, range(50)))))
    before = client.haste.refused
    data, size = b"", together or 500
    for at in range(1_001, 2_001, 2 * size):
        streams = range(at, min(at + 2 * size, 2_001), 2)
        data += order(streams, [headers(each // 2 - 440) for each in streams])
        for each in streams if together else ():
            data += frames.rst_stream(each - 2 * size, ErrorCode.CANCEL)

    work = work_of(lambda: client.connection.receive(data))

    assert client.haste.refused - before == 500
    assert work < (30 if together else 20) * 500


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
