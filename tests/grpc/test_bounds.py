"""What a client may make us keep, in bytes and for how long."""

from __future__ import annotations

import select
from pathlib import Path

import hpack
import pytest

from ratelimit_service.grpc.h2 import frames
from ratelimit_service.grpc.h2.budget import Memory
from ratelimit_service.grpc.h2.connection import Connection
from ratelimit_service.grpc.h2.events import Calls
from ratelimit_service.grpc.h2.frames import (
    END_STREAM,
    ErrorCode,
    FrameType,
    SettingId,
)
from ratelimit_service.grpc.h2.limits import (
    ACK_SECONDS,
    BLOCKED_SECONDS,
    BODY_SECONDS,
    FRAME_SECONDS,
    HELD_BYTES,
    IDLE_STREAM_SECONDS,
    MAX_STREAMS,
    MAX_TEXT_BYTES,
)
from ratelimit_service.grpc.server import H2Server
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from tests.grpc.chatting import Chatting
from tests.grpc.ends import Ends, take_turn
from tests.grpc.h2_client import HEADERS, Client, messages, refused
from tests.grpc.served_ends import RULES
from tests.service.asking import Asking


def unfinished(client: Client, size: int) -> bytes:
    """A call whose message does not come whole."""
    call = client.headers()
    payload = b"\0" + (60_000).to_bytes(4, "big") + b"x" * size
    pieces = [payload[at : at + 16_000] for at in range(0, len(payload), 16_000)]
    return call + b"".join(
        frames.frame(FrameType.DATA, 0, client.stream_id, piece) for piece in pieces
    )


def test_unfinished_messages() -> None:
    """One connection makes us keep so much, and calls above that are refused."""
    client = Chatting()

    for _ in range(MAX_STREAMS - 1):
        client.connection.receive(unfinished(client, 50_000))
        assert client.connection.budget.held <= HELD_BYTES + 66_000

    codes = set(refused(client).values())
    assert codes == {"8"}
    assert 100 < len(client.connection.streams) < 200


def test_unfinished_messages_of_many() -> None:
    """All connections make us keep so much: then none may keep more than its share."""
    memory = Memory(1_000_000)
    clients = [Chatting(memory) for _ in range(10)]
    memory.connections = len(clients)

    for _ in range(20):
        for client in clients:
            client.connection.receive(unfinished(client, 50_000))

    assert memory.held < 2_000_000
    assert all(len(client.connection.streams) for client in clients)
    assert all(refused(client) for client in clients)
    for client in clients:
        client.connection.forget()
    assert memory.held == 0


def test_calls_without_messages_of_many() -> None:
    """Headers whose messages never come are kept within the same bound, whoever sends them."""
    memory = Memory(1_000_000)
    clients = [Chatting(memory) for _ in range(10)]
    memory.connections = len(clients)

    for client in clients:
        client.settle()
    for _ in range(20):
        for client in clients:
            client.connection.receive(b"".join(client.headers() for _ in range(50)))
            client.connection.tick()

    assert memory.held < 2_000_000
    assert all(
        client.connection.streams.open for client in clients if not client.connection.closing
    )
    for client in clients:
        client.connection.forget()
    assert memory.held == 0


def test_answers_that_nobody_takes() -> None:
    """A client that lets answers pile up above the bound is ended."""
    client = Client()
    client.connection.receive(frames.settings({SettingId.INITIAL_WINDOW_SIZE: 0}))

    for _ in range(MAX_STREAMS):
        for stream_id, _ in messages(client.connection.receive(client.headers() + client.data())):
            client.connection.sender.answer(stream_id, b"x" * 50_000)
        client.connection.tick()

    assert client.connection.budget.held <= HELD_BYTES + 60_000
    assert client.connection.closing
    assert client.connection.reason == "memory"


