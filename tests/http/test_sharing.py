"""No client of an HTTP port holds up the others: not by bytes, TLS, requests or long answers."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from ratelimit_service.eventloop.slices import pause
from ratelimit_service.grpc.tls import TLSFiles
from ratelimit_service.http import connections
from ratelimit_service.settings import Settings
from tests.grpc.test_addresses import Files
from tests.http.test_http import Site
from tests.waiting import PATIENCE_SECONDS, until

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    site = Site(tmp_path, Settings(), None)
    await site.start()
    yield site
    await site.admin.close()


async def connected(site: Site, number: int) -> list[Ends]:
    return [await site.listener.connected() for _ in range(number)]


async def test_many_late_connections(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections that become late at the same moment are ended a few at a time."""
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.0)
    ends = await connected(site, 100)
    closed, seen = site.asking.stats.http_closed, [0]
    async with asyncio.timeout(PATIENCE_SECONDS):
        while closed["slow"] < 100:
            await asyncio.sleep(0)
            seen.append(closed["slow"])

    assert max(after - before for before, after in pairwise(seen)) <= 8
    for reader, writer in ends:
        with suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()


CHUNKED = (
    b"POST /json HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * 20_000
)
PIPELINED = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1_000


@pytest.mark.parametrize("sent", [CHUNKED, PIPELINED], ids=["chunks", "requests"])
async def test_clients_that_send_much(site: Site, sent: bytes) -> None:
    """A new client is answered long before others that have sent much."""
    many = await connected(site, 20)
    for _, writer in many:
        writer.write(sent)
    ((reader, writer),) = await connected(site, 1)
    writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")

    assert (await reader.read()).endswith(b"\r\n\r\nOK")
    for each, its_writer in many:
        its_writer.transport.abort()
        with suppress(ConnectionError):
            assert (await each.read()).count(b"HTTP/1.1 ") < 1_000
    writer.close()


async def test_long_pages_stand_in_line(site: Site) -> None:
    """However many callers ask for a long page, a round of the loop makes a slice of one of them.

    Each of them gets all of it.
    """
    made: list[int] = []
    slices, callers = 40, 30

    async def page() -> AsyncIterator[bytes]:
        for number in range(slices):
            made.append(number)
            yield b"%d\n" % number
            await pause()

    site.admin.shown = replace(site.admin.shown, metrics=lambda _: ("text/plain", page()))
    ends = await connected(site, callers)
    for _, writer in ends:
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    seen = [0]
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(made) < slices * callers:
            await asyncio.sleep(0)
            seen.append(len(made))

    assert max(after - before for before, after in pairwise(seen)) <= 2  # one may be a first one
    for reader, writer in ends:
        assert (await reader.read()).count(b"39\n") == 1
        writer.close()


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

    async def connected(self) -> Ends:
        return await self.site.listener.connected(tls=self.client)


@pytest.fixture
async def secured(tmp_path: Path) -> AsyncIterator[Secured]:
    secured = Secured(tmp_path)
    await secured.start()
    yield secured
    await secured.site.admin.close()


async def test_requests_over_tls(secured: Secured) -> None:
    """Requests in records of one byte are all answered; the end of one side ends the other."""
    reader, writer = await secured.connected()
    for byte in b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20:
        writer.write(bytes((byte,)))

    async with asyncio.timeout(PATIENCE_SECONDS):
        for _ in range(20):
            assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(2) == b"OK"
    writer.close()
    await until(lambda: not len(secured.site.admin.connections))
    assert secured.site.asking.stats.http_closed == {}


async def test_large_bodies_over_tls(secured: Secured) -> None:
    """A body of many records, and an answer of as many, pass whole."""
    page = b"x" * 1_000_000

    async def pages() -> AsyncIterator[bytes]:
        yield page

    secured.site.admin.shown = replace(
        secured.site.admin.shown, metrics=lambda _: ("text/plain", pages())
    )
    reader, writer = await secured.connected()
    writer.write(
        b"POST /json HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: 131000\r\n\r\n{}" + b" " * 130_998
    )
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    async with asyncio.timeout(PATIENCE_SECONDS):
        answers = await reader.read()

    assert answers.startswith(b"HTTP/1.1 400 ")
    assert answers.count(b"x" * 1_000) == 1_000
    writer.close()


def hello(client: ssl.SSLContext) -> bytes:
    """The first bytes of a TLS handshake."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = client.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


async def test_many_handshakes(secured: Secured) -> None:
    """However many clients shake hands at the same moment, they take their steps one by one."""
    first = hello(secured.client)
    ends = await connected(secured.site, 60)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(secured.site.admin.connections) < len(ends):
            await asyncio.sleep(0)
    answered: list[int] = []

    async def answer(reader: asyncio.StreamReader) -> None:
        assert await reader.read(1) == b"\x16"
        answered.append(1)

    async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE_SECONDS):
        tasks = [asyncio.create_task(answer(reader)) for reader, _ in ends]
        await asyncio.sleep(0)
        for _, writer in ends:
            stack.callback(writer.close)
            writer.write(first)
        seen = [0]
        while len(answered) < len(ends):
            await asyncio.sleep(0)
            seen.append(len(answered))
        await asyncio.gather(*tasks)

    assert max(after - before for before, after in pairwise(seen)) <= 4


@pytest.mark.parametrize("cut", [False, True], ids=["no TLS", "half a handshake"])
async def test_failed_handshakes(secured: Secured, *, cut: bool) -> None:
    """A client that speaks no TLS, or hangs up within the handshake, is counted."""
    ((reader, writer),) = await connected(secured.site, 1)
    writer.write(hello(secured.client)[:-1] if cut else b"GET /livez HTTP/1.1\r\n\r\n")
    if cut:
        writer.write_eof()
    async with asyncio.timeout(PATIENCE_SECONDS):
        with suppress(ConnectionError):
            await reader.read()
        while len(secured.site.admin.connections):
            await asyncio.sleep(0.001)

    assert secured.site.asking.stats.http_closed == {"handshake": 1}
    writer.close()


async def test_silent_handshakes(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handshake that does not go on is ended as slow; a client beside it is answered."""
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.0)
    ((silent, writer),) = await connected(secured.site, 1)
    async with asyncio.timeout(PATIENCE_SECONDS):
        with suppress(ConnectionError):
            assert await silent.read() == b""
    monkeypatch.undo()
    reader, other = await secured.connected()
    other.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")

    assert b" 200 " in await reader.readline()
    assert secured.site.asking.stats.http_closed == {"slow": 1}
    writer.close()
    other.close()


async def test_new_certificate(secured: Secured, tmp_path: Path) -> None:
    """Who connects after a renewal gets the new certificate; who is connected stays."""
    reader, writer = await secured.connected()
    (tmp_path / "new").mkdir()
    new = Files(tmp_path / "new")
    await secured.site.admin.renew(TLSFiles(new.cert, new.key).read())

    secured.client = ssl.create_default_context(cafile=str(new.ca))
    for each, its_writer in ((reader, writer), await secured.connected()):
        its_writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b" 200 " in await each.readline()
        its_writer.close()
