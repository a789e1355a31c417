"""What no usual client says: it costs little, and what RFC 9113 asks for comes of it."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest

from ratelimit_service.grpc.h2 import frames
from ratelimit_service.grpc.h2.connection import Calls
from ratelimit_service.grpc.h2.costs import ANSWERED_US, SAVED_US
from ratelimit_service.grpc.h2.frames import END_HEADERS, END_STREAM, ErrorCode, FrameType
from tests.grpc.h2_client import Client, messages
from tests.grpc.many_calls import BLOCKS, block, call, message, split


@pytest.fixture
def client() -> Client:
    client = Client()
    client.settle()
    return client


def test_numbers_of_streams_that_are_far_apart_cost_nothing(client: Client) -> None:
    """A client may leave millions of streams out."""
    said = b"".join(call(each, message(1), BLOCKS[0]) for each in (101, 2**22 + 1, 2**31 - 1))

    tracemalloc.start()
    found = messages(client.connection.receive(said))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert [stream_id for stream_id, _ in found] == [101, 2**22 + 1, 2**31 - 1]
    assert most < 100_000


def test_an_empty_header_block_is_no_call(client: Client) -> None:
    """Also after usual calls; it has no method."""
    stream_id = client.connection.streams.latest + 2

    assert client.connection.receive(call(stream_id, message(1), b"")) == []

    assert [(kind, its) for kind, _, its, _ in client.said()] == [(FrameType.RST_STREAM, stream_id)]


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
def test_a_header_block_that_is_cut_off_is_not_known(client: Client, cut: int) -> None:
    """It ends the connection, also where the last value of each block is another (section 4.3)."""
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
    client.connection.budget.credit(SAVED_US // ANSWERED_US)
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
