"""Connections from where they are made to their end: many of them, bounds, files that run out."""

from __future__ import annotations

import asyncio
import os
import resource
import select
import socket
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path

import hpack
import pytest

from ratelimit_service import compiled
from ratelimit_service.eventloop.clock import elapsed_us
from ratelimit_service.grpc import server
from ratelimit_service.grpc.h2 import frames
from ratelimit_service.grpc.h2.frames import PREFACE, FrameType
from ratelimit_service.net.accepting import ConnectionLimiter
from tests.grpc.h2_client import Client
from tests.grpc.places import Place
from tests.grpc.served_ends import rounds
from tests.waiting import PATIENCE_SECONDS, until


async def test_many_are_told_to_leave(tmp_path: Path) -> None:
    """However many connections there are, a round of the loop tells a few dozen of them to go."""
    place = Place(tmp_path, given=True, tls=False, limiter=None)
    clients = [await place.client() for _ in range(200)]
    await rounds()
    for client in clients:
        assert client.recv(1_000)
    stopping = asyncio.create_task(place.server.stop(600_000_000))
    told = [0]
    while told[-1] < len(clients):
        await asyncio.sleep(0)
        told.append(len(select.select(clients, (), (), 0)[0]))

    assert max(after - before for before, after in pairwise(told)) <= 33
    for client in clients:
        client.close()
    await asyncio.wait_for(stopping, PATIENCE_SECONDS)


async def test_many_ends_together(tmp_path: Path) -> None:
    """When many clients hang up together, a turn of the loop frees what is kept for a few."""
    place = Place(tmp_path, given=True, tls=False, limiter=None)
    clients = [await place.client() for _ in range(100)]
    await rounds()
    for client in clients:
        client.close()
    gone = [0]
    async with asyncio.timeout(PATIENCE_SECONDS):
        while place.server.connections:
            await asyncio.sleep(0)
            gone.append(place.gone)

    assert place.gone == 100
    assert max(after - before for before, after in pairwise(gone)) <= 32
    await place.server.stop(0)


async def heard(clients: Sequence[socket.socket]) -> list[bool]:
    """Which of the clients are spoken to, and which are hung up on."""
    loop = asyncio.get_running_loop()
    found = []
    for client in clients:
        try:
            found.append(bool(await asyncio.wait_for(loop.sock_recv(client, 9), PATIENCE_SECONDS)))
        except ConnectionError:
            found.append(False)
    return found


@pytest.mark.parametrize(
    ("limiter", "reason"),
    [
        (ConnectionLimiter(3, 0), "max_connections"),
        (ConnectionLimiter(0, 3), "max_connections_per_peer"),
        (ConnectionLimiter(9, 3), "max_connections_per_peer"),
    ],
)
async def test_bounds(tmp_path: Path, limiter: ConnectionLimiter, reason: str) -> None:
    """Above its bound a connection is closed; when one goes, there is room for another."""
    place = Place(tmp_path, given=False, tls=False, limiter=limiter)
    clients = [await place.client() for _ in range(5)]

    assert await heard(clients) == [True, True, True, False, False]
    assert place.stats.refused_connections == {reason: 2}
    clients[1].close()
    await until(lambda: place.server.connections == 2)
    clients.append(await place.client())
    assert await heard(clients[-1:]) == [True]

    for client in clients:
        client.close()
    await place.server.stop(0)


def test_connection_limiter() -> None:
    """Each address has its own count; Unix sockets have none."""
    limiter = ConnectionLimiter(5, 2)

    admitted = [limiter.admit(peer) for peer in ("a", "a", "a", "b", "", "", "c")]

    assert admitted == ["", "", "max_connections_per_peer", "", "", "", "max_connections"]
    limiter.leave("a")
    assert limiter.admit("a") == ""


