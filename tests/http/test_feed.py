"""What the console is told of this moment."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ratelimit_service.http.feed import Feed
from ratelimit_service.http.routes import console
from ratelimit_service.model import Request
from ratelimit_service.service.tail import Tail
from ratelimit_service.settings import Settings
from ratelimit_service.wire import encode_request
from tests.http.conftest import AdminSite, StartSite
from tests.service.asking import Heard, descriptor
from tests.service.overriding import BAN, override
from tests.waiting import PATIENCE_SECONDS

Event = tuple[str, Any]
Messages = dict[float, Mapping[str, Any]]


@asynccontextmanager
async def events(site: AdminSite, *headers: str) -> AsyncIterator[AsyncIterator[Event]]:
    """The events of a page that watches."""
    reader, writer = await site.near.connected()
    head = ("GET /events HTTP/1.0", "Host: localhost", *headers, "", "")
    writer.write("\r\n".join(head).encode())
    await reader.readuntil(b"\r\n\r\n")
    yield read(reader)
    writer.close()


async def read(answer: asyncio.StreamReader) -> AsyncIterator[Event]:
    kind = ""
    async for line in answer:
        name, _, text = line.decode().rstrip("\n").partition(": ")
        if name == "event":
            kind = text
        elif name == "data":
            yield kind, json.loads(text)


async def message_with(stream: AsyncIterator[Event], name: str) -> Mapping[str, Any]:
    """The next message in which this is not 0 or empty."""
    async for kind, message in stream:
        if kind == "now" and message[name]:
            answer: Mapping[str, Any] = message
            return answer
    raise AssertionError("the stream has ended")


async def test_tells_what_is_counted(admin: AdminSite) -> None:
    """A message has what was decided since the one before, by rule, and each denial's reason."""
    async with events(admin) as stream:
        assert await anext(stream) == ("past", [])
        await message_with(stream, "serving")
        body = encode_request(Request("edge", (descriptor("user=<b>"),)))
        await admin.asking.service.decide([body] * 3)  # at once, so that one message has all

        message = await message_with(stream, "over")

    assert (message["ok"], message["over"], message["hits"]) == (2, 1, 3)
    assert message["rules"] == [["edge", "user", 3, 1, 1]]
    (line,) = message["denials"]
    assert json.loads(line)["descriptors"] == [{"entries": [["user", "<b>"]]}]
    assert json.loads(line)["rule"] == "user"


async def test_a_stream_ends_with_its_token(start_site: StartSite, tmp_path: Path) -> None:
    """Who has lost the right to ask is told nothing more, also if the question came before."""
    tokens, text = tmp_path / "tokens", "r" * 16
    tokens.write_text(f"read {text}\n")
    site = await start_site(Settings(admin_token_file=str(tokens)))
    renewed = site.listener.access.tokens
    assert renewed is not None
    async with events(site, f"Authorization: Bearer {text}") as stream:
        await message_with(stream, "serving")
        await asyncio.to_thread(tokens.write_text, f"read {text}x\n")
        for _ in range(2):
            await renewed.look()
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert len([each async for each in stream]) < 100


async def test_tells_what_changes_seldom(admin: AdminSite) -> None:
    """Now and then all are told of processes, overrides and callers."""
    for _ in range(3):
        await admin.asking.ask("user=bob")
    await admin.json_of(
        "/overrides", {"kind": "ban", "domain": "edge", "descriptor": [["user", "eve"]]}
    )

    async with events(admin) as stream:
        state = await anext(answer async for kind, answer in stream if kind == "state")

    assert state["processes"]["supervisor"]["pid"] == 7
    assert [each["kind"] for each in state["overrides"]["overrides"]] == ["ban"]
    assert [each["caller"] for each in state["callers"]["callers"]] == [[["user", "bob"]]]


async def test_is_worked_out_once_for_all(admin: AdminSite) -> None:
    """However many watch, numbers are read once for a message; while nobody does, not at all."""
    readings = 0
    sources = admin.operating.sources
    read_them = sources.read

    async def counted() -> object:
        nonlocal readings
        readings += 1
        return await read_them()

    sources.read = counted  # type: ignore[method-assign, assignment]
    async with events(admin) as one, events(admin) as other:
        answer: tuple[Messages, Messages] = {}, {}
        while len(answer[0].keys() & answer[1].keys()) < 2:
            for stream, seen in zip((one, other), answer, strict=True):
                message = await message_with(stream, "serving")
                seen[message["at"]] = message
    assert all(answer[0][at] == answer[1][at] for at in answer[0].keys() & answer[1].keys())
    assert (
        readings <= len({**answer[0], **answer[1]}) + 2
    )  # before the first one, and after the last

    feed = Feed(admin.operating)
    feed.join()
    feed.leave()
    before = readings
    await asyncio.sleep(0)

    assert (feed.watching, readings) == (0, before)


