"""What no usual client says: it costs little, and what RFC 9113 asks for comes of it."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest

from ratelimit_service.grpc.h2 import frames, passing, runs
from ratelimit_service.grpc.h2.connection import Calls
from ratelimit_service.grpc.h2.costs import SAVED_US
from ratelimit_service.grpc.h2.frames import END_HEADERS, END_STREAM, ErrorCode, FrameType
from tests.grpc.h2_client import Client, messages
from tests.grpc.many_calls import BLOCK, BLOCKS, Late, block, call, message, split


@pytest.fixture
def client() -> Client:
    client = Client()
    client.settle()
    return client


def test_numbers_of_streams_that_are_far_apart_cost_nothing() -> None:
    """A client may leave millions of streams out."""
    said = b"".join(call(each) for each in (1, 3, 2**22 + 1, 2**31 - 1))

    tracemalloc.start()
    found = passing.calls(said, 0, BLOCK, 0)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert found[:2] == (len(said), [1, 3, 2**22 + 1, 2**31 - 1])
    assert most < 100_000


@pytest.mark.parametrize("walk", ["window_updates", "resets"])
def test_a_faulty_frame_makes_those_before_it_no_dearer(
    client: Client, walk: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frames are not walked again and again because one behind them is faulty."""
    connection = client.connection
    connection._spent_us = -SAVED_US
    connection.receive(call(101, message(1), BLOCKS[0]))
    usual, faulty = {
        "window_updates": (frames.window_update(101, 1), frames.window_update(101, 0)),
        "resets": (
            frames.rst_stream(1, ErrorCode.CANCEL),
            frames.rst_stream(103, ErrorCode.CANCEL),
        ),
    }[walk]
    done, real = 0, getattr(runs, walk)

    def counted(data: bytes, at: int) -> tuple[int, list[object]]:
        nonlocal done
        end, found = real(data, at)
        done += len(found)
        return end, found

    monkeypatch.setattr(runs, walk, counted)
    connection.receive(usual * 1_000 + faulty)

    assert done < 2_000
    assert client.said()[-1][0] in (FrameType.RST_STREAM, FrameType.GOAWAY)


def test_faulty_frames_among_others_are_walked_in_pieces(client: Client) -> None:
    """Each faulty frame has some hundreds walked again at most."""
    data = frames.window_update(0, 1) * 5_000

    end, found = runs.window_updates(data, 0)

    assert end == 13 * len(found)
    assert len(found) <= 512


def test_an_empty_header_block_is_no_call(client: Client) -> None:
    """Also after usual calls; it has no method."""
    stream_id = client.connection.latest_stream + 2

    assert client.connection.receive(call(stream_id, message(1), b"")) == []

    assert [(kind, its) for kind, _, its, _ in client.said()] == [(FrameType.RST_STREAM, stream_id)]


def test_an_empty_timeout_is_one_that_cannot_be_read() -> None:
    """It is no fault of ours, and takes no other call with it."""
    client = Late()
    for at, timeout in enumerate(("21m", "22m", "23m", "20m")):
        client.hear(call(101 + 2 * at, message(1), block(timeout, x="4")))
    client.over.clear()

    late = call(201, message(1), block("20m", x="4")) + call(203, message(1), block("", x="4"))
    client.hear(late + call(205, message(1), block("20m", x="4")))

    assert client.over == [201, 205]


def test_a_timeout_holds_whatever_others_have_said(client: Client) -> None:
    """One that can be read does, and one of 0 is as none, as those that cannot be read are."""
    heads = [
        event.head.timeout_us
        for at, timeout in enumerate(("xx", "yy", "3m", "0m", "zz"))
        for event in client.connection.receive(call(101 + 2 * at, message(1), block(timeout)))
        if isinstance(event, Calls)
    ]

    assert heads == [None, None, 3_000, None, None]


@pytest.mark.parametrize("cut", [1, 5, 30])
@pytest.mark.parametrize("late", [False, True])
def test_a_header_block_that_is_cut_off_is_not_known(cut: int, late: bool) -> None:
    """It ends the connection, also where the last value of each block is another (section 4.3)."""
    client = Late() if late else Client()
    if not late:
        client.settle()
    for at in range(3):
        client.connection.receive(call(101 + 2 * at, message(1), BLOCKS[3 + at]))
    client.said()

    client.connection.receive(
        call(201, message(1), BLOCKS[6]) + call(203, message(1), BLOCKS[7][:-cut])
    )

    assert client.goaway == ErrorCode.COMPRESSION_ERROR


def trailers(client: Client, stream_id: int) -> bytes:
    block = client.encoder.encode([("x-end", "1")])
    return frames.frame(FrameType.HEADERS, END_HEADERS | END_STREAM, stream_id, block)


def unfinished(stream_id: int) -> bytes:
    headers, data = split(call(stream_id, message(1), BLOCKS[0]))
    return headers + data[:4] + b"\0" + data[5:]


def too_late(client: Client) -> list[int]:
    """A stream that is opened after the last GOAWAY."""
    client.connection.shut_down()
    client.connection.receive(frames.ping(b"lastcall", ack=True))
    client.connection.receive(frames.ping(b"all over", ack=True))
    client.connection.receive(unfinished(103))
    return [103]


def of_unknown_methods(client: Client) -> list[int]:
    """More streams than we remember, each answered at once."""
    streams = range(103, 703, 2)
    headers = block("20m", "/no/such")
    client.connection._spent_us = -SAVED_US
    client.connection.receive(
        b"".join(frames.frame(FrameType.HEADERS, END_HEADERS, each, headers) for each in streams)
    )
    return list(streams)


@pytest.mark.parametrize("leave", [too_late, of_unknown_methods])
def test_what_follows_on_streams_that_are_not_taken_is_passed_over(
    client: Client, leave: Callable[[Client], list[int]]
) -> None:
    """Trailers may have been on their way when the client heard of it (sections 5.1 and 6.8)."""
    headers, data = split(call(101, message(1), BLOCKS[0]))
    client.connection.receive(headers)

    client.connection.receive(b"".join(trailers(client, each) for each in leave(client)))

    assert messages(client.connection.receive(data))


def test_trailers_of_refused_calls_are_passed_over() -> None:
    """So are the other frames of a call that was refused by its headers."""
    client = Late()
    client.hear(call(101, message(1), BLOCKS[0]))
    client.over.clear()

    client.hear(unfinished(103) + trailers(client, 103) + call(105, message(1), BLOCKS[0]))

    assert client.over == [103, 105]
    assert not client.errors


def test_a_stream_that_was_left_out_cannot_be_opened(client: Client) -> None:
    """Streams are opened in the order of their numbers (section 5.1.1)."""
    client.connection.receive(call(101, message(1), BLOCKS[0]) + call(105, message(1), BLOCKS[0]))

    client.connection.receive(call(103, message(1), BLOCKS[0]))

    assert client.goaway == ErrorCode.PROTOCOL_ERROR


@pytest.mark.parametrize(
    "said",
    [
        frames.rst_stream(2, ErrorCode.CANCEL),
        frames.window_update(2, 1),
        frames.frame(FrameType.DATA, END_STREAM, 2, b"x"),
    ],
)
@pytest.mark.parametrize("before", [b"", split(call(101, message(1), BLOCKS[0]))[0]])
def test_streams_of_ours_are_idle(client: Client, said: bytes, before: bytes) -> None:
    """We open none, so nobody can send on one (section 5.1)."""
    client.connection.receive(before + said)

    assert client.goaway == ErrorCode.PROTOCOL_ERROR