@pytest.mark.parametrize("whose", ["each", "all"])
def test_answers_that_windows_hold_back(whose: str) -> None:
    """Calls that were let in keep their answers while windows hold these back; others are refused.

    None is refused when it has been decided.
    """
    client = Client()
    if whose == "each":
        client.connection.receive(frames.settings({SettingId.INITIAL_WINDOW_SIZE: 0}))
    else:
        client.connection.sender.window = 0
    refused_at_once = []
    client.said()

    for _ in range(MAX_STREAMS + 1):
        came = messages(client.connection.receive(client.headers() + client.data()))
        for stream_id, _ in came:
            client.connection.sender.answer(stream_id, b"answer")
        if not came:
            refused_at_once.append(client.stream_id)
    said = client.said()
    resets = [stream_id for kind, _, stream_id, _ in said if kind == FrameType.RST_STREAM]

    assert resets == refused_at_once == [client.stream_id]
    assert said[-1][3] == ErrorCode.REFUSED_STREAM.to_bytes(4, "big")
    assert len(client.connection.streams) == MAX_STREAMS
    assert not client.connection.closing
    if whose == "each":
        client.connection.receive(frames.settings({SettingId.INITIAL_WINDOW_SIZE: 1_000}))
    else:
        client.connection.receive(frames.window_update(0, 100_000))
    assert len(client.connection.streams) == client.connection.budget.held == 0


def test_what_is_kept_is_let_go() -> None:
    """When all calls are over nothing is kept for the client, however they ended."""
    client = Chatting()
    cut = unfinished(client, 1_000) + frames.rst_stream(client.stream_id, ErrorCode.CANCEL)
    plain = client.headers() + client.data(b"x" * 10_000)
    large = client.headers() + client.data(b"x" * 10_000, end=False)
    large += frames.frame(FrameType.DATA, END_STREAM, client.stream_id, b"y")
    chat = client.chat() + frames.frame(FrameType.DATA, END_STREAM, client.stream_id, b"\0\0")

    for event in client.talk(cut + plain + large + chat):
        if isinstance(event, Calls):
            for stream_id in event.stream_ids:
                client.connection.sender.answer(stream_id, b"x" * 30_000)
    client.connection.receive(frames.window_update(0, 100_000))

    assert len(client.connection.streams) == 0
    assert client.connection.budget.held == 0


def ticks(connection: Connection, seconds: int) -> bool:
    """Lets so many seconds pass; tells whether the connection was ended."""
    for _ in range(seconds):
        connection.tick()
    return connection.closing


def test_call_that_is_never_finished() -> None:
    """A unary call has its time to come whole; then it alone is refused."""
    client = Client()
    client.connection.receive(unfinished(client, 100))

    assert not ticks(client.connection, BODY_SECONDS)
    assert refused(client) == {}
    assert not ticks(client.connection, 1)

    assert refused(client) == {1: "4"}
    assert len(client.connection.streams) == client.connection.budget.held == 0


def test_many_calls_that_are_never_finished() -> None:
    """However many calls have taken too long, a tick ends a few of them, later ones the rest."""
    client = Client()
    for _ in range(MAX_STREAMS):
        client.connection.receive(unfinished(client, 0))
        client.connection.budget.forgive()
    assert not ticks(client.connection, BODY_SECONDS)
    ended = []
    while len(client.connection.streams):
        assert not ticks(client.connection, 1)
        ended.append(len(refused(client)))

    assert max(ended) <= 100
    assert sum(ended) == MAX_STREAMS


def test_open_stream_without_messages() -> None:
    """A streaming call may be silent for its time, which begins anew with each message."""
    client = Chatting()
    client.talk(client.chat())

    assert not ticks(client.connection, IDLE_STREAM_SECONDS)
    client.talk(frames.frame(FrameType.DATA, 0, 1, b"\0\0\0\0\0"))
    assert not ticks(client.connection, IDLE_STREAM_SECONDS)
    assert len(client.connection.streams) == 1
    ticks(client.connection, 1)

    assert refused(client) == {1: "4"}
    assert len(client.connection.streams) == 0


