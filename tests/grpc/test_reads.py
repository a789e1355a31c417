"""However much clients send at once, a round of the loop reads a part, and some of everybody."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios
from itertools import pairwise
from pathlib import Path

import pytest

from ratelimit_service.eventloop.reads import LITTLE_BYTES, ROOM_BYTES, ROUND_BYTES
from ratelimit_service.grpc.h2 import frames
from ratelimit_service.grpc.h2.frames import PREFACE, FrameType
from tests.grpc.h2_client import Client
from tests.grpc.places import Place, until

CLIENTS = 60
PART = (65_536).to_bytes(5, "big") + bytes(60_000)
HELLO = b"\1\1\xff\xff" + bytes(63_000)
"""The beginning of TLS' first message, which may have 128 KB."""


def unfinished() -> bytes:
    """A call whose message has not come whole."""
    cut = [PART[at : at + 16_000] for at in range(0, len(PART), 16_000)]
    data = b"".join(frames.frame(FrameType.DATA, 0, 1, each) for each in cut)
    return PREFACE + frames.settings({}) + Client.ack() + Client().headers() + data


def hello() -> bytes:
    """The same of TLS: a handshake that has not come whole."""
    cut = [HELLO[at : at + 16_000] for at in range(0, len(HELLO), 16_000)]
    return b"".join(b"\x16\3\1" + len(each).to_bytes(2, "big") + each for each in cut)


def unread(end: socket.socket) -> int:
    """How many bytes wait in a socket."""
    found: int = struct.unpack("i", fcntl.ioctl(end, termios.FIONREAD, bytes(4)))[0]
    return found


@pytest.mark.parametrize("tls", [False, True])
async def test_a_round_reads_a_bounded_part(tmp_path: Path, *, tls: bool) -> None:
    """Of many clients that send much at once a round reads so much in all.

    Who sends little is heard in the first round, and all is read in the end.
    """
    place = Place(tmp_path, given=True, tls=tls, guests=None)
    ours, ends = list[socket.socket](), list[socket.socket]()
    for _ in range(CLIENTS + 1):
        client, end = socket.socketpair()
        ours.append(client)
        ends.append(end)
        end.setblocking(False)
        place.server.adopt(end)
    for _ in range(4 * CLIENTS):  # a handshake begins in each turn
        await asyncio.sleep(0)

    much = hello() if tls else unfinished()
    for client in ours[:-1]:
        client.sendall(much)
    ours[-1].sendall(much[:400])

    def left() -> list[int]:
        return [unread(end) for end in ends]

    rounds, little = [left()], 0
    async with asyncio.timeout(30):
        while any(rounds[-1]):
            await asyncio.sleep(0)
            rounds.append(left())
            little = little or (len(rounds) if not rounds[-1][-1] else 0)
    read = [sum(before) - sum(after) for before, after in pairwise(rounds)]
    first = next(place for place, size in enumerate(read) if size)

    for client in ours:
        client.close()
    await until(lambda: not place.server.connections, "all have gone")
    await place.server.stop(0)

    assert max(read) <= ROUND_BYTES + ROOM_BYTES + CLIENTS * LITTLE_BYTES
    assert little == first + 2
