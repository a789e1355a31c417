"""What clients may say at will costs little, whatever it is made of: by counted work."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from ratelimit_service import wire
from ratelimit_service.eventloop.clock import elapsed_us
from ratelimit_service.grpc.h2 import frames
from ratelimit_service.grpc.h2.frames import END_STREAM, ErrorCode, FrameType
from ratelimit_service.grpc.h2.headers import HeaderReader
from ratelimit_service.grpc.h2.overload import Allowance
from ratelimit_service.model import Request
from ratelimit_service.service import Ready
from ratelimit_service.stores import BROKEN
from tests.grpc.counted_work import work_of
from tests.grpc.h2_client import Client
from tests.grpc.many_calls import BLOCKS, Late, block, call, message, split, traced
from tests.grpc.served_ends import RULES, Ends
from tests.service.asking import Asking, Timed, descriptor

USUAL = BLOCKS[0]
PIECE = 32
"""Calls or frames that a client is allowed in a visit."""


def pieces(client: Client, data: bytes, size: int = 8_192) -> list[int]:
    """The work of each visit until all of the data is handled, as the socket's protocol does it."""
    connection, work = client.connection, []
    for at in range(0, len(data), size):
        piece, followed = data[at : at + size], at + size < len(data)
        work.append(work_of(lambda: connection.receive(piece, PIECE, followed=followed)))  # noqa: B023
        while connection.has_more and not connection.closing:
            work.append(work_of(lambda: connection.receive(b"", PIECE)))
    return work


def late() -> Late:
    """Its usual header block is known."""
    client = Late()
    client.hear(call(101, message(1), USUAL))
    client.haste.refused = 0
    return client


@pytest.mark.parametrize("heads", [1, 16, 100, 3_200])
def test_messages_may_look_like_calls(heads: int) -> None:
    """A message that has the bytes of a call's head in it makes no refusal dear."""
    client = late()
    said = frames.frame(FrameType.HEADERS, 4, 1, USUAL)[:5] * heads
    streams = range(1_001, 1_401, 2)
    data = b"".join(call(each, said[:16_380], USUAL) for each in streams)

    work = work_of(lambda: client.connection.receive(data))

    assert client.haste.refused == 200
    assert work < 100 * 200


@pytest.mark.parametrize(
    "older",
    [
        frames.window_update(0, 1),
        frames.rst_stream(101, ErrorCode.CANCEL),
        frames.frame(FrameType.DATA, 0, 103, bytes(256)),
    ],
    ids=["update", "reset", "DATA"],
)
def test_frames_are_put_in_order_once(older: bytes) -> None:
    """Calls that do not go on are not sorted again with each frame of older streams behind them."""
    client = Client()
    client.settle()
    client.connection.receive(call(101, message(1), USUAL) + split(call(103, message(1), USUAL))[0])
    client.connection.answer(101, b"")
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
def test_what_comes_behind_late_calls_has_a_bound(other: bytes) -> None:
    """Any number of frames behind the head of a late call are handled in pieces, and charged."""
    client = late()
    client.connection._spent_us = -200_000  # as a client that has had 2,000 answers

    work = pieces(client, split(call(1_001, message(5), USUAL))[0] + other * 30_000, 262_144)

    assert max(work) < 20_000
    assert client.connection.closing


def test_resets_in_a_row_are_handled_in_pieces() -> None:
    """A client that takes back thousands of open calls at once leaves room for others between."""
    client = late()
    client.connection.haste = None
    streams = range(1_001, 7_001, 2)
    client.connection.receive(b"".join(call(each, message(5), USUAL) for each in streams))
    client.connection._spent_us = -320_000
    client.connection.haste = client.haste
    data = b"".join(frames.rst_stream(each, ErrorCode.CANCEL) for each in streams)

    client.connection.receive(data, PIECE)
    open_streams = client.connection.open_streams

    assert 3_000 - open_streams <= 1_024
    while client.connection.has_more:
        client.connection.receive(b"", PIECE)
    assert not client.connection.open_streams
    assert not client.connection.closing


