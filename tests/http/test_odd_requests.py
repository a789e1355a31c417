"""Requests to the admin listener that no page and no command of ours makes."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from pathlib import Path

import pytest

from ratelimit_service.http.pages import Pages
from ratelimit_service.settings import Settings
from tests.http.conftest import StartSite
from tests.nearby import Listener

TOKEN = "w" * 16
MANY = b"9" * 5_000
QUOTED = b'Cookie: ratelimit_session="%b"\r\n'
ODD = {
    "a number without an end": (b"GET /audit?most=%b" % MANY, b"", 400),
    "a number behind noughts": (b"GET /counters?limit=000000001%b" % MANY[:4_500], b"", 400),
    "a limit behind noughts": (b"GET /counters?limit=00000000100000", b"", 400),
    "a cookie that is no text": (b"GET /overrides", QUOTED % b"1.\xff.\xfe", 401),
    "a cookie of another alphabet": (b"GET /overrides", QUOTED % "1.é.é".encode(), 401),
    "a cookie without numbers": (b"GET /overrides", b"Cookie: ratelimit_session=a.b.c\r\n", 401),
    "a token that is no text": (b"GET /overrides", b"Authorization: Bearer \xff\xfe\r\n", 401),
    "a second secret that is no text": (b"POST /reset", b"X-CSRF-Token: \xff\r\n", 403),
    "an expectation that is no text": (b"GET /overrides", b"Expect: \xff\r\n", 417),
    "an expectation on a page": (b"GET /", b"Expect: \xff\r\n", 417),
    "an expectation of what is not here": (b"GET /nothing", b"Expect: \xff\r\n", 417),
    "a host that cannot be read": (b"GET http://xn--/overrides", b"", 400),
    "a port that cannot be read": (b"GET http://h:99999/overrides", b"", 400),
    "a descriptor that is no text": (b"GET /explain?domain=%ff&descriptor=%ff=%fe", b"", 200),
}


async def answered(at: Listener, line: bytes, headers: bytes) -> bytes:
    """All that a port says to one request."""
    reader, writer = await at.connected()
    writer.write(line + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + headers)
    writer.write(b"\r\n")
    answer = await reader.read()
    writer.close()
    return answer


@pytest.mark.parametrize(("line", "headers", "status"), ODD.values(), ids=ODD.keys())
async def test_odd_requests_are_refused(
    start_site: StartSite,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    line: bytes,
    headers: bytes,
    status: int,
) -> None:
    """Whatever bytes come, they are answered, and are no fault of the service."""
    tokens = tmp_path / "tokens"
    await asyncio.to_thread(tokens.write_text, f"write {TOKEN}\n")
    site = await start_site(Settings(admin_token_file=str(tokens)))
    own = b"Authorization: Bearer " + TOKEN.encode() + b"\r\n"
    if status != 401:
        headers += own + b"Content-Type: application/json\r\n"
    if line.startswith(b"POST"):
        session = await site.ask("/session", {"token": TOKEN})
        cookie = session.headers["set-cookie"].partition(";")[0]
        headers += b"Content-Length: 2\r\nCookie: " + cookie.encode() + b"\r\n"
    answer = await answered(site.near, line, headers)

    assert answer.partition(b"\r\n")[0].split()[1] == str(status).encode(), answer
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []


async def test_what_only_shows_pages_takes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever sends something to a port of pages is told that it cannot be done."""
    port = Pages({}, "", Counter())
    listener = Listener()
    await port.start([listener])
    headers = (b"", b"Expect: \xff\r\n")
    answers = [await answered(listener, b"POST /stats", each) for each in headers]
    await port.close()

    assert [each.split()[1] for each in answers] == [b"405", b"417"]
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []
