"""Connections from where they are made to their end: handshakes, bounds, files that run out."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import pairwise
from pathlib import Path

import hpack
import pytest

from ratelimit_service import handshakes
from ratelimit_service.accepting import Guests
from ratelimit_service.clock import elapsed_us
from ratelimit_service.health import Health
from ratelimit_service.observer import Stats
from ratelimit_service.transport.h2 import H2Server, frames, server
from ratelimit_service.transport.h2.frames import PREFACE, FrameType
from ratelimit_service.transport.h2.life import Leaving
from ratelimit_service.transport.h2.protocol import Http2Protocol
from ratelimit_service.transport.tls import TLSFiles
from tests.servers.process import PATIENCE_SECONDS
from tests.service.asking import Asking
from tests.transport.ends import TURN_SECONDS, Ends, held_back
from tests.transport.h2_client import Client
from tests.transport.served_ends import rounds
from tests.transport.taken_turns import take_turn
from tests.transport.test_addresses import Files
from tests.transport.test_transports import RULES


async def until(condition: Callable[[], bool], what: str) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0.001)
    assert condition(), what


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Handshakes may take as long as a busy machine needs, unless a test says otherwise."""
    monkeypatch.setattr(server, "HANDSHAKE_SECONDS", PATIENCE_SECONDS)


class Place:
    """A server that accepts by itself, or one that is given connections."""

    def __init__(self, tmp_path: Path, *, given: bool, tls: bool, guests: Guests | None) -> None:
        rules = tmp_path / "rules"
        rules.mkdir()
        self.files = Files(tmp_path)
        self.stats = Stats()
        self.given = given
        self.gone = 0
        self.server = H2Server(
            "127.0.0.1:0",
            Asking(rules, RULES).service,
            Health(),
            0,
            TLSFiles(self.files.cert, self.files.key).read() if tls else None,
            stats=self.stats,
            guests=guests,
        )
        self.port = 0

    async def client(self) -> socket.socket:
        """A new connection to the server."""
        if self.given:
            ours, theirs = socket.socketpair()
            theirs.setblocking(False)
            self.server.adopt(theirs, self._left)
            return ours
        self.port = self.port or await self.server.start()
        client = socket.socket()
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", self.port))
        return client

    def _left(self) -> None:
        self.gone += 1


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


async def test_many_are_told_to_leave(tmp_path: Path) -> None:
    """However many connections there are, a round of the loop tells a few dozen of them to go."""
    place = Place(tmp_path, given=True, tls=False, guests=None)
    clients = [await place.client() for _ in range(200)]
    await rounds()
    stopping = asyncio.create_task(place.server.stop(600_000_000))
    told = [0]
    while told[-1] < len(clients):
        await asyncio.sleep(0)
        leaving = (each.connection._life.leaving for each in place.server._protocols)
        told.append(sum(each is not Leaving.STAYING for each in leaving))

    assert max(after - before for before, after in pairwise(told)) <= 33
    for client in clients:
        client.close()
    await asyncio.wait_for(stopping, PATIENCE_SECONDS)


async def test_many_ends_together(tmp_path: Path) -> None:
    """When many clients hang up together, a turn of the loop frees what is kept for a few."""
    place = Place(tmp_path, given=True, tls=False, guests=None)
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
    ("guests", "reason"),
    [
        (Guests(3, 0), "max_connections"),
        (Guests(0, 3), "max_connections_per_peer"),
        (Guests(9, 3), "max_connections_per_peer"),
    ],
)
async def test_bounds(tmp_path: Path, guests: Guests, reason: str) -> None:
    """Above its bound a connection is closed; when one goes, there is room for another."""
    place = Place(tmp_path, given=False, tls=False, guests=guests)
    clients = [await place.client() for _ in range(5)]

    assert await heard(clients) == [True, True, True, False, False]
    assert place.stats.refused_connections == {reason: 2}
    clients[1].close()
    await until(lambda: place.server.connections == 2, "one to go")
    clients.append(await place.client())
    assert await heard(clients[-1:]) == [True]

    for client in clients:
        client.close()
    await place.server.stop(0)


def test_guests() -> None:
    """Each address has its own count; Unix sockets have none."""
    guests = Guests(5, 2)

    admitted = [guests.admit(peer) for peer in ("a", "a", "a", "b", "", "", "c")]

    assert admitted == ["", "", "max_connections_per_peer", "", "", "", "max_connections"]
    guests.leave("a")
    assert guests.admit("a") == ""


@pytest.mark.parametrize("given", [False, True])
async def test_files_for_others(tmp_path: Path, given: bool) -> None:
    """Connections leave files for the HTTP port and the store: above that they are closed."""
    place = Place(tmp_path, given=given, tls=False, guests=None)
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
    place = Place(tmp_path, given=False, tls=False, guests=None)
    memory = place.server._memory
    clients = [await place.client() for _ in range(3)]
    for client, size in zip(clients, (100, 16_000, 8_000), strict=True):
        speaker = Client()
        speaker.encoder = hpack.Encoder()
        call = PREFACE + frames.settings({}) + speaker.ack() + speaker.headers()
        call += frames.frame(FrameType.DATA, 0, 1, b"x" * size)
        client.setblocking(True)
        client.sendall(call)

    await until(lambda: memory.held > 24_000, "what they have sent")

    memory.most = 20_000
    await until(lambda: place.stats.closed_connections == {"memory": 1}, "its end")

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
    place = Place(tmp_path, given=False, tls=False, guests=None)
    (await place.client()).close()
    await until(lambda: place.server.connections == 0, "the first to go")
    with closing(socket.socket()) as client:
        client.setblocking(False)
        with no_more_files():
            await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", place.port))
            await until(lambda: place.stats.refused_connections["no_files"] > 0, "the failure")
            assert place.server.connections == 0

        assert await heard([client]) == [True]
    await place.server.stop(0)


async def test_fault_in_looking_at_a_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that cannot be looked at is dropped; the others are looked at as ever."""
    monkeypatch.setattr(server, "_LOOK_SECONDS", 0.001)
    place = Place(tmp_path, given=False, tls=False, guests=None)
    clients = [await place.client() for _ in range(2)]
    await heard(clients)
    torn, other = place.server._protocols
    seen: list[float] = []

    def torn_look(*_: float) -> None:
        raise RuntimeError("the handle is closed")

    monkeypatch.setattr(torn, "look", torn_look)
    monkeypatch.setattr(other, "look", lambda now, _: seen.append(now))
    await until(lambda: place.server.connections == 1, "the torn one's end")
    looks = len(seen)
    await until(lambda: len(seen) > looks + 2, "more looks")

    for each in clients:
        each.close()
    await place.server.stop(0)


async def test_looks_that_take_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each connection takes long to be looked at, others' work comes in between."""
    monkeypatch.setattr(server, "_LOOK_SECONDS", 0.001)
    place = Place(tmp_path, given=False, tls=False, guests=None)
    clients = [await place.client() for _ in range(10)]
    await heard(clients)
    place.server._looking.cancel()
    seen: list[int] = []

    def long_look(*_: float) -> None:
        until_us = elapsed_us() + server._LOOKED_US
        while elapsed_us() < until_us:
            pass
        seen.append(1)

    for protocol in place.server._protocols:
        monkeypatch.setattr(protocol, "look", long_look)
    place.server._look()
    in_turns = [len(seen)]
    while len(seen) < len(clients):
        await asyncio.sleep(0)
        in_turns.append(len(seen) - sum(in_turns))

    assert max(in_turns) == 1
    for each in clients:
        each.close()
    await place.server.stop(0)