@pytest.mark.parametrize("given", [False, True])
async def test_files_for_others(tmp_path: Path, given: bool) -> None:
    """Connections leave files for the HTTP port and the store: above that they are closed."""
    place = Place(tmp_path, given=given, tls=False, limiter=None)
    place.server._most = 2

    clients = [await place.client() for _ in range(4)]
    for client in clients:
        client.setblocking(False)

    assert await heard(clients) == [True, True, False, False]
    assert place.stats.refused_connections == {"no_files": 2}
    for client in clients:
        client.close()
    await place.server.stop(0)


async def test_the_greediest_is_ended(tmp_path: Path) -> None:
    """While all connections make us keep too much, the one that does so most is ended."""
    place = Place(tmp_path, given=False, tls=False, limiter=None)
    memory = place.server._memory
    clients = [await place.client() for _ in range(3)]
    for client, size in zip(clients, (100, 16_000, 8_000), strict=True):
        speaker = Client()
        speaker.encoder = hpack.Encoder()
        call = PREFACE + frames.settings({}) + speaker.ack() + speaker.headers()
        call += frames.frame(FrameType.DATA, 0, 1, b"x" * size)
        client.setblocking(True)
        client.sendall(call)

    await until(lambda: memory.held > 24_000)

    memory.most = 20_000
    await until(lambda: place.stats.closed_connections == {"memory": 1})

    assert place.server.connections == 2
    for client in clients:
        client.close()
    await place.server.stop(0)


@contextmanager
def no_more_files() -> Iterator[None]:
    """No file can be opened."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    spare = os.open(os.devnull, os.O_RDONLY)
    os.close(spare)
    resource.setrlimit(resource.RLIMIT_NOFILE, (spare, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_no_more_files(tmp_path: Path) -> None:
    """When no file can be opened connections wait, and are served once one can be."""
    place = Place(tmp_path, given=False, tls=False, limiter=None)
    (await place.client()).close()
    await until(lambda: place.server.connections == 0)
    with closing(socket.socket()) as client:
        client.setblocking(False)
        with no_more_files():
            await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", place.port))
            await until(lambda: place.stats.refused_connections["no_files"] > 0)
            assert place.server.connections == 0

        assert await heard([client]) == [True]
    await place.server.stop(0)


@pytest.mark.skipif(compiled(), reason="its methods cannot be replaced then")
async def test_fault_in_looking_at_a_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that cannot be looked at is dropped; the others are looked at as ever."""
    monkeypatch.setattr(server, "_LOOK_SECONDS", 0.001)
    place = Place(tmp_path, given=False, tls=False, limiter=None)
    clients = [await place.client() for _ in range(2)]
    await heard(clients)
    torn, other = place.server._clients
    seen: list[float] = []

    def torn_look(*_: float) -> None:
        raise RuntimeError("the handle is closed")

    monkeypatch.setattr(torn, "look", torn_look)
    monkeypatch.setattr(other, "look", lambda now, _: seen.append(now))
    await until(lambda: place.server.connections == 1)
    looks = len(seen)
    await until(lambda: len(seen) > looks + 2)

    for each in clients:
        each.close()
    await place.server.stop(0)


@pytest.mark.skipif(compiled(), reason="its methods cannot be replaced then")
async def test_looks_that_take_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each connection takes long to be looked at, others' work comes in between."""
    monkeypatch.setattr(server, "_LOOK_SECONDS", 0.001)
    place = Place(tmp_path, given=False, tls=False, limiter=None)
    clients = [await place.client() for _ in range(10)]
    await heard(clients)
    place.server._looking.cancel()
    seen: list[int] = []

    def long_look(*_: float) -> None:
        until_us = elapsed_us() + server._LOOKED_US
        while elapsed_us() < until_us:
            pass
        seen.append(1)

    for client in place.server._clients:
        monkeypatch.setattr(client, "look", long_look)
    place.server._look()
    in_turns = [len(seen)]
    while len(seen) < len(clients):
        await asyncio.sleep(0)
        in_turns.append(len(seen) - sum(in_turns))

    assert max(in_turns) == 1
    for each in clients:
        each.close()
    await place.server.stop(0)
