"""TLS handshakes of gRPC's port: without end, broken off, and many at the same moment."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from ratelimit_service.grpc.h2 import frames
from ratelimit_service.grpc.h2.client import Client
from ratelimit_service.grpc.h2.frames import PREFACE
from ratelimit_service.grpc.h2.limits import HANDSHAKE_SECONDS
from tests.grpc.places import Place
from tests.grpc.served_ends import rounds
from tests.waiting import PATIENCE_SECONDS, until


@pytest.mark.parametrize("given", [False, True])
async def test_closed_before_the_handshake(tmp_path: Path, given: bool) -> None:
    """A client that connects and hangs up, as a health check may, leaves nothing behind."""
    place = Place(tmp_path, given=given, tls=True, limiter=None)

    for _ in range(50):
        (await place.client()).close()
    await until(lambda: place.stats.refused_connections["handshake"] == 50)

    await until(lambda: place.server.connections == 0)
    assert place.gone == (50 if given else 0)
    await asyncio.wait_for(place.server.stop(600_000_000), PATIENCE_SECONDS)


def living() -> int:
    """How many connections there are in this process, garbage too.

    Weak references cannot tell: mypyc frees an object and leaves the references to it behind.
    """
    return sum(type(each) is Client for each in gc.get_objects())


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01", b"GET / HTTP/1.1\r\n"])
async def test_closed_within_the_handshake(tmp_path: Path, said: bytes) -> None:
    """A client that hangs up once TLS waits for it, as a slow probe may, leaves nothing behind.

    Nor is there anything for the garbage collector, which would free all in one go.
    """
    place = Place(tmp_path, given=False, tls=True, limiter=None)
    gc.disable()
    gc.collect()
    before, seen = living(), 0
    try:
        for _ in range(5):
            client = await place.client()
            client.send(said)
            for _ in range(5):
                await rounds()
            seen = max(seen, living() - before)
            client.close()
        await until(lambda: place.stats.refused_connections["handshake"] == 5)
        await rounds()
        kept = living() - before
    finally:
        gc.enable()

    assert seen > 0 or said.startswith(b"GET")  # which TLS refuses at once
    await until(lambda: place.server.connections == 0)
    assert kept == 0
    await asyncio.wait_for(place.server.stop(600_000_000), PATIENCE_SECONDS)


@pytest.mark.parametrize("given", [False, True])
async def test_handshake_without_end(tmp_path: Path, given: bool) -> None:
    """A client that never finishes its handshake is given up after its time, and counted once."""
    place = Place(tmp_path, given=given, tls=True, limiter=None)
    client = await place.client()
    client.send(b"\x16\x03\x01")
    await until(lambda: place.server.connections == 1)
    (served,) = place.server._clients
    now = asyncio.get_running_loop().time()

    served.look(now + HANDSHAKE_SECONDS - 1, 0)
    assert place.stats.refused_connections["handshake"] == 0
    for _ in range(2):
        served.look(now + HANDSHAKE_SECONDS + 1, 0)

    await until(lambda: place.server.connections == 0)
    assert place.stats.refused_connections["handshake"] == 1
    client.close()
    await place.server.stop(0)


@pytest.mark.parametrize("given", [False, True])
async def test_handshake_that_fails(tmp_path: Path, given: bool) -> None:
    """A client that speaks no TLS is refused at once, and counted once."""
    place = Place(tmp_path, given=given, tls=True, limiter=None)
    client = await place.client()
    client.send(b"GET / HTTP/1.1\r\n\r\n")

    await until(lambda: place.stats.refused_connections["handshake"] == 1)
    await until(lambda: place.server.connections == 0)

    client.close()
    await rounds()
    assert place.stats.refused_connections["handshake"] == 1
    assert place.stats.closed_connections == {}
    await place.server.stop(0)


@pytest.mark.parametrize("given", [False, True])
async def test_handshake(tmp_path: Path, given: bool) -> None:
    """A client that agrees on TLS is served, and forgotten when it hangs up."""
    place = Place(tmp_path, given=given, tls=True, limiter=None)
    context = ssl.create_default_context(cafile=str(place.files.ca))
    context.set_alpn_protocols(["h2"])
    reader, writer = await asyncio.open_connection(
        sock=await place.client(), ssl=context, server_hostname="localhost"
    )

    settings = await reader.readexactly(9)
    assert settings[3] == 4
    assert place.server.connections == 1
    writer.close()

    await until(lambda: place.server.connections == 0)
    await place.server.stop(0)


class Shaking:
    """The client's end of a TLS handshake, a step at a time."""

    def __init__(self, end: socket.socket, context: ssl.SSLContext) -> None:
        end.setblocking(False)
        self._end = end
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname="localhost")

    def step(self, more: bytes = b"") -> None:
        """Says what is to be said next, and more behind it."""
        with suppress(ssl.SSLWantReadError):
            self._tls.do_handshake()
        if more:
            self._tls.write(more)
        self._end.send(self._out.read())

    def hears(self) -> bool:
        """Whether the server has said something since."""
        try:
            self._in.write(self._end.recv(65_536))
        except BlockingIOError:
            return False
        return True

    def told(self) -> bytes:
        """What the server has said since."""
        if self.hears():
            with suppress(ssl.SSLWantReadError):
                return self._tls.read(65_536)
        return b""

    def close(self) -> None:
        self._end.close()


