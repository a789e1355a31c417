"""Who may ask the admin listener."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from ratelimit_service.errors import SettingsError
from ratelimit_service.http.peers import is_local
from ratelimit_service.http.route import AdminRequest, Operating, Route
from ratelimit_service.http.routes import registry
from ratelimit_service.http.session import SECONDS, begin, resume
from ratelimit_service.http.tokens import read_tokens
from ratelimit_service.settings import Settings
from tests.http.conftest import AdminSite, StartSite

READER, WRITER = "r" * 16, "w" * 16


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text(f"# ours\nread {READER}\n\nwrite {WRITER} alice\n")
    return path


@pytest.fixture(autouse=True)
def changing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A route that changes something, and tells who did."""

    async def change(request: AdminRequest) -> object:
        return {"actor": request.actor, "body": request.body}

    def routes(_: Operating) -> list[Route]:
        return [Route("POST", "/change", "changes", change)]

    monkeypatch.setattr(registry, "GROUPS", (*registry.GROUPS, routes))


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def test_tokens(start_site: StartSite, tokens: Path) -> None:
    """With tokens everybody needs one, also on this machine; `read` changes nothing."""
    site = await start_site(Settings(admin_token_file=str(tokens)))

    statuses = [
        (await site.ask(path, body, **headers)).status
        for path, body in (("/health", None), ("/change", {"a": 1}))
        for headers in ({}, bearer("x" * 16), bearer(READER), bearer(WRITER))
    ]
    changed = await site.json_of("/change", {"a": 1}, **bearer(WRITER))

    assert statuses == [401, 401, 200, 200, 401, 401, 403, 200]
    assert changed == {"actor": ["alice", "write", "127.0.0.1"], "body": {"a": 1}}


async def test_tokens_are_read_anew(start_site: StartSite, tokens: Path) -> None:
    """A changed file is in force soon; one that cannot be used changes nothing, and is told."""
    site = await start_site(Settings(admin_token_file=str(tokens)))
    renewed = site.listener.access.tokens
    assert renewed is not None

    await asyncio.to_thread(tokens.write_text, f"read {READER}x\n")
    for _ in range(2):
        await renewed.look()
    old, new = [await site.ask("/health", **bearer(text)) for text in (READER, f"{READER}x")]
    await asyncio.to_thread(tokens.write_text, "everybody\n")
    for _ in range(2):
        await renewed.look()
    unchanged = await site.ask("/health", **bearer(f"{READER}x"))

    assert (old.status, new.status, unchanged.status) == (401, 200, 200)
    assert "stays in force" in json.loads(unchanged.text)["faults"]["admin tokens"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no token"),
        ("read short", ":1: a token has 16 printable ASCII characters or more"),
        ("read " + "a" * 20 + "\0", ":1: a token has 16 printable ASCII characters or more"),
        ("\nadmin " + READER, ":2: a line is `read TOKEN` or `write TOKEN`"),
        (READER, ":1: a line is"),
        (f"read {READER}\nwrite {READER}", "has the same token twice"),
    ],
)
def test_files_of_tokens_that_cannot_be(tmp_path: Path, text: str, message: str) -> None:
    """What is no file of tokens is told with its line, and without the token."""
    path = tmp_path / "tokens"
    path.write_text(text)

    with pytest.raises(SettingsError, match=re.escape(message)) as raised:
        read_tokens(str(path))

    assert READER not in str(raised.value)


async def test_session(start_site: StartSite, tokens: Path) -> None:
    """A browser shows its token once. For changes its page shows a second secret as well."""
    site = await start_site(Settings(admin_token_file=str(tokens)))
    origin = {"Origin": site.url, "Sec-Fetch-Site": "same-origin"}
    wrong = await site.ask("/session", {"token": "x" * 16}, **origin)

    begun = await site.ask("/session", {"token": WRITER}, **origin)
    cookie, _, attributes = begun.headers["set-cookie"].partition(";")
    mine = {**origin, "Cookie": cookie}
    again = await site.json_of("/session", **mine)
    read = await site.ask("/health", **mine)
    changes = [
        await site.ask("/change", {}, **mine, **{"X-CSRF-Token": csrf})
        for csrf in ("", "0" * 64, json.loads(begun.text)["csrf"])
    ]

    assert wrong.status == 401
    assert json.loads(begun.text) == again
    assert all(word in attributes for word in ("HttpOnly", "SameSite=Strict", "Path=/"))
    assert [each.status for each in (read, *changes)] == [200, 403, 403, 200]


