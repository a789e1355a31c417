"""Who may ask over HTTP, how large, how slowly, and how many at a time."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import logging
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web

from ratelimit_service import wire
from ratelimit_service.http import connections
from ratelimit_service.http.origin import is_ours
from ratelimit_service.observability.health import Phase
from ratelimit_service.settings import Settings
from tests.http.test_http import REQUEST, Site
from tests.waiting import until

BODY = json.dumps(REQUEST).encode()
TYPED = "Content-Type: application/json"


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    site = Site(tmp_path, Settings(), None)
    await site.start()
    site.asking.health.enter(Phase.SERVING)
    yield site
    while CALLERS:
        CALLERS.pop().close()
    await site.admin.close()


CALLERS: list[Caller] = []


class Caller:
    """One connection that sends what it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self._writer = writer

    @classmethod
    async def of(cls, site: Site) -> Caller:
        caller = cls(*await site.listener.connected())
        CALLERS.append(caller)
        return caller

    async def send(self, *lines: str, body: bytes = b"") -> None:
        self._writer.write("".join(f"{line}\r\n" for line in lines).encode() + body)
        await self._writer.drain()

    async def post(self, *lines: str, body: bytes = BODY) -> int:
        """The status of a POST to /json."""
        length = f"Content-Length: {len(body)}"
        await self.send("POST /json HTTP/1.1", "Host: localhost", length, *lines, "", body=body)
        return await self.status()

    async def status(self) -> int:
        """The status of the next answer."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1])
            for line in head.lower().splitlines()
            if line.startswith(b"content-length")
        )
        await self.reader.readexactly(length)
        return int(head.split()[1])

    async def ended(self) -> bool:
        """Waits until the service closes the connection."""
        try:
            while await self.reader.read(1 << 16):
                pass
        except ConnectionError:
            pass
        return True

    def end(self) -> None:
        """Sends no more."""
        self._writer.write_eof()

    def close(self) -> None:
        self._writer.close()


async def until_open(site: Site, number: int) -> None:
    await until(lambda: len(site.admin.connections) == number)


def hits(site: Site) -> int:
    """How many hits of the rule were counted."""
    (rule,) = site.asking.rules.snapshot.domains["edge"].rules
    return sum(tally.hits for _, tally in rule.tallies.items())


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ([TYPED], 200),
        (["Content-Type: application/json; charset=utf-8"], 200),
        ([], 415),
        (["Content-Type: text/plain"], 415),
        (["Content-Type: application/x-www-form-urlencoded"], 415),
        (["Content-Type: multipart/form-data; boundary=x"], 415),
        ([TYPED, "Origin: http://evil.example"], 403),
        ([TYPED, "Origin: null"], 403),
        ([TYPED, "Content-Encoding: gzip"], 415),
    ],
)
async def test_only_programs_ask(site: Site, lines: list[str], status: int) -> None:
    """What a page of another site can make a browser send is refused, and counts nothing."""
    body = gzip.compress(BODY) if "Content-Encoding: gzip" in lines else BODY

    assert await (await Caller.of(site)).post(*lines, body=body) == status
    assert hits(site) == (status == 200)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_who_looks_at_json_is_told_to_post(site: Site, method: str) -> None:
    """A decision is asked for by POST, and a browser that opens the path is told so."""
    caller = await Caller.of(site)
    await caller.send(f"{method} /json HTTP/1.1", "Host: localhost", "Connection: close", "")
    head, _, text = (await caller.reader.read()).partition(b"\r\n\r\n")

    assert (head.split()[1], b"Allow: POST" in head.splitlines()) == (b"405", True)
    assert b"POST" in text or method == "HEAD"


@pytest.mark.parametrize(
    ("host", "ours"),
    [
        ("", True),
        ("10.1.2.3:8080", True),
        ("[fd00::1]:8080", True),
        ("[fe80::1%25eth0]", True),
        ("localhost:8080", True),
        ("ratelimit", True),
        ("ratelimit.prod.svc:8080", True),
        ("ratelimit.prod.svc.cluster.local.", True),
        ("vm.internal", True),
        (socket.gethostname(), True),
        ("Limits.Example.com:8080", True),
        ("evil.example", False),
        ("10.1.2.3.evil.example:8080", False),
        ("limits.example.com.evil.example", False),
        ("a b:c:d", False),
        ("[::1", False),
    ],
)
def test_names_of_this_service(host: str, ours: bool) -> None:
    """Addresses, private names and those that are set name this service; other names do not."""
    assert is_ours(host, {"limits.example.com"}) == ours
    assert is_ours(host, {"*"})


@pytest.mark.parametrize(
    ("host", "ours"),
    [
        ("127.0.0.1:8082", True),
        ("[::1]:8082", True),
        ("LocalHost:8082", True),
        (socket.gethostname(), True),
        ("limits.example.com", True),
        ("evil", False),
        ("evil.local", False),
        ("evil.internal:8082", False),
        ("ratelimit.prod.svc", False),
    ],
)
def test_names_of_this_machine(host: str, ours: bool) -> None:
    """Where only this machine should ask, names that others in the network can claim are none."""
    assert is_ours(host, {"limits.example.com"}, strict=True) == ours


async def test_private_names_of_a_port_on_loopback(site: Site) -> None:
    """An HTTP port on loopback heeds no private name."""
    assert (await site.ask("/rlconfig", Host="evil.local")).status == 421
    assert (await site.ask("/rlconfig", Host="localhost")).status == 200


@pytest.mark.parametrize("path", ["/metrics", "/rlconfig", "/processes", "/json", "/nowhere"])
async def test_other_hosts(site: Site, path: str) -> None:
    """A name that a page of another site brought here gets nothing but health."""
    refused = await site.ask(path, Host="evil.example:8080")

    assert (refused.status, refused.text) == (
        421,
        "evil.example:8080 is no known name of this service: see --http-hosts\n",
    )
    assert (await site.ask("/healthcheck", Host="evil.example")).status == 200


async def test_other_hosts_that_are_named(tmp_path: Path) -> None:
    """Names in --http-hosts are names of this service."""
    site = Site(tmp_path, Settings(http_hosts="a.example, Limits.example"), None)
    await site.start()

    answer = await site.ask("/rlconfig", Host="limits.example:80")

    await site.admin.close()
    assert answer.status == 200


async def test_large_body_is_refused_unread(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body above the bound is refused by its length, or once it has passed it; none is parsed."""
    monkeypatch.setattr(wire.json, "json", None)  # whoever parses, fails
    announced, streamed = await Caller.of(site), await Caller.of(site)
    await announced.send(
        "POST /json HTTP/1.1", "Host: localhost", TYPED, "Content-Length: 131073", ""
    )
    chunk = b"1000\r\n" + b" " * 0x1000 + b"\r\n"
    await streamed.send(
        "POST /json HTTP/1.1",
        "Host: localhost",
        TYPED,
        "Transfer-Encoding: chunked",
        "",
        body=chunk * 33,
    )

    assert [await announced.status(), await streamed.status()] == [413, 413]
    assert await announced.ended()
    assert await streamed.ended()


