"""The console: its page as it is sent, and as a real browser shows it."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from ratelimit_service.http import feed
from ratelimit_service.http.console import console_files
from ratelimit_service.model import Code
from ratelimit_service.net import listening
from ratelimit_service.settings import Settings
from ratelimit_service.stores import ShardState
from tests.http.conftest import AdminSite, StartSite
from tests.servers.chromium import Chromium
from tests.service.reserving import Gateway
from tests.waiting import PATIENCE_SECONDS

EVIL = "<img src=x onerror=alert(1)>"
TYPED = EVIL.replace("=", "\\=")
TOKEN = "w" * 16
RING = "redis+ring://10.0.0.7:6379,10.0.0.8:6379,10.0.0.9:6379/0"
SHARDS = [
    [EVIL, "connected in 1 of 2 processes", "open in 1 of 2 processes", "250 µs", "2", "5", "3"],
    ["main", "connected", "closed", "900 µs", "0", "0", "3"],
]
NEWER = "!document.querySelector('#newer').hidden"
PLOTS = """(dispatchEvent(new Event("resize")),
    [...document.querySelectorAll("svg.chart")].map(
        (svg) => svg.viewBox.baseVal.width - svg.clientWidth))"""
"""How much wider plots are than their places, just after the window has another size. They must be
as wide, so that text keeps its size."""

CELLS = """[...document.querySelectorAll("#shard-rows tr")].map((row) =>
    [...row.children].map((cell) => cell.firstChild.textContent))"""


async def test_page_may_do_nothing_else(admin: AdminSite) -> None:
    """Page and scripts come from the listener alone, and run nothing that is not a file of it."""
    page = await admin.ask("/")
    policy = page.headers["content-security-policy"]
    paths = re.findall(r'(?:src|href)="(?!#)([^"]*)"', page.text)
    answers = [await admin.ask(element) for element in paths]

    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
    assert "unsafe" not in policy
    assert all(word in policy for word in ("frame-ancestors 'none'", "base-uri 'none'"))
    assert [each.status for each in answers] == [200] * len(paths)
    assert not re.search(r"<script[^>]*>[^<]|<style|\bstyle=|\bon\w+=", page.text)


def test_scripts_write_text_only() -> None:
    """No script makes markup of text, runs text, or asks another host."""
    scripts = {path: file for path, file in console_files().items() if path.endswith(".js")}
    assert len(scripts) > 5

    for path, file in scripts.items():
        text = file.content.decode()
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write", text), path
        assert not re.search(r"\beval\b|\bFunction\(|setTimeout\(\s*[\"'`]", text), path
        assert re.findall(r"https?://[^\"]*", text) in ([], ["http://www.w3.org/2000/svg"]), path


@pytest.fixture
async def chromium(tmp_path: Path) -> AsyncIterator[Chromium]:
    browser = await asyncio.to_thread(Chromium, tmp_path, local=True)
    yield browser
    await asyncio.to_thread(browser.close)


async def shown(chromium: Chromium, script: str, ready: Callable[[Any], object] = bool) -> Any:
    """What a script finds in the page, once that is what is waited for."""
    deadline = asyncio.get_running_loop().time() + PATIENCE_SECONDS
    while True:
        result = await asyncio.to_thread(chromium.run, script)
        if ready(result):
            return result
        assert asyncio.get_running_loop().time() < deadline, (script, result, chromium.faults)


def text_of(selector: str) -> str:
    return f"document.querySelector({selector!r})?.innerText ?? ''"


CHOICES = [
    ("#denial-list", "explain", "explain", "explanation"),
    ("#caller-rows", "inspect", "explain", "explanation"),
    ("#denial-list", "ban", "override", "override-for"),
    ("#caller-rows", "exempt", "override", "override-for"),
    ("#denial-list", "reset", "reset", "reset-button"),
]
"""Rows, what is chosen there, the form that it fills, and where one is then."""


async def chosen(chromium: Chromium, rows: str, what: str, form: str, element: str) -> object:
    """Chooses what to do about the caller of a row; returns where one is, and what is filled in."""
    at = "document.activeElement.id"
    open_choices = f"document.querySelector('{rows} .about').click()"
    # What had the focus has it again as soon as the choices close, before anything is filled in.
    await asyncio.to_thread(chromium.run, f"document.activeElement.blur(); {open_choices}")
    await asyncio.to_thread(
        chromium.run, f"document.querySelector('#about [value={what}]').click()"
    )
    await shown(chromium, at, lambda result: result == element)
    values = ", ".join(
        f"document.querySelector('#{form}-{n}').value" for n in ("domain", "descriptor")
    )
    return await asyncio.to_thread(chromium.run, f"[{at}, {values}]")


def at_port(port: int = 0) -> list[socket.socket]:
    """Where another process finds the listener."""
    return listening.listen(f"127.0.0.1:{port}", "admin")


async def goes_on(chromium: Chromium, site: AdminSite, start_site: StartSite) -> None:
    """Ends a service; the page says so, and goes on with the next one at the same place."""
    await site.listener.close()
    await shown(chromium, text_of("#state"), lambda result: result == "no answer, trying again")
    again = await start_site(site.operating.settings, sockets=at_port(site.port))
    again.version = "2"
    await shown(chromium, text_of("#state"), lambda result: result == "serving")
    await shown(chromium, NEWER)
    while "user=after" not in await shown(chromium, text_of("#denial-list li")):
        await again.asking.ask("user=after")  # those of before its stream was there are not told


async def test_in_chromium(
    start_site: StartSite, tmp_path: Path, chromium: Chromium, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page asks for a token, shows what happens, with values as text, and explains.

    On a phone nothing is wider than the screen. All can be done by keyboard. When the service goes
    the page says so, and goes on with the next one.
    """
    monkeypatch.setattr(feed, "_SECONDS", 0.5)
    tokens = tmp_path / "tokens"
    await asyncio.to_thread(tokens.write_text, f"write {TOKEN} alice\n")
    settings = Settings(admin_token_file=str(tokens), store=RING)
    site = await start_site(settings, sockets=at_port())
    site.shards += [
        ShardState(EVIL, "shard", EVIL, False, 250, 2, 1, 3),
        ShardState(EVIL, "shard", "", True, None, 0, 4, 3),
        ShardState("main", "server, by Sentinel", "10.0.0.7:6379", False, 900, 0, 0, 3),
    ]
    await asyncio.to_thread(chromium.visit, f"{site.url}/")

    await shown(chromium, "document.activeElement.id", lambda result: result == "token")
    await asyncio.to_thread(chromium.type, f"{TOKEN}\r")
    await shown(chromium, text_of("#rule-rows"), lambda result: "2 per day" in result)
    await shown(chromium, text_of("#ok"), lambda result: result == "0")
    for _ in range(3):
        await site.asking.ask(f"user={EVIL}")
    denial = await shown(chromium, text_of("#denial-list li"))
    await asyncio.to_thread(chromium.run, "document.querySelector('#explain-domain').focus()")
    await asyncio.to_thread(chromium.type, "edge\tuser=bob\r")
    explained = await shown(chromium, text_of("#explanation"), lambda result: "2 per day" in result)
    await asyncio.to_thread(chromium.run, "document.querySelector('#override-domain').focus()")
    await asyncio.to_thread(chromium.type, f"edge\tuser={EVIL}\t2h\twhy not\r")
    banned = await shown(chromium, text_of("#override-rows"))
    note = await asyncio.to_thread(chromium.run, text_of("#override-note"))
    after = await site.asking.ask(f"user={EVIL}")
    # Rows that come above would move it away from a mouse.
    await asyncio.to_thread(chromium.run, "document.querySelector('#override-rows button').focus()")
    await asyncio.to_thread(chromium.type, "\r")
    await shown(chromium, text_of("#override-rows"), lambda result: not result)
    callers = await shown(chromium, text_of("#caller-rows"))
    shards = await shown(chromium, CELLS)
    store = await asyncio.to_thread(chromium.run, text_of("#store"))
    newer = await asyncio.to_thread(chromium.run, NEWER)
    images = await asyncio.to_thread(chromium.run, "document.images.length")
    who = await asyncio.to_thread(chromium.run, text_of("#who"))
    await asyncio.to_thread(chromium.resize, 360, 800, dark=True)
    turned = await asyncio.to_thread(chromium.run, PLOTS)
    await goes_on(chromium, site, start_site)
    width = await asyncio.to_thread(chromium.run, "document.documentElement.scrollWidth")

    assert f"edge user={EVIL}" in denial
    assert "2 per day are used up; rule user" in denial
    assert re.search(r"; \d+ (h|min|s)( \d+ (min|s))? to wait", denial)
    assert "user=bob: the key alone matches" in explained
    assert f"user={TYPED}" in banned
    assert all(word in banned for word in ("ban", "why not", "alice"))
    assert "in force" in note
    assert after.code is Code.OVER_LIMIT
    assert site.asking.stats.override_decisions["ban"] == 1
    assert f"user={TYPED}" in callers
    assert (shards, store) == (SHARDS, RING)
    assert (images, who, newer) == (0, "alice", False)
    assert (width <= 360, turned) == (True, [0, 0])
    expected = ("401", "ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE")
    assert [each for each in chromium.faults if not any(one in each for one in expected)] == []


