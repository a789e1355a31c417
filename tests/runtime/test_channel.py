"""How the supervisor and a worker speak to each other."""

from __future__ import annotations

import asyncio
import socket
import sys
from types import FrameType

from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.runtime.channel import (
    Channel,
    MessageKind,
    receive_connections,
    send_connection,
)
from tests.servers.process import wait_until

MESSAGES = st.lists(st.tuples(st.sampled_from(MessageKind), st.binary(max_size=40)), max_size=6)


def written(messages: list[tuple[MessageKind, bytes]]) -> bytes:
    """The bytes of messages as they lie on the socket."""
    return b"".join(
        len(payload).to_bytes(4, "big") + bytes([kind]) + payload for kind, payload in messages
    )


@given(MESSAGES, st.lists(st.integers(1, 30)), st.integers(0, 200))
def test_messages_in_pieces(
    messages: list[tuple[MessageKind, bytes]], sizes: list[int], handed_over_at: int
) -> None:
    """Messages arrive whole, however they are cut, also when another reader goes on midway."""
    received: list[tuple[int, bytes]] = []

    def hear(kind: int, payload: bytes) -> None:
        received.append((kind, payload))

    data = written(messages)
    channel, at = Channel(hear, lambda: None), 0
    for size in [*sizes, len(data) or 1]:
        if at >= handed_over_at:
            channel = Channel(hear, lambda: None, channel.suspend())
            handed_over_at = len(data)
        channel.data_received(data[at : at + size])
        at += size

    assert received == messages


class Part(bytes):
    """What a read has brought; it knows how much was copied to put it behind other bytes."""

    copied = 0

    def __radd__(self, before: bytes) -> bytes:
        Part.copied += len(before) + len(self)
        return bytes.__add__(before, self)


def test_a_long_message_is_put_together_once() -> None:
    """However many reads bring a message, its bytes are copied a few times, and no more."""
    received: list[int] = []
    channel = Channel(lambda _, payload: received.append(len(payload)), lambda: None)
    data = written([(MessageKind.RULES, bytes(1 << 20))])
    joined = 0

    def look(_frame: FrameType, event: str, called: object) -> None:
        nonlocal joined
        joined += event == "c_call" and getattr(called, "__name__", "") == "join"

    Part.copied = 0
    sys.setprofile(look)
    for at in range(0, len(data), 1_024):
        channel.data_received(Part(data[at : at + 1_024]))
    sys.setprofile(None)

    assert received == [1 << 20]
    assert Part.copied + joined * len(data) <= 3 * len(data)


async def test_a_message_without_bound() -> None:
    """Who announces more than any message of ours has is not heard any longer."""
    ours, theirs = socket.socketpair()
    lost = asyncio.Event()
    received: list[int] = []
    await Channel.open(ours, lambda kind, _: received.append(kind), lost.set)

    theirs.sendall(written([(MessageKind.HEARTBEAT, b"")]) + b"\xff\xff\xff\xff" + bytes(100))
    await lost.wait()

    assert received == [MessageKind.HEARTBEAT]
    theirs.close()


async def test_end_of_a_channel() -> None:
    """Whoever is left hears once that nobody is there, and may go on speaking to nobody."""
    ours, theirs = socket.socketpair()
    lost = asyncio.Event()
    channel = await Channel.open(ours, lambda *_: None, lost.set)
    channel.send_json(MessageKind.HEARTBEAT, {})
    await channel.flushed()

    theirs.close()

    await lost.wait()
    channel.send(MessageKind.READY)
    await channel.flushed()


def test_connections_change_hands() -> None:
    """A connection that was handed over works on; those not taken when both ends go are closed."""
    sender, receiver = socket.socketpair()
    receiver.setblocking(False)
    clients = []
    for _ in range(3):
        client, served = socket.socketpair()
        with served:
            send_connection(sender, served)
        clients.append(client)

    result = receive_connections(receiver, 1)
    assert len(result) == 1
    result += receive_connections(receiver)

    assert receive_connections(receiver) == []
    for client, connection in zip(clients, result, strict=True):
        connection.sendall(b"hello")
        assert client.recv(10) == b"hello"
        connection.close()
    client, served = socket.socketpair()
    with served:
        send_connection(sender, served)
    sender.close()
    receiver.close()
    client.setblocking(False)
    wait_until(lambda: closed(client), "the connection to be closed")
    for each in (client, *clients):
        each.close()


def closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False


def test_no_connections_from_nobody() -> None:
    """When the other end is gone, no connection comes, and nothing is raised."""
    sender, receiver = socket.socketpair()
    receiver.setblocking(False)
    sender.close()

    assert receive_connections(receiver) == []
    receiver.close()