async def test_refunds(tmp_path: Path) -> None:
    """A refund over /json is refused unless --json-refunds allows it."""
    refund = {
        "domain": "edge",
        "descriptors": [{**REQUEST["descriptors"][0], "isNegativeHits": True}],  # type: ignore[dict-item]
    }
    statuses = []
    for settings in (Settings(), Settings(json_refunds=True)):
        site = Site(tmp_path, settings, None)
        await site.start()
        statuses += [(await site.ask("/json", body)).status for body in (REQUEST, refund, REQUEST)]
        await site.admin.close()

    assert statuses == [200, 400, 429, 200, 200, 200]


async def test_no_json(tmp_path: Path) -> None:
    """With --no-json there is no such path."""
    site = Site(tmp_path, Settings(no_json=True), None)
    await site.start()

    answer = await site.ask("/json", REQUEST)

    await site.admin.close()
    assert (answer.status, answer.text) == (
        404,
        "/json is not here: /healthcheck /livez /readyz /metrics /rlconfig /processes are\n",
    )


BEGUN = ("POST /json HTTP/1.1", "Host: localhost", TYPED, "Content-Length: 9")
"""A request whose body is still to come."""


async def begun(site: Site) -> Caller:
    """A caller whose request is being read: the service has asked for the body."""
    caller = await Caller.of(site)
    await caller.send(*BEGUN, "Expect: 100-continue", "")
    assert await caller.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    return caller