async def test_who_comes_later_is_told_the_past(admin: AdminSite) -> None:
    """A page that begins to watch gets what others were told before, without the denials."""
    async with events(admin) as first:
        before = await message_with(first, "serving")
        async with events(admin) as second:
            kind, past = await anext(second)

    assert kind == "past"
    assert past[0] == {name: answer for name, answer in before.items() if name != "denials"}


async def test_streams_end(admin: AdminSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many watch at most, and their streams end when the listener closes."""
    monkeypatch.setattr(console, "_MOST_WATCHING", 1)
    async with events(admin) as stream:
        await anext(stream)
        refused = await admin.ask("/events")
        await admin.listener.close()

        assert [kind async for kind, _ in stream if kind == "past"] == []
    assert (refused.status, "close one" in refused.text) == (503, True)


async def test_who_does_not_read_is_let_go(
    admin: AdminSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that takes no events any more holds no place, though its connection stays open."""
    monkeypatch.setattr(console, "WRITE_SECONDS", 0.1)
    bans = [replace(override(BAN, f"user={n}"), reason="x" * 500) for n in range(500)]
    await admin.overrides.change(bans, [])
    with admin.near.connection() as client:
        client.send(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not len(admin.listener.connections):
                await asyncio.sleep(0.01)
            while len(admin.listener.connections):
                await asyncio.sleep(0.01)


async def test_watching_leaves_the_decision_log_as_it_is(admin: AdminSite) -> None:
    """Who listens already hears of the same decisions while somebody watches, and afterwards."""
    service = admin.asking.service
    received, tail = Heard(service), Tail(service.events)

    tail.take()
    for _ in range(6):
        await admin.asking.ask("user=bob")
    seen = tail.take()
    tail.stop()
    for _ in range(2):
        await admin.asking.ask("user=bob")

    assert len(seen) == 4
    assert len(received) == 8
    assert tail.take() == []


async def test_a_flood_of_denials_is_cut(admin: AdminSite) -> None:
    """Of many denials at once so many are noted, and then again once these were told."""
    await admin.operating.ask("denials")
    for _ in range(100):
        await admin.asking.ask("user=bob")

    assert len(await admin.operating.ask("denials")) == 40  # type: ignore[arg-type]
    await admin.asking.ask("user=bob")
    assert len(await admin.operating.ask("denials")) == 1  # type: ignore[arg-type]


async def test_tree(start_site: StartSite) -> None:
    """The tree has each rule with its place and limits, and what is wrong with the files."""
    site = await start_site(
        rules="""
domain: edge
descriptors:
  - key: user
    descriptors:
      - {key: path, value: /a, on_limit: enqueue, shadow_mode: true,
         rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: other, rate_limit: {unit: day, requests_per_unit: 2, unit_multiplier: 1}}
"""
    )
    (site.directory / "bad.yaml").write_text("domain: bad\nunit: day\n")
    site.asking.rules.load()

    tree = await site.json_of("/tree")

    assert isinstance(tree, dict)
    domain = tree["domains"][1]
    first = domain["rules"][0]
    assert first.pop("source").endswith("0.yaml:7:10")
    assert first == {
        "rule": "user > path=/a",
        "way": [["user", ""], ["path", "/a"]],
        "limits": ["2 per day"],
        "shadow": True,
        "quota": False,
        "queue": True,
    }
    assert any("bad.yaml:2:1" in problem["text"] for problem in tree["problems"])


async def test_large_trees(start_site: StartSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of very many rules the first 2,000 are told, and that there are more; none in one go."""
    rule = "{key: user, value: '%d', rate_limit: {unit: day, requests_per_unit: 2}}"
    both = "[{key: a, descriptors: [%s]}, {key: b, rate_limit: {unlimited: true}}]"
    rules = both % ", ".join(rule % number for number in range(2_100))
    site = await start_site(rules=f"{{domain: edge, descriptors: {rules}}}")
    longest = [0]
    dumps = json.dumps

    def noted(answer: object) -> str:
        text = dumps(answer)
        longest[0] = max(longest[0], len(text))
        return text

    monkeypatch.setattr(json, "dumps", noted)
    tree: Any = await site.json_of("/tree")

    (domain,) = tree["domains"]
    assert [each["way"][1] for each in domain["rules"]] == [["user", str(n)] for n in range(2_000)]
    assert (tree["more"], tree["unserved"], tree["problems"]) == (True, [], [])
    assert longest[0] < 1_000


async def test_explains(admin: AdminSite) -> None:
    """Which rule a descriptor meets is told step by step; what is none is told with its form."""
    result = await admin.json_of("/explain?domain=edge&descriptor=user%3Dbob")
    wrong = [
        await admin.ask(f"/explain?{query}")
        for query in ("", "domain=edge", "domain=edge&descriptor=%3Db")
    ]

    assert isinstance(result, dict)
    assert (result["rule"], result["limits"]) == ("user", ["2 per day"])
    assert [step["entry"] for step in result["steps"]] == [["user", "bob"]]
    assert [each.status for each in wrong] == [400] * 3
    assert all("key=value" in each.text for each in wrong)
