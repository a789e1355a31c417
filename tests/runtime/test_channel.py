"""How the supervisor and a worker speak to each other."""

from __future__ import annotations

import asyncio
import socket

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
    heard: list[tuple[int, bytes]] = []

    def hear(kind: int, payload: bytes) -> None:
        heard.append((kind, payload))

    data = written(messages)
    channel, at = Channel(hear, lambda: None), 0
    for size in [*sizes, len(data) or 1]:
        if at >= handed_over_at:
            channel = Channel(hear, lambda: None, channel.suspend())
            handed_over_at = len(data)
        channel.data_received(data[at : at + size])
        at += size

    assert heard == messages


async def test_end_of_a_channel() -> None:
    """Whoever is left hears once that nobody is there, and may go on speaking to nobody."""
    ours, theirs = socket.socketpair()
    lost = asyncio.Event()
    channel = await Channel.open(ours, lambda *_: None, lost.set)
    channel.send_json(MessageKind.BEAT, {})
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

    found = receive_connections(receiver, 1)
    assert len(found) == 1
    found += receive_connections(receiver)

    assert receive_connections(receiver) == []
    for client, connection in zip(clients, found, strict=True):
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
