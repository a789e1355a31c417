"""Frames of several calls at once: the same comes of them in any order, and in any reads."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from ratelimit_service.grpc.h2 import frames
from ratelimit_service.grpc.h2.connection import Calls, Cancelled, Connection
from ratelimit_service.grpc.h2.frames import (
    END_STREAM,
    MAX_WINDOW,
    ErrorCode,
    FrameType,
    SettingId,
)
from tests.examples import up_to
from tests.grpc.counted_work import work_of
from tests.grpc.h2_client import Client
from tests.grpc.many_calls import (
    BLOCKS,
    as_envoy,
    as_go,
    as_grpcio,
    call,
    message,
    split,
)

FIRST = 101
"""The stream of the first call."""


def frames_in(said: bytes) -> Iterator[bytes]:
    """One frame after the other."""
    at = 0
    while at < len(said):
        stop = at + 9 + int.from_bytes(said[at : at + 3], "big")
        yield said[at:stop]
        at = stop


def credits_of(connection: Connection) -> dict[int, int]:
    """How much wider the window of each open stream is."""
    streams = connection.streams
    records = {each: streams.record(each) for each in [*streams.open, *streams.begun]}
    return {each: record.credit for each, record in records.items() if record}


class Told:
    """A client, and what is made of all that it says."""

    def __init__(self) -> None:
        self.client = Client()
        self.client.settle()
        self.calls: dict[int, bytes] = {}
        self.cancelled: list[int] = []
        self.frames: list[tuple[int, int, int, bytes]] = []

    def hear(self, data: bytes) -> None:
        connection = self.client.connection
        events = connection.receive(data, 32)
        while connection.has_more:
            events += connection.receive(b"", 32)
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
            connection.streams.latest,
            connection.sender.window,
            credits_of(connection),
            sorted(connection.streams.open),
            sorted(connection.streams.unfinished),
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


def mixed(parts: list[tuple[str, int, int]], chance: Random) -> bytes:
    """The frames of some calls, in any order in which a client may send them."""
    queues = []
    for number, (kind, size, which) in enumerate(parts):
        stream_id = FIRST + 2 * number
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
    return said


@settings(max_examples=up_to(200))
@given(PARTS, st.randoms(use_true_random=False), st.lists(st.integers(1, 900), max_size=20))
def test_the_order_of_frames_of_different_calls_means_nothing(
    parts: list[tuple[str, int, int]], chance: Random, cuts: list[int]
) -> None:
    """However the frames of calls are mixed, and cut into reads, the same calls are handed on."""
    said = mixed(parts, chance)
    at_once, piecemeal = Told(), Told()

    at_once.hear(said)
    at = 0
    for size in cuts:
        piecemeal.hear(said[at : at + size])
        at += size
    piecemeal.hear(said[at:])

    assert at_once.state() == piecemeal.state()
    frame_by_frame = Told()
    for frame in frames_in(said):
        frame_by_frame.hear(frame)
    assert at_once.state() == frame_by_frame.state()


def test_a_call_that_does_not_go_on_makes_others_no_dearer() -> None:
    """Others cost no more because one in front of them is not whole."""
    done = []
    for first in range(2):
        client = Told()
        streams = range(FIRST + 2, FIRST + 2_002, 2)
        headers, _ = split(call(FIRST, message(1), BLOCKS[0]))
        said = headers * first + as_go(streams, BLOCKS[:1] * len(streams))
        done.append(work_of(partial(_hear_in_reads, client, said)))
        assert len(client.calls) == len(streams)

    assert done[1] < done[0] * 5 // 4


def _hear_in_reads(client: Told, said: bytes) -> None:
    for at in range(0, len(said), 8_192):
        client.hear(said[at : at + 8_192])


def test_wider_windows_are_taken_as_far_as_they_go() -> None:
    """Window updates in a row are taken together; one that is faulty is met as it is alone."""
    client = Told()
    first = client.client.connection.streams.latest + 2
    calls = b"".join(call(each, message(1), BLOCKS[0]) for each in range(first, first + 40, 2))
    updates = [frames.window_update(each, 7) for each in range(first, first + 40, 2)]
    before = client.client.connection.sender.window
    client.hear(calls + b"".join(updates * 2) + frames.window_update(0, 9) * 3)

    connection = client.client.connection
    assert connection.sender.window == before + 27
    assert credits_of(connection) == dict.fromkeys(range(first, first + 40, 2), 14)

    client.hear(b"".join(updates[:3]) + frames.window_update(first + 6, 0) + updates[5])
    assert (first + 6) not in connection.streams.open
    assert credits_of(connection)[first + 10] == 21
    client.hear(b"".join(updates[:3]) + frames.window_update(0, 0))
    assert connection.closing


def test_wider_windows_of_calls_that_are_over_are_forgotten() -> None:
    """A client that widens a window with every call makes nothing grow."""
    client = Told()
    connection = client.client.connection
    first = connection.streams.latest + 2
    for stream_id in range(first, first + 4_000, 2):
        client.hear(as_grpcio([stream_id], BLOCKS[:1]))
        connection.sender.answer(stream_id, b"told")

    assert not connection.streams.open
    assert len(connection.streams.widened) < 300


def test_answers_wait_for_the_windows_of_whole_calls() -> None:
    """A client that opens no window with a stream gets an answer once it opens that stream's."""
    client = Client()
    client.settle()
    connection = client.connection
    connection.receive(frames.settings({SettingId.INITIAL_WINDOW_SIZE: 0}))
    first = connection.streams.latest + 2
    for size, opened in ((3, 2), (100, 100)):
        streams = [first, first + 2]
        first += 4
        connection.receive(
            as_envoy(streams, BLOCKS[:1] * 2)
            + b"".join(frames.window_update(each, opened) for each in streams)
        )
        client.said()
        for each in streams:
            connection.sender.answer(each, b"x" * size)
        told = [len(payload) for kind, _, _, payload in client.said() if kind == FrameType.DATA]
        assert told == [min(opened, size + 5)] * 2


def test_a_frame_that_ends_the_connection_comes_to_its_turn() -> None:
    """No frame on a stream that cannot be opened is put in front of calls that came before it."""
    for faulty in (
        frames.frame(FrameType.DATA, 0, 2, b"?"),
        frames.rst_stream(2, ErrorCode.CANCEL),
        frames.window_update(2, 1),
    ):
        told = Told()
        headers, _ = split(call(FIRST, message(1), BLOCKS[0]))
        told.client.connection.receive(call(FIRST - 2, message(1), BLOCKS[0]))
        told.client.connection.receive(headers + faulty)

        (goaway,) = (each for each in told.client.said() if each[0] == FrameType.GOAWAY)
        assert int.from_bytes(goaway[3][:4], "big") == FIRST
