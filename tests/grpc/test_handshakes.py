"""TLS handshakes of gRPC's port: without end, broken off, and many at the same moment."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from ratelimit_service.grpc.h2 import server
from ratelimit_service.grpc.h2.protocol import Http2Protocol
from ratelimit_service.net import handshakes
from tests.grpc.ends import TURN_SECONDS, Ends, held_back
from tests.grpc.h2_client import Client
from tests.grpc.places import Place, until
from tests.grpc.served_ends import rounds
from tests.grpc.taken_turns import take_turn
from tests.servers.process import PATIENCE_SECONDS


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Handshakes may take as long as a busy machine needs, unless a test says otherwise."""
    monkeypatch.setattr(server, "HANDSHAKE_SECONDS", PATIENCE_SECONDS)


@pytest.mark.parametrize("given", [False, True])
async def test_closed_before_the_handshake(tmp_path: Path, given: bool) -> None:
    """A client that connects and hangs up, as a health check may, leaves nothing behind."""
    place = Place(tmp_path, given=given, tls=True, guests=None)

    for _ in range(50):
        (await place.client()).close()
    await until(lambda: place.stats.refused_connections["handshake"] == 50, "50 refusals")

    await until(lambda: place.server.connections == 0, "all to be forgotten")
    assert place.gone == (50 if given else 0)
    await asyncio.wait_for(place.server.stop(600_000_000), PATIENCE_SECONDS)


def living() -> int:
    """How many connections there are in this process, garbage too.

    Weak references cannot tell: mypyc frees an object and leaves the references to it behind.
    """
    return sum(type(each) is Http2Protocol for each in gc.get_objects())


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01", b"GET / HTTP/1.1\r\n"])
async def test_closed_within_the_handshake(tmp_path: Path, said: bytes) -> None:
    """A client that hangs up once TLS waits for it, as a slow probe may, leaves nothing behind.

    On uvloop nor is there anything for the garbage collector, which would free all in one go.
    """
    place = Place(tmp_path, given=False, tls=True, guests=None)
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
        await until(lambda: place.stats.refused_connections["handshake"] == 5, "5 refusals")
        await rounds()
        kept = living() - before
    finally:
        gc.enable()

    assert seen > 0 or said.startswith(b"GET")  # which TLS refuses at once
    await until(lambda: place.server.connections == 0, "all to be forgotten")
    if type(asyncio.get_running_loop()).__module__ == "uvloop":
        assert kept == 0
    await asyncio.wait_for(place.server.stop(600_000_000), PATIENCE_SECONDS)


@pytest.mark.parametrize("given", [False, True])
async def test_handshake_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: bool
) -> None:
    """A client that never finishes its handshake is given up after its time."""
    monkeypatch.setattr(server, "HANDSHAKE_SECONDS", 0.05)
    place = Place(tmp_path, given=given, tls=True, guests=None)
    client = await place.client()
    client.send(b"\x16\x03\x01")

    await until(lambda: place.stats.refused_connections["handshake"] == 1, "its end")

    await until(lambda: place.server.connections == 0, "all to be forgotten")
    client.close()
    await place.server.stop(0)


@pytest.mark.parametrize("given", [False, True])
async def test_handshake(tmp_path: Path, given: bool) -> None:
    """A client that agrees on TLS is served, and forgotten when it hangs up."""
    place = Place(tmp_path, given=given, tls=True, guests=None)
    context = ssl.create_default_context(cafile=str(place.files.ca))
    context.set_alpn_protocols(["h2"])
    reader, writer = await asyncio.open_connection(
        sock=await place.client(), ssl=context, server_hostname="localhost"
    )

    settings = await reader.readexactly(9)
    assert settings[3] == 4
    assert place.server.connections == 1
    writer.close()

    await until(lambda: place.server.connections == 0, "the client to be forgotten")
    await place.server.stop(0)


class Shaking:
    """The client's end of a TLS handshake, a step at a time."""

    def __init__(self, end: socket.socket, context: ssl.SSLContext) -> None:
        end.setblocking(False)
        self._end = end
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname="localhost")

    def step(self) -> None:
        """Says what is to be said next."""
        with suppress(ssl.SSLWantReadError):
            self._tls.do_handshake()
        self._end.send(self._out.read())

    def hears(self) -> bool:
        """Whether the server has said something since."""
        try:
            self._in.write(self._end.recv(65_536))
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        self._end.close()


async def test_many_handshakes(tmp_path: Path) -> None:
    """However many clients shake hands at the same moment, a turn of the loop takes one step."""
    place = Place(tmp_path, given=True, tls=True, guests=None)
    context = ssl.create_default_context(cafile=str(place.files.ca))
    context.set_alpn_protocols(["h2"])
    clients = [Shaking(await place.client(), context) for _ in range(100)]
    for _ in range(20):
        await asyncio.sleep(0)

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
        assert max(in_turns) == 1

    assert place.server.connections == len(clients)
    for client in clients:
        client.close()
    await until(lambda: place.server.connections == 0, "all to go")
    await place.server.stop(0)


async def test_first_bytes_of_many_handshakes(tmp_path: Path) -> None:
    """What clients have said before TLS knows of them takes turns as well."""
    place = Place(tmp_path, given=True, tls=True, guests=None)
    context = ssl.create_default_context(cafile=str(place.files.ca))
    context.set_alpn_protocols(["h2"])
    clients = [Shaking(await place.client(), context) for _ in range(40)]
    for client in clients:
        client.step()

    in_turns: list[int] = []
    waiting = clients
    while waiting:
        await asyncio.sleep(0)
        still = [client for client in waiting if not client.hears()]
        in_turns.append(len(waiting) - len(still))
        waiting = still

    assert max(in_turns) == 1
    for client in clients:
        client.close()
    await until(lambda: place.server.connections == 0, "all to go")
    await place.server.stop(0)


async def test_many_ends_of_handshakes(tmp_path: Path) -> None:
    """However many clients hang up at the same moment, a turn of the loop forgets one."""
    place = Place(tmp_path, given=True, tls=True, guests=None)
    clients = [await place.client() for _ in range(40)]
    while place.server._handshakes._line:
        await asyncio.sleep(0)
    await rounds()
    for client in clients:
        client.close()

    refused, ended = place.stats.refused_connections, [0]
    async with asyncio.timeout(PATIENCE_SECONDS):
        while ended[-1] < len(clients):
            await asyncio.sleep(0)
            ended.append(refused["handshake"])

    assert max(after - before for before, after in pairwise(ended)) == 1
    await place.server.stop(0)


class Dear(handshakes.Sealed):
    """A handshake of which a step takes a whole turn."""

    def __init__(self, its_handshakes: handshakes.Handshakes) -> None:
        super().__init__(its_handshakes)
        self.steps = 0

    def step(self) -> bool:
        self.steps += 1
        until = time.perf_counter() + TURN_SECONDS
        while time.perf_counter() < until:
            pass
        return True


async def test_handshakes_are_one_client() -> None:
    """However many clients shake hands, one that makes calls has as much time as all of them."""
    turns = held_back()
    ends, client = Ends(turns=turns), Client()
    line = handshakes.Handshakes(turns)
    shaking = [Dear(line) for _ in range(50)]
    for each in shaking:
        line.line_up(each)

    for number in range(10):
        ends.protocol.data_received(client.headers() + client.data(b"%d" % number))
        take_turn(turns)
        take_turn(turns)
        assert ends.calls.messages[-1] == b"%d" % number
        await asyncio.sleep(0)

    assert sum(each.steps for each in shaking) >= 9
    assert max(each.steps for each in shaking) == 1