@pytest.mark.parametrize(
    "begun",
    [
        frames.frame(FrameType.HEADERS, 0, 1, hpack.Encoder().encode(HEADERS)),
        frames.ping(b"12345678", ack=False)[:-1],
        b"\0",
    ],
    ids=["header block", "frame", "head of a frame"],
)
def test_what_is_begun_is_to_be_ended(begun: bytes) -> None:
    """A header block or a frame that is not finished in its time ends the connection."""
    client = Client()
    client.connection.receive(begun)

    assert not ticks(client.connection, FRAME_SECONDS)
    assert ticks(client.connection, 1)
    assert client.connection.reason == "timeout"


def test_settings_that_are_not_acknowledged() -> None:
    """Each SETTINGS of ours is to be acknowledged in its time."""
    client = Client()
    ticks(client.connection, 2 * ACK_SECONDS)
    client.connection.receive(client.headers() + client.data())
    client.connection.sender.answer(1, b"")

    assert not ticks(client.connection, ACK_SECONDS)
    assert ticks(client.connection, 1)
    assert client.goaway == ErrorCode.SETTINGS_TIMEOUT


def test_long_refusal() -> None:
    """Of what a caller is told only so much is sent, in one frame, and cut between characters."""
    client = Client()
    client.connection.receive(client.headers() + client.data())
    client.said()

    client.connection.sender.finish(1, 3, "\u2713" * 120_000)

    (block,) = [payload for kind, _, _, payload in client.said() if kind == FrameType.HEADERS]
    said = dict(hpack.Decoder().decode(block, raw=True))[b"grpc-message"]
    assert said == b"%E2%9C%93" * (MAX_TEXT_BYTES // 3)


async def test_client_that_reads_slowly() -> None:
    """A client that takes some of its answers now and then is served; one that stops is not."""
    ends, client = Ends(), Client()
    shut = frames.settings({SettingId.INITIAL_WINDOW_SIZE: 0})
    ends.receive(shut + client.headers() + client.data())
    ends.served.connection.sender.answer(1, b"answer")
    step = BLOCKED_SECONDS - 1

    for turn in range(8):
        ends.look(turn * step)
        ends.receive(frames.window_update(1, 1))
        assert not ends.wire.closed
    ends.served.presence.heard = True
    ends.look(8 * step)
    assert not ends.wire.closed
    ends.look(8 * step + BLOCKED_SECONDS + 1)

    assert ends.wire.closed
    assert ends.served.connection.reason == "stuck"


async def test_pauses_are_counted(tmp_path: Path) -> None:
    """Each pause in reading from a client that does not read is counted once."""
    stats = Stats()
    server = H2Server("127.0.0.1:0", Asking(tmp_path, RULES).service, Health(), stats=stats)
    ends, client = Ends(memory=server._memory), Client()
    ends.wire.unsent = True
    ends.receive(frames.ping(b"12345678", ack=False))
    ends.receive(client.headers() + client.data())
    assert not ends.calls.messages
    ends.wire.unsent = False
    assert ends.served.ready(0, select.EPOLLOUT)
    ends.scheduler.add(ends.served)
    take_turn(ends.scheduler)
    assert len(ends.calls.messages) == 1

    server._look()

    assert stats.paused_reads == {"unread": 1}
    await server.stop(0)


def test_nothing_is_kept_for_a_client_that_is_gone() -> None:
    """An answer that comes after its connection's end is kept nowhere, also behind shut windows."""
    memory = Memory()
    client = Chatting(memory)
    client.connection.receive(frames.settings({SettingId.INITIAL_WINDOW_SIZE: 0}))
    for _ in range(10):
        client.connection.receive(client.headers() + client.data())

    client.connection.close()
    client.connection.forget()
    for stream_id in range(1, client.stream_id + 1, 2):
        client.connection.sender.answer(stream_id, b"late")

    assert memory.held == 0
