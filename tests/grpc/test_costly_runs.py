"""What clients may say at will costs little, whatever it is made of: by counted work."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratelimit_service import wire
from ratelimit_service.grpc.h2 import frames
from ratelimit_service.grpc.h2.costs import ANSWERED_US, SAVED_US
from ratelimit_service.grpc.h2.frames import END_STREAM, ErrorCode, FrameType
from ratelimit_service.model import Request
from tests.grpc.counted_work import work_of
from tests.grpc.h2_client import Client
from tests.grpc.many_calls import BLOCKS, call, message, split
from tests.grpc.served_ends import RULES, Ends
from tests.service.asking import Asking, Timed, descriptor

USUAL = BLOCKS[0]
PIECE = 32
"""Calls or frames that a client is allowed in a visit."""


def pieces(client: Client, data: bytes, size: int = 8_192) -> list[int]:
    """The work of each visit until all of the data is handled, as the socket's protocol does it."""
    connection, work = client.connection, []
    for at in range(0, len(data), size):
        piece = data[at : at + size]
        work.append(work_of(lambda: connection.receive(piece, PIECE)))  # noqa: B023
        while connection.has_more and not connection.closing:
            work.append(work_of(lambda: connection.receive(b"", PIECE)))
    return work


def settled() -> Client:
    """A client whose usual header block is known."""
    client = Client()
    client.settle()
    client.connection.receive(call(101, message(1), USUAL))
    return client


@pytest.mark.parametrize("heads", [1, 16, 100, 3_200])
def test_messages_may_look_like_calls(heads: int) -> None:
    """A message that has the bytes of a call's head in it makes no call dear."""
    client = settled()
    said = frames.frame(FrameType.HEADERS, 4, 1, USUAL)[:5] * heads
    streams = range(1_001, 1_401, 2)
    data = b"".join(call(each, said[:16_380], USUAL) for each in streams)

    work = work_of(lambda: client.connection.receive(data))

    assert client.connection.streams.latest == streams[-1]
    assert work < 110 * 200


@pytest.mark.parametrize(
    "older",
    [
        frames.window_update(0, 1),
        frames.rst_stream(101, ErrorCode.CANCEL),
        frames.frame(FrameType.DATA, 0, 103, bytes(256)),
    ],
    ids=["update", "reset", "DATA"],
)
def test_calls_that_do_not_go_on_are_walked_once(older: bytes) -> None:
    """They are not looked at again with each frame of older streams behind them."""
    client = Client()
    client.settle()
    client.connection.receive(call(101, message(1), USUAL) + split(call(103, message(1), USUAL))[0])
    client.connection.sender.answer(101, b"")
    heads = b"".join(split(call(each, message(1), USUAL))[0] for each in range(1_001, 2_023, 2))

    work = pieces(client, heads + older * 240)

    assert sum(work) < 60 * (511 + 240)
    assert max(work) < 10_000


@pytest.mark.parametrize(
    "other",
    [
        frames.frame(FrameType.DATA, 0, 1_001, b""),
        frames.frame(FrameType.DATA, END_STREAM, 1_001, b""),
        frames.window_update(0, 1),
        frames.rst_stream(101, ErrorCode.CANCEL),
    ],
    ids=["DATA", "end", "update", "reset"],
)
def test_what_comes_behind_the_head_of_a_call_has_a_bound(other: bytes) -> None:
    """Any number of frames behind it are handled in pieces, and charged."""
    client = settled()
    client.connection.budget.credit(2_000)

    work = pieces(client, split(call(1_001, message(5), USUAL))[0] + other * 30_000, 262_144)

    assert max(work) < 20_000
    assert client.connection.closing


def test_resets_in_a_row_are_handled_in_pieces() -> None:
    """A client that takes back thousands of open calls at once leaves room for others between."""
    client = settled()
    streams = range(1_001, 7_001, 2)
    client.connection.receive(b"".join(call(each, message(5), USUAL) for each in streams))
    client.connection.budget.credit(SAVED_US // ANSWERED_US)
    data = b"".join(frames.rst_stream(each, ErrorCode.CANCEL) for each in streams)

    client.connection.receive(data, PIECE)
    open_streams = len(client.connection.streams)

    assert 3_000 - open_streams <= 1_024
    while client.connection.has_more:
        client.connection.receive(b"", PIECE)
    assert len(client.connection.streams) == 1
    assert not client.connection.closing


async def test_who_gives_no_time_is_never_refused(tmp_path: Path) -> None:
    """Callers without a deadline wait for an answer, and are counted, also many that are late."""
    ends = Ends(Asking(tmp_path, RULES, store=Timed()))
    ends.settle()
    body = wire.encode_request(Request("edge", (descriptor("user=a"),)))
    for _ in range(2):  # so that its headers are known
        ends.receive(ends.client.headers() + ends.client.data(body), waited_us=0)
    data = b"".join(ends.client.headers() + ends.client.data(body) for _ in range(60))
    ends.served.late = True

    said = ends.receive(data, waited_us=200_000)

    assert FrameType.RST_STREAM not in said