@pytest.mark.parametrize(
    ("around", "status"),
    [
        ("{}", 200),
        ("a=b; {}; c=d", 200),
        ("a=b;{} ;", 200),
        ("x{}", 401),
        ("ratelimit_session", 401),
    ],
)
async def test_other_cookies(start_site: StartSite, tokens: Path, around: str, status: int) -> None:
    """The session is found among other cookies, and nothing else is taken for it."""
    site = await start_site(Settings(admin_token_file=str(tokens)))
    origin = {"Origin": site.url, "Sec-Fetch-Site": "same-origin"}
    begun = await site.ask("/session", {"token": READER}, **origin)
    cookie = begun.headers["set-cookie"].partition(";")[0]

    answer = await site.ask("/health", **origin, Cookie=around.format(cookie))

    assert answer.status == status


async def test_a_token_that_is_no_text(start_site: StartSite, tokens: Path) -> None:
    """JSON can hold what is no text: that is none of the tokens, and no fault of ours."""
    site = await start_site(Settings(admin_token_file=str(tokens)))

    assert (await site.ask("/session", {"token": "\ud800"})).status == 401


async def test_quoted_cookies_cost_nothing(
    start_site: StartSite, tokens: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is quoted in a cookie is not read: Python takes the square of its length for that."""
    read: list[str] = []
    monkeypatch.setattr("http.cookies._unquote", read.append)
    site = await start_site(Settings(admin_token_file=str(tokens)))

    refused = await site.ask("/health", Cookie='a="' + "\\\\" * 4_000 + '"')

    assert (refused.status, read) == (401, [])


async def test_a_browser_on_this_machine(admin: AdminSite) -> None:
    """Without tokens a page of ours gets a session by itself, and needs it for changes."""
    origin = {"Origin": admin.url, "Sec-Fetch-Site": "same-origin"}

    begun = await admin.ask("/session", **origin)
    csrf = {"X-CSRF-Token": json.loads(begun.text)["csrf"]}
    cookie = {"Cookie": begun.headers["set-cookie"].partition(";")[0]}
    statuses = [
        (await admin.ask("/change", {}, **origin, **more)).status
        for more in ({}, csrf, cookie, {**csrf, **cookie})
    ]

    assert statuses == [403, 403, 403, 200]


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Content-Type": "text/plain"},
    ],
)
async def test_pages_of_others(admin: AdminSite, headers: dict[str, str]) -> None:
    """A page of another site or port changes nothing, also without a header of its browser."""
    assert (await admin.ask("/change", {}, **headers)).status == 403


def test_sessions_end() -> None:
    """A session ends after twelve hours, with its key, and if a byte of it is another."""
    session = begin(b"key", 1_000)

    assert resume(session.cookie, b"key", 1_000 + SECONDS) == session
    assert resume(session.cookie, b"key", 1_001 + SECONDS) is None
    assert resume(session.cookie, b"other", 1_000) is None
    assert resume("9" + session.cookie, b"key", 1_000) is None
    assert resume("", b"key", 1_000) is None


@pytest.mark.parametrize(
    ("peer", "own", "local"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("::ffff:127.0.0.1", "::ffff:127.0.0.1", True),
        ("::1", "::1", True),
        ("192.0.2.7", "192.0.2.7", True),
        ("fe80::1%eth0", "fe80::1%eth0", True),
        ("192.0.2.8", "192.0.2.7", False),
        ("fe80::2%eth0", "fe80::1%eth0", False),
    ],
)
def test_who_is_on_this_machine(peer: str, own: str, local: bool) -> None:
    """Callers are on this machine if they come from loopback, or from the address they came to."""
    assert is_local(_request(peer, own)) is local


def _request(peer: str, own: str) -> web.Request:
    class Transport(asyncio.Transport):
        def get_extra_info(self, name: str, default: object = None) -> object:
            return {"peername": (peer, 1), "sockname": (own, 2)}.get(name, default)

    return make_mocked_request("GET", "/", transport=Transport())