async def test_many_handshakes(tmp_path: Path) -> None:
    """However many clients shake hands at the same moment, a turn takes a few of their steps.

    All of them are served, and one that makes calls is answered in between.
    """
    place = Place(tmp_path, given=True, tls=True, limiter=None)
    context = ssl.create_default_context(cafile=str(place.files.ca))
    context.set_alpn_protocols(["h2"])
    clients = [Shaking(await place.client(), context) for _ in range(100)]
    await rounds()

    for _ in ("hello", "finished"):
        for client in clients:
            client.step()
        in_turns: list[int] = []
        waiting = clients
        while waiting:
            await asyncio.sleep(0)
            still = [client for client in waiting if not client.hears()]
            in_turns.append(len(waiting) - len(still))
            waiting = still
        assert max(in_turns) <= 40  # a step takes at least 50 us

    assert place.server.connections == len(clients)
    assert place.stats.refused_connections["handshake"] == 0
    for client in clients:
        client.close()
    await until(lambda: place.server.connections == 0)
    assert place.stats.refused_connections["handshake"] == 0
    await place.server.stop(0)


async def test_first_bytes_together_with_the_handshake(tmp_path: Path) -> None:
    """What a client says right behind its last step of the handshake is answered."""
    place = Place(tmp_path, given=True, tls=True, limiter=None)
    context = ssl.create_default_context(cafile=str(place.files.ca))
    context.set_alpn_protocols(["h2"])
    client = Shaking(await place.client(), context)
    client.step()
    while not client.hears():
        await asyncio.sleep(0)

    client.step(PREFACE + frames.settings({}) + frames.ping(b"12345678", ack=False))

    found = b""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while b"12345678" not in found:
            await asyncio.sleep(0)
            found += client.told()
    client.close()
    await until(lambda: place.server.connections == 0)
    await place.server.stop(0)


async def test_many_ends_of_handshakes(tmp_path: Path) -> None:
    """However many clients hang up at the same moment, each is counted once, and forgotten."""
    place = Place(tmp_path, given=True, tls=True, limiter=None)
    clients = [await place.client() for _ in range(100)]
    await rounds()
    for client in clients:
        client.close()

    left = [len(clients)]
    async with asyncio.timeout(PATIENCE_SECONDS):
        while left[-1]:
            await asyncio.sleep(0)
            left.append(place.server.connections)

    assert max(before - after for before, after in pairwise(left)) <= 32
    assert place.stats.refused_connections["handshake"] == place.gone == len(clients)
    await place.server.stop(0)
