"""The HTTP port's connections take turns: bytes, TLS, requests, and slices of long answers."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from ratelimit_service.eventloop.slices import pause
from ratelimit_service.grpc.tls import TLSFiles
from ratelimit_service.http import doors
from ratelimit_service.net.handshakes import Sealed
from ratelimit_service.settings import Settings
from tests.grpc.test_addresses import Files
from tests.http.test_http import Site


class Wire(asyncio.Transport):
    """The way to a client that says nothing."""

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        ABORTED.append(self)


ABORTED: list[Wire] = []


async def test_many_late_connections() -> None:
    """Connections that become late at the same moment are not ended in the same turn."""
    closed: Counter[str] = Counter()
    all_doors = doors.Doors(asyncio.Protocol, closed)
    ABORTED.clear()
    for _ in range(100):
        all_doors.door().connection_made(Wire())

    all_doors.look(asyncio.get_running_loop().time() + doors.HEAD_SECONDS)

    seen = [len(ABORTED)]
    while seen[-1] < 100:
        await asyncio.sleep(0)
        seen.append(len(ABORTED))
    assert max(after - before for before, after in pairwise([0, *seen])) <= 8
    assert closed["slow"] == 100
    assert len(all_doors) == 0


class Heard(asyncio.Protocol):
    """What is behind a door: takes what it is handed."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.pieces.append(data)


class Read(Wire):
    """The way to a client, and whether it is read from."""

    reads = True

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True


async def test_what_was_read_is_handed_on_in_pieces() -> None:
    """Each turn hands on one piece, of one after the other; meanwhile nothing more is read."""
    inner = [Heard(), Heard()]
    all_doors = doors.Doors(iter(inner).__next__, Counter())
    flood, other = all_doors.door(), all_doors.door()
    wire = Read()
    flood.connection_made(wire)
    other.connection_made(Read())
    data = bytes(range(256)) * 400

    flood.data_received(data)
    for _ in range(4):
        await asyncio.sleep(0)
    before = len(inner[0].pieces)
    other.data_received(b"GET")
    assert not wire.reads
    seen = [before]
    while sum(map(len, inner[0].pieces)) < len(data):
        await asyncio.sleep(0)
        seen.append(len(inner[0].pieces))
        if seen[-1] > before + 2:
            assert inner[1].pieces == [b"GET"]

    assert b"".join(inner[0].pieces) == data
    assert {len(piece) for piece in inner[0].pieces} == {1_024}
    assert max(after - earlier for earlier, after in pairwise(seen)) == 1
    async with asyncio.timeout(30):
        while not wire.reads:
            await asyncio.sleep(0)


async def test_who_wants_no_more_gets_no_more() -> None:
    """A piece waits until what is behind the door wants it; then all of it comes."""
    inner = Heard()
    door = doors.Doors(lambda: inner, Counter()).door()
    wire = Read()
    door.connection_made(wire)
    data = bytes(10_000)

    inner.transport.pause_reading()
    door.data_received(data)
    for _ in range(8):
        await asyncio.sleep(0)
    assert (inner.pieces, wire.reads) == ([], False)

    inner.transport.resume_reading()
    async with asyncio.timeout(30):
        while not wire.reads:
            await asyncio.sleep(0)
    assert b"".join(inner.pieces) == data


async def test_requests_are_answered_one_after_the_other() -> None:
    """However many come at once, about one begins in each round of the loop; none waits alone."""
    all_doors = doors.Doors(asyncio.Protocol, Counter())
    begun: list[int] = []

    async def request(number: int) -> None:
        await all_doors.turn()
        begun.append(number)

    await request(-1)
    tasks = [asyncio.create_task(request(number)) for number in range(50)]
    tasks.append(asyncio.create_task(all_doors.turn()))
    seen = [len(begun)]
    tasks[7].cancel()
    while len(begun) < 50:
        await asyncio.sleep(0)
        seen.append(len(begun))

    assert begun == [-1, *range(7), *range(8, 50)]
    assert max(after - before for before, after in pairwise(seen)) <= 2
    await tasks[-1]


async def test_long_pages_stand_in_line(tmp_path: Path) -> None:
    """However many callers ask for a long page, a round of the loop makes a slice of one of them.

    Each of them gets all of it.
    """
    site = Site(tmp_path, Settings(), None)
    await site.start()
    made: list[int] = []
    slices, callers = 40, 30

    async def page() -> AsyncIterator[bytes]:
        for number in range(slices):
            made.append(number)
            yield b"%d\n" % number
            await pause()

    site.admin._render_metrics = lambda _: ("text/plain", page())
    ends = [await asyncio.open_connection("127.0.0.1", site.port) for _ in range(callers)]
    for _, writer in ends:
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    seen = [0]
    async with asyncio.timeout(30):
        while len(made) < slices * callers:
            await asyncio.sleep(0)
            seen.append(len(made))

    assert max(after - before for before, after in pairwise(seen)) <= 2  # one may be a first one
    for reader, writer in ends:
        assert (await reader.read()).count(b"39\n") == 1
        writer.close()
    await site.admin.close()


class Secured:
    """The port over TLS."""

    def __init__(self, directory: Path) -> None:
        self.files = Files(directory)
        rules = directory / "rules"
        rules.mkdir()
        self.site = Site(rules, Settings(), None)
        self.client = ssl.create_default_context(cafile=str(self.files.ca))

    async def start(self) -> None:
        tls = TLSFiles(self.files.cert, self.files.key, protocols=("http/1.1",)).read()
        await self.site.start(tls)

    async def connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(
            "127.0.0.1", self.site.port, ssl=self.client, server_hostname="localhost"
        )


async def test_requests_over_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes over TLS is opened a few records at a time, and all of it is answered."""
    opened: list[int] = []
    open_some = Sealed.open_some

    def noted(sealed: Sealed, most: int = 32) -> tuple[int, int]:
        records, size = open_some(sealed, most)
        opened.append(records)
        return records, size

    monkeypatch.setattr(Sealed, "open_some", noted)
    secured = Secured(tmp_path)
    await secured.start()
    reader, writer = await secured.connected()
    for byte in b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20:
        writer.write(bytes((byte,)))

    async with asyncio.timeout(30):
        for _ in range(20):
            assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(2) == b"OK"

    assert max(opened) <= 32
    assert sum(opened) > 20 * 30
    writer.close()
    async with asyncio.timeout(30):
        while len(secured.site.admin.doors):
            await asyncio.sleep(0.001)
    await secured.site.admin.close()


async def test_many_handshakes(tmp_path: Path) -> None:
    """However many clients shake hands at the same moment, a turn takes a few steps."""
    secured = Secured(tmp_path)
    await secured.start()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = secured.client.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    hello = outgoing.read()
    ends = [await asyncio.open_connection("127.0.0.1", secured.site.port) for _ in range(60)]
    while secured.site.admin._handshakes._line:
        await asyncio.sleep(0)
    steps, step = [0], Sealed.step

    def counted(sealed: Sealed) -> bool:
        steps[0] += 1
        return step(sealed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sealed, "step", counted)
        for _, writer in ends:
            writer.write(hello)
        seen = [0]
        async with asyncio.timeout(30):
            while steps[0] < len(ends):
                await asyncio.sleep(0)
                seen.append(steps[0])

    assert max(after - before for before, after in pairwise(seen)) <= 8
    for reader, writer in ends:
        assert await reader.read(1) == b"\x16"
        writer.close()
    await secured.site.admin.close()