async def test_slow_heads(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head has some seconds, from the connection or its first byte."""
    busy, idle = await begun(site), await Caller.of(site)
    for _ in range(2):  # a second one, when aiohttp has done all that follows from the first
        await idle.send("GET /healthcheck HTTP/1.1", "Host: localhost", "")
        assert await idle.status() == 200
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.0)
    silent, slow = [await Caller.of(site) for _ in range(2)]
    await slow.send("GET /healthcheck HTTP/1.1", "Host: localhost")

    assert await silent.ended()
    assert await slow.ended()
    assert site.asking.stats.http_closed == {"slow": 2}
    await idle.send("GET /healthcheck HTTP/1.1", "Host: localhost")
    assert await idle.ended()
    await busy.send(body=b"{}       ")
    assert await busy.status() == 400


async def test_idle_connections(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection may be idle for a while after an answer."""
    monkeypatch.setattr(connections, "IDLE_SECONDS", 0.0)
    idle, busy = await Caller.of(site), await begun(site)
    await idle.send("GET /healthcheck HTTP/1.1", "Host: localhost", "")

    assert await idle.status() == 200
    assert await idle.ended()
    assert site.asking.stats.http_closed == {"slow": 1}
    await busy.send(body=b"{}       ")
    assert await busy.status() == 400


async def test_slow_body(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body that does not come in time is refused, and its connection closed."""
    monkeypatch.setattr("ratelimit_service.http.http_port.BODY_SECONDS", 0.0)
    caller = await Caller.of(site)
    await caller.send(*BEGUN, "")

    assert await caller.status() == 408
    assert await caller.ended()


async def test_reader_that_does_not_read(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever does not read a long answer is cut off, and the answer let go."""
    monkeypatch.setattr("ratelimit_service.http.port.WRITE_SECONDS", 0.05)

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 65_536

    site.admin.shown = replace(site.admin.shown, metrics=lambda _: ("text/plain", endless()))
    caller = await Caller.of(site)
    await caller.send("GET /metrics HTTP/1.1", "Host: localhost", "")

    await until_open(site, 0)
    caller.close()


async def test_connections_are_bounded(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of too many connections of one address the one goes that waits longest; requests do not."""
    monkeypatch.setattr(connections, "MAX_CONNECTIONS_PER_PEER", 3)
    busy = await begun(site)
    waiting = []
    for _ in range(10):
        waiting.append(await Caller.of(site))
        await until(lambda: sum(site.asking.stats.http_closed.values()) >= len(waiting) - 2)

    for gone in waiting[:-2]:
        assert await gone.ended()
    for caller in waiting[-2:]:
        assert await caller.post(TYPED) in {200, 429}
    await busy.send(body=b"{}       ")
    assert await busy.status() == 400
    assert site.asking.stats.http_closed == {"crowded": 8}


async def test_connections_are_bounded_in_all(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where requests take all the room, further connections are closed at once."""
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 1)
    busy = await begun(site)

    assert await (await Caller.of(site)).ended()
    await busy.send(body=b"{}       ")
    assert await busy.status() == 400


async def test_unread_list(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of answers is written one after the other: who does not read is cut off."""
    monkeypatch.setattr("ratelimit_service.http.port.WRITE_SECONDS", 0.05)
    made: list[bytes] = []

    async def endless(_: object) -> AsyncIterator[bytes]:
        while True:
            made.append(b"x" * 65_536)
            yield made[-1]

    monkeypatch.setattr("ratelimit_service.http.http_port._list_of", endless)
    caller = await Caller.of(site)
    body = json.dumps([REQUEST]).encode()
    length = f"Content-Length: {len(body)}"
    await caller.send("POST /json HTTP/1.1", "Host: localhost", TYPED, length, "", body=body)

    await until_open(site, 0)
    assert len(made) < 200
    caller.close()


async def test_aborted_bodies_leave_nothing(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """Who hangs up within a body leaves nothing in memory, even if no garbage is collected."""

    async def abort() -> None:
        caller = await begun(site)
        caller.close()
        await until_open(site, 0)

    await abort()
    gc.collect()
    gc.disable()
    try:
        for _ in range(20):
            await abort()
        async with asyncio.timeout(30):
            while requests := [each for each in gc.get_objects() if isinstance(each, web.Request)]:
                requests.clear()
                await asyncio.sleep(0.001)
    finally:
        gc.enable()
    assert not [record for record in caplog.records if record.exc_info]


async def test_crowded_at_any_moment(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A connection that makes room while its request is just coming is no fault for the log."""
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 1)
    head = "\r\n".join((*BEGUN, "", "")).encode()
    for rounds in range(5):
        with site.listener.connection() as first:
            await until_open(site, 1)
            with site.listener.connection():
                for _ in range(rounds):
                    await asyncio.sleep(0)
                first.sendall(head)
                async with asyncio.timeout(30):
                    while site.asking.stats.http_closed["crowded"] <= rounds:
                        await asyncio.sleep(0)
        await until_open(site, 0)

    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize(
    "lines",
    [
        ["GET /%ED%A0%80%0d%0a HTTP/1.1", "Host: localhost", ""],
        [
            "GET /metrics HTTP/1.1",
            "Host: localhost",
            "Accept: application/openmetrics-text;version",
            "",
        ],
        [
            "GET /metrics HTTP/1.1",
            "Host: localhost",
            "Accept: application/openmetrics-text;version=x;escaping=y,text/plain;q=z",
            "",
        ],
        [
            "POST /json HTTP/1.1",
            "Host: localhost",
            "Content-Type: application/json; charset=zzz",
            "",
        ],
        ["POST /json HTTP/1.1", "Host: localhost", "Content-Type: ;;;", ""],
    ],
)
async def test_odd_requests(site: Site, lines: list[str], caplog: pytest.LogCaptureFixture) -> None:
    """Whatever the head says, the answer is none of an error of ours."""
    caller = await Caller.of(site)
    await caller.send(*lines)
    line = await caller.reader.readline()

    assert int(line.split()[1]) < 500
    assert not [record for record in caplog.records if record.exc_info]
    caller.close()


async def test_bodies_in_chunks_of_one_byte(site: Site) -> None:
    """However its body comes a request is answered; so are all that were sent at once, in order."""
    caller, several = await Caller.of(site), await Caller.of(site)
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"0\r\n\r\n"
    lines = "POST /json HTTP/1.1", "Host: localhost", TYPED, "Transfer-Encoding: chunked", ""
    await caller.send(*lines, body=chunks)
    await several.send(*["GET /healthcheck HTTP/1.1", "Host: localhost", ""] * 100)

    assert await caller.status() == 200
    assert [await several.status() for _ in range(100)] == [200] * 100
    assert hits(site) == 1


async def test_client_that_ends_its_side(site: Site) -> None:
    """A client that says at once that it will send no more gets the answer to what it has sent."""
    caller = await Caller.of(site)
    await caller.send("GET /healthcheck HTTP/1.1", "Host: localhost", "")
    caller.end()

    assert await caller.status() == 200
    assert await caller.ended()