def test_late_calls_of_two_kinds_by_turns() -> None:
    """Where only every other call may be refused, each is not walked again with those behind it."""
    client = late()
    client.hear(call(103, message(1), BLOCKS[1]))
    streams = range(1_001, 3_001, 2)
    data = b"".join(call(each, message(40), BLOCKS[each // 2 & 1]) for each in streams)

    work = work_of(lambda: client.connection.receive(data))

    assert client.haste.refused == 500
    assert work < 90 * 1_000


def test_a_usual_block_is_never_forgotten() -> None:
    """Late calls are refused in bulk, also when others' blocks have taken the place of theirs.

    A client whose calls have one header block compares it, and does not look it up.
    """
    client = late()
    client.connection.haste = None
    client.hear(call(103, message(1), USUAL))
    client.connection.haste = client.haste
    HeaderReader.remembered.clear()

    client.hear(b"".join(call(each, message(1), USUAL) for each in range(1_001, 1_201, 2)))

    assert client.haste.refused == 100


def test_no_answer_at_hand_is_given_without_any_time() -> None:
    """Answers at hand are not kept fresh then: calls with unknown headers are handed on."""
    client = late()
    ready = client.haste.answers[b""] = Ready(b"told long ago", (), BROKEN)
    HeaderReader.remembered.clear()
    client.connection._usual_block = b""

    client.hear(call(103, message(0), traced(1)) + call(105, message(0), traced(1)))

    assert ready.times == 0
    assert sorted(client.over)[-2:] == [103, 105]


def test_who_waits_for_nothing_takes_no_time_from_others() -> None:
    """The impatience of one client does not lower how much is counted of all."""
    alone, beside = Allowance(), Allowance()
    for now_us in range(1_000, 1_000_000, 1_000):
        for allowance, patience_us in ((alone, 10_000), (beside, 1)):
            allowance.visited(now_us, 1_000, patience_us)
    now_us = 1_000_000

    assert beside.visited(now_us, 1_000, 20_000) == alone.visited(now_us, 1_000, 20_000)


async def test_who_gives_no_time_is_never_refused(tmp_path: Path) -> None:
    """Callers without a deadline wait for an answer: late ones are decided by policy, also many."""
    ends = Ends(Asking(tmp_path, RULES, store=Timed()))
    ends.settle()
    ends.overload.counted(8_000)
    body = wire.encode_request(Request("edge", (descriptor("user=a"),)))
    for _ in range(2):  # so that its headers are known
        ends.receive(ends.client.headers() + ends.client.data(body), waited_us=0)
    data = b"".join(ends.client.headers() + ends.client.data(body) for _ in range(60))
    now_us = elapsed_us()
    ends.protocol.backlog.late_us, ends.protocol.backlog.late_since_us = now_us, now_us - 100_000

    said = ends.receive(data, waited_us=6_000)

    assert FrameType.RST_STREAM not in said


@pytest.mark.parametrize(("at", "bit"), [(4, 0), (4, 1), (5, 0x80)])
def test_resets_with_bits_that_mean_nothing(at: int, bit: int) -> None:
    """A call that its client has taken back is not refused later, whatever else the reset says."""
    client = late()
    client.haste.gone_percent = 100
    client.hear(call(103, message(1), USUAL))
    reset = bytearray(frames.rst_stream(103, ErrorCode.CANCEL))
    reset[at] |= bit

    client.connection.receive(bytes(reset))
    client.connection.tick()
    client.connection.tick()

    assert client.said() == []


@pytest.mark.parametrize("sound", [True, False])
def test_what_refused_callers_have_asked_is_told_unpacked(sound: bool) -> None:
    """Whoever listens hears the messages of compressed calls, if these can be read."""
    body = wire.encode_request(Request("edge", (descriptor("user=a"),)))
    packed = gzip.compress(body)[: None if sound else -4]
    said = b"\1" + len(packed).to_bytes(4, "big") + packed
    headers = block("20m", **{"grpc-encoding": "gzip"})
    client = late()
    client.hear(call(103, said, headers))
    client.connection.wants_origins, client.haste.refused = True, 0

    client.hear(call(105, said, headers) + call(107, said, headers))

    assert [message for message, _ in client.haste.turned_away] == ([body] if sound else [])
    assert client.haste.refused == 2