async def test_rows_fill_forms(
    start_site: StartSite, chromium: Chromium, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is chosen for a caller fills the form that does it, and changes nothing by itself.

    Of a grant it is shown what is left, and of each change who made it.
    """
    monkeypatch.setattr(feed, "_SECONDS", 0.5)
    site = await start_site(sockets=at_port())
    await asyncio.to_thread(chromium.visit, f"{site.url}/")
    await shown(chromium, text_of("#ok"), lambda result: result == "0")
    for _ in range(3):
        await site.asking.ask(f"user={EVIL}")
    await shown(chromium, text_of("#caller-rows"), lambda result: TYPED in result)
    await shown(chromium, text_of("#denial-list"))
    filled = [await chosen(chromium, *each) for each in CHOICES]
    inspected = await shown(chromium, text_of("#explanation"), lambda result: "used" in result)
    overridden = await asyncio.to_thread(chromium.run, text_of("#override-rows"))
    grant = {"kind": "grant", "domain": "edge", "descriptor": [["user", EVIL]], "hits": 4}
    await site.json_of("/overrides", grant, Content_Type="application/json")
    await shown(chromium, text_of("[data-grant]"), lambda result: result == "4 left")
    await asyncio.to_thread(chromium.run, "document.querySelector('#changes').open = true")
    changes = await shown(chromium, text_of("#change-list"))

    assert filled == [[element, "edge", f"user={TYPED}"] for *_, element in CHOICES]
    assert "2 per day: 2 used, none left; ends in " in inspected
    assert overridden == ""
    assert "local (127.0.0.1) override grant " in changes
    assert f"edge user={TYPED}, 4 hits" in changes
    assert chromium.faults == []


async def test_what_is_held(
    start_site: StartSite, chromium: Chromium, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inspect lists reservations, the first to end first, of many only some.

    A denial says that hits are held, or that there are too many for one reservation.
    """
    monkeypatch.setattr(feed, "_SECONDS", 0.5)
    limit = "{unit: day, requests_per_unit: 100, reservations: true}"
    rules = f"domain: edge\ndescriptors: [{{key: stream, rate_limit: {limit}}}]"
    site = await start_site(rules=rules, sockets=at_port())
    gateway = Gateway(site.asking, "edge")
    held = await gateway.reserve(30, "stream=x", seconds=20)
    for _ in range(21):
        await gateway.reserve(3, "stream=x", seconds=60)
    await asyncio.to_thread(chromium.visit, f"{site.url}/")
    await shown(chromium, text_of("#state"), lambda result: result == "serving")
    for name, value in (("domain", "edge"), ("descriptor", "stream=x")):
        fill = f"document.querySelector('#explain-{name}').value = '{value}'"
        await asyncio.to_thread(chromium.run, fill)
    await asyncio.to_thread(
        chromium.run, "document.querySelector('#explain-form [value=inspect]').click()"
    )
    inspected = await shown(chromium, text_of("#explanation"), lambda result: "used" in result)
    await shown(chromium, text_of("#ok"), lambda result: result == "0")
    await gateway.reserve(8, "stream=x")
    await gateway.reserve(101, "stream=y")
    denials = await shown(chromium, text_of("#denial-list"), lambda text: "stream=y" in text)

    assert "100 per day are used up or held; rule stream" in denials
    assert "one reservation may not hold 101 of 100 per day; rule stream" in denials
    assert "0 used, 93 held by 22 reservations, 7 left" in inspected
    lines = inspected.splitlines()
    listed = [line for line in lines if line.startswith("reservation ")]
    assert (len(listed), listed[0]) == (20, f"reservation {held[:8]}: 30 held, ends in 20 s")
    assert "and 2 more" in lines
    assert chromium.faults == []
