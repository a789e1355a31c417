"""`ratelimit top` and `ratelimit inspect`, against an admin listener in this process."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import select
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ratelimit_service.cli.terminal import Terminal, terminal
from ratelimit_service.cli.top import page, watch
from ratelimit_service.errors import RateLimitError
from ratelimit_service.eventloop.clock import now_us
from ratelimit_service.model import Descriptor, Entry
from ratelimit_service.settings import Settings
from tests.cli.inside import Inside, Printed
from tests.http.conftest import AdminSite
from tests.service.reserving import Gateway

RULES = """
domain: edge
descriptors:
- {key: user, rate_limit: {unit: day, requests_per_unit: 10}}
- {key: job, rate_limit: {unit: minute, requests_per_unit: 3, algorithm: concurrency}}
- {key: org, rate_limit: {unit: day, requests_per_unit: 10, sync: leased}}
- {key: log, rate_limit: {unit: minute, requests_per_unit: 3, algorithm: sliding_log}}
- {key: stream, rate_limit: {unit: day, requests_per_unit: 100, reservations: true}}
"""


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[AdminSite]:
    result = AdminSite(tmp_path / "site", Settings(), RULES)
    await result.start()
    yield result
    await result.listener.close()


async def ask(ratelimit: Inside, site: AdminSite, *arguments: object) -> Printed:
    return await asyncio.to_thread(ratelimit, *arguments, "--admin", f"127.0.0.1:{site.port}")


async def test_top_is_a_table_without_a_terminal(ratelimit: Inside, site: AdminSite) -> None:
    """Where nobody sits in front of it the table comes once, without anything that acts there."""
    for _ in range(13):
        await site.asking.ask("user=ann")
    await site.asking.ask("user=\x1b[2J\u202e", hits=9)

    result = await ask(ratelimit, site, "top")
    near = await ask(ratelimit, site, "top", "--order", "near", "--once")

    assert result.code == 0
    assert result.out.splitlines() == [
        "the last minute, furthest over their limit first, of one process",
        "OVER  NEAR  HITS     LEFT  LIMIT       RULE        CALLER",
        r"   3     2    13  0 of 10  10 per day  edge: user  user=ann",
    ]
    assert near.out.splitlines()[2:] == [
        r"   3     2    13  0 of 10  10 per day  edge: user  user=ann",
        r"   0     1     9  1 of 10  10 per day  edge: user  user=\x1b[2J\u202e",
    ]


async def test_top_for_programs(ratelimit: Inside, site: AdminSite) -> None:
    """--json is what the listener answers."""
    await site.asking.ask("user=ann", hits=11)

    result = await ask(ratelimit, site, "top", "--json", "--window", "hour", "--limit", 1)

    answer = json.loads(result.out)
    assert (answer["window"], answer["order"], len(answer["callers"])) == ("hour", "over", 1)
    nobody = await ask(ratelimit, site, "top", "--domain", "other")
    assert nobody.out.splitlines()[1:] == ["nobody"]


class Keyboard:
    """A screen in front of which somebody presses these keys."""

    def __init__(self, keys: str) -> None:
        self._keys = list(keys)
        self.pages: list[Sequence[str]] = []

    def show(self, lines: Sequence[str]) -> None:
        self.pages.append(lines)

    def key(self, seconds: float) -> str:
        assert seconds == 2
        return self._keys.pop(0).strip()


def page_of(order: str = "over", window: str = "minute") -> Any:
    return {
        "order": order,
        "window": window,
        "here": 2,
        "elsewhere": 0,
        "left_out": 0,
        "callers": [],
    }


def test_what_is_cut_ends_in_dots() -> None:
    """A limit or rule of more than 40 characters shows that there is more of it."""
    row = {
        "over": 1,
        "over_error": 0,
        "near": 0,
        "near_error": 0,
        "hits": 1,
        "hits_error": 0,
        "remaining": 0,
        "capacity": 5,
        "domain": "llm",
        "rule": "r" * 35,
        "key": "k",
        "limit": "30000 per minute, sliding_window, denied hits count",
        "caller": [["user", "ann"]],
    }

    assert page({**page_of(), "callers": [row]})[2].split("  ")[-3:] == [
        "30000 per minute, sliding_window, denie…",
        "llm: " + "r" * 35,
        "user=ann",
    ]


def test_keys_choose_what_is_shown() -> None:
    """Keys choose order and time; other keys and none refresh; a fault is shown, and goes again."""
    request = []

    def ask(order: str, window: str) -> Any:
        request.append((order, window))
        if len(request) == 3:
            raise RateLimitError("the service is away")
        return page_of(order, window)

    screen = Keyboard("nm xhq")
    watch(ask, page_of(), screen, 2)

    assert request == [
        ("near", "minute"),
        ("near", "hour"),
        ("near", "hour"),
        ("near", "hour"),
        ("hits", "hour"),
    ]
    heads = [lines[0][10:] for lines in screen.pages]
    assert heads[0] == "the last minute, furthest over their limit first, of 2 workers"
    assert heads[3] == "the service is away"
    assert heads[5] == "the last hour, busiest first, of 2 workers"


@pytest.mark.parametrize(
    ("here", "elsewhere", "expected"),
    [
        (1, 0, "of one process"),
        (2, 0, "of 2 workers"),
        (1, 1, "of one process and 1 elsewhere"),
        (2, 4, "of 2 workers and 4 elsewhere"),
    ],
)
def test_the_page_says_of_whom_it_is(here: int, elsewhere: int, expected: str) -> None:
    """Workers of one service are told from processes that have left records in the same Redis."""
    (head, *_) = page({**page_of(), "here": here, "elsewhere": elsewhere})
    assert head == f"the last minute, furthest over their limit first, {expected}"


def test_rows_say_how_sure_they_are() -> None:
    """A number that may be higher has a ~; a caller without a name is known by its counter."""
    row = {
        "domain": "edge",
        "rule": "user",
        "caller": None,
        "key": "{00000000}f60#abc",
        "limit": "2 per day",
        "capacity": 2,
        "remaining": None,
        "over": 70_000,
        "over_error": 12,
        "near": 0,
        "near_error": 0,
        "hits": 0,
        "hits_error": 0,
    }
    lines = page({**page_of(), "left_out": 5, "callers": [row]})
    assert "no room" in lines[1]
    assert lines[-1].split() == [
        "~70000", "0", "0", "2", "per", "day", "edge:", "user", "counter", "{00000000}f60#abc",
    ]  # fmt: skip


def test_the_terminal_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines are cut to the screen and escaped; afterwards the cursor and the old page are back."""
    ours, theirs = pty.openpty()
    with os.fdopen(os.dup(theirs)) as stdin, os.fdopen(theirs, "w") as stdout:
        monkeypatch.setattr(sys, "stdin", stdin)
        monkeypatch.setattr(sys, "stdout", stdout)
        monkeypatch.setenv("COLUMNS", "20")
        monkeypatch.setenv("LINES", "4")
        with terminal() as screen:
            screen.show(["a\x1bb" + "c" * 50, "2", "3", "4", "5"])
            os.write(ours, b"q")
            key = Terminal().key(5)
        shown = ""
        while not shown.endswith("\x1b[?1049l") and select.select([ours], [], [], 5)[0]:
            shown += os.read(ours, 4_096).decode()
    os.close(ours)

    assert key == "q"
    assert r"a\x1bb" + "c" * 13 + "\x1b[K" in shown
    assert "4" not in shown.replace("1049", "")
    assert shown.endswith("\x1b[?25h\x1b[?1049l")


async def test_inspect_shows_counters(ratelimit: Inside, site: AdminSite) -> None:
    """Each limit with what is used and left, each lease and each hit of a log with its age."""
    await site.asking.ask("user=ann", hits=4)
    await site.asking.ask("job=x", "log=x", hits=2)
    site.asking.now_us += 5_000_000

    user = await ask(ratelimit, site, "inspect", "edge", "user=ann")
    job = await ask(ratelimit, site, "inspect", "edge", "job=x")
    log = await ask(ratelimit, site, "inspect", "edge", "log=x")
    none = await ask(ratelimit, site, "inspect", "edge", "nobody=x")

    lines = user.out.splitlines()
    assert lines[0].startswith("edge: rule user (")
    assert lines[1].startswith("10 per day: 4 used, 6 left; ends in ")
    assert lines[2].endswith("}f86400:4:edge4:user=3:ann")
    assert "2 used, 1 left; ends in 55 s" in job.out
    assert ", 2 hits, 5.0 s old, ends in 55 s" in job.out
    assert log.out.splitlines()[3] == "  2 hits, 5.0 s old, ends in 55 s"
    assert (none.code, "rule" in none.out) == (0, True)


async def test_in_memory_nothing_is_held_ahead(ratelimit: Inside, site: AdminSite) -> None:
    """A leased limit is exact with counters in memory, and that is said."""
    await site.asking.ask("org=x", hits=4)

    org = await ask(ratelimit, site, "inspect", "edge", "org=x")

    assert org.out.splitlines()[1].startswith(
        "10 per day, leased: 4 used (exact: counters in memory are not leased), 6 left; ends in "
    )


async def test_inspect_shows_the_numbers_that_hold(ratelimit: Inside, site: AdminSite) -> None:
    """Where an override sets another number that one is shown, with the override and the rule's."""
    await site.asking.ask("user=ann", hits=3)
    result = await ask(
        ratelimit, site, "limit", "edge", "user=ann", "--requests", 5, "--reason", "spam", "--json"
    )
    name = json.loads(result.out)["override"]["id"]
    await ask(ratelimit, site, "limit", "edge", "user=cy", "--requests", "2")
    await site.asking.ask("user=cy", hits=2)
    await ask(ratelimit, site, "grant", "edge", "job=x", "--hits", "2")

    ann = await ask(ratelimit, site, "inspect", "edge", "user=ann")
    cy = await ask(ratelimit, site, "inspect", "edge", "user=cy")
    job = await ask(ratelimit, site, "inspect", "edge", "job=x")
    dan = await ask(ratelimit, site, "inspect", "edge", "user=dan")
    answer = json.loads((await ask(ratelimit, site, "inspect", "edge", "user=ann", "--json")).out)

    lines = ann.out.splitlines()
    assert lines[1].startswith("5 per day: 3 used, 2 left; ends in ")
    assert lines[3] == f"  set by limit {name}; the rule has 10 per day"
    assert lines[-1].startswith(f"override: limit {name}: edge user=ann, 5 requests, ")
    assert lines[-1].endswith(": spam")
    assert "\n2 per day: 2 used, none left; ends in " in cy.out
    assert "\n5 at a time" in job.out
    assert "\n  set by grant " in job.out
    assert "; the rule has 3 at a time" in job.out
    assert "\n10 per day: 0 used, 10 left\n" in dan.out
    assert "set by" not in dan.out
    assert "\noverride: " not in dan.out
    (counter,) = answer["counters"]
    assert (counter["capacity"], counter["remaining"], counter["over"]) == (5, 2, False)
    assert counter["by_override"] == [{"kind": "limit", "id": name}]
    assert counter["rule_limit"] == "10 per day"


async def test_inspect_shows_what_is_set_aside(ratelimit: Inside, site: AdminSite) -> None:
    """Whoever is banned or exempt is shown so: no limit decides, whatever its counter holds."""
    await ask(ratelimit, site, "ban", "edge", "user=b*")
    await ask(ratelimit, site, "exempt", "edge", "user=eve")
    bob = await ask(ratelimit, site, "inspect", "edge", "user=bob")
    eve = await ask(ratelimit, site, "inspect", "edge", "user=eve")
    answer = json.loads((await ask(ratelimit, site, "inspect", "edge", "user=bob", "--json")).out)

    (ban,) = answer["overrides"]
    assert (ban["kind"], ban["entries"]) == ("ban", [["user", "b*"]])
    assert f"\n  set aside: ban {ban['id']} denies every hit\n" in bob.out
    assert "\n  set aside: exempt " in eve.out
    assert " lets every hit pass, and none is counted\n" in eve.out
    assert answer["counters"][0]["by_override"] == [{"kind": "ban", "id": ban["id"]}]


async def test_inspect_tells_what_is_left_of_grants(ratelimit: Inside, site: AdminSite) -> None:
    """A grant of the caller is shown with the hits that are left of it, spent or not."""
    site.asking.now_us = now_us()
    granted = await ask(ratelimit, site, "grant", "edge", "user=ann", "--hits", "3", "--json")
    name = json.loads(granted.out)["override"]["id"]
    fresh = await ask(ratelimit, site, "inspect", "edge", "user=ann")
    for _ in range(2):
        await site.asking.ask("user=ann")
    spent = await ask(ratelimit, site, "inspect", "edge", "user=ann")
    answer = json.loads((await ask(ratelimit, site, "inspect", "edge", "user=ann", "--json")).out)

    assert f"\n  grant {name}: 3 of 3 hits left, until " in fresh.out
    assert spent.out.splitlines()[1] == "10 per day: 0 used, 10 left"
    assert f"\n  grant {name}: 1 of 3 hits left, until " in spent.out
    (counter,) = answer["counters"]
    assert [(each["id"], each["remaining"]) for each in counter["grants"]] == [(name, 1)]


async def test_top_of_a_domain_that_is_none(ratelimit: Inside, site: AdminSite) -> None:
    """Whoever misspells a domain is not told that nobody is limited there."""
    result = await ask(ratelimit, site, "top", "--once", "--domain", "egde")
    assert result.err == "note: there is no domain 'egde': there are edge\n"
    assert (await ask(ratelimit, site, "top", "--domain", "edge")).err == ""


async def test_top_of_a_rule_that_is_none(ratelimit: Inside, site: AdminSite) -> None:
    """The same of a rule: there it is said which there are."""
    result = await ask(ratelimit, site, "top", "--once", "--rule", "usr")
    assert result.err == "note: there is no rule 'usr': there are user, job, org, log, stream\n"
    assert (await ask(ratelimit, site, "top", "--rule", "user")).err == ""
    screen = Keyboard("q")
    watch(lambda *_: page_of(), {**page_of(), "note": "there is no rule 'usr'"}, screen, 2)
    assert screen.pages[0][2] == "note: there is no rule 'usr'"


FORGING = "bob\nban 5d1f02ab31: edge carol"


async def test_a_caller_writes_no_line_of_its_own(ratelimit: Inside, site: AdminSite) -> None:
    """A line end in a caller's value is shown as one, and begins no other line of a list."""
    for _ in range(11):
        await site.asking.ask(Descriptor((Entry("user", FORGING),)))
    await ask(ratelimit, site, "exempt", "edge", f"user={FORGING}", "--reason", "a\nb")
    for words, lines in (
        (("top", "--once"), 3),
        (("inspect", "edge", f"user={FORGING}"), 5),
        (("overrides",), 1),
    ):
        result = await ask(ratelimit, site, *words)
        assert len(result.out.splitlines()) == lines, words
        assert r"bob\nban" in result.out


@pytest.mark.parametrize(
    "words",
    [
        ("inspect", "edge", "user=\udcff"),
        ("inspect", "\udcff", "user=a"),
        ("top", "--domain", "\udcff"),
        ("top", "--rule", "\udcff"),
        ("queue", "\udcff"),
        ("reset", "edge", "user=\udcff"),
        ("ban", "\udcff", "user=a"),
        ("ban", "edge", "user=a", "--reason", "\udcff"),
        ("overrides", "remove", "\udcff"),
        ("explain", "edge", "user=\udcff"),
        ("hit", "\udcff", "user=a"),
        ("hit", "edge", "user=\udcff"),
        ("why", "edge", "user=\udcff", "--log", "log"),
    ],
)
def test_words_that_are_no_utf8(ratelimit: Inside, words: Sequence[str]) -> None:
    """What a shell hands over in another encoding is a mistake, told in one line."""
    result = ratelimit(*words)

    assert result.code == 2
    assert "\\udcff" in result.err
    assert "is no UTF-8" in result.err


async def test_tokens_as_files_have_them(
    ratelimit: Inside, site: AdminSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line end behind a token is none of it; what can be no token is told in one line."""
    monkeypatch.setenv("RATELIMIT_ADMIN_TOKEN", "0123456789abcdef\n")
    assert (await ask(ratelimit, site, "overrides")).code == 0
    for bad in ("two words", "t\u00f6k\u00e9n", "\udcff"):
        monkeypatch.setenv("RATELIMIT_ADMIN_TOKEN", bad)
        result = await ask(ratelimit, site, "overrides")
        assert (result.code, "RATELIMIT_ADMIN_TOKEN is no token" in result.err) == (2, True)


async def test_inspect_for_programs(ratelimit: Inside, site: AdminSite) -> None:
    """--json is what the listener answers, in one object; what is no descriptor is an error."""
    result = await ask(ratelimit, site, "inspect", "edge", r"user=a\,b", "--json")
    wrong = await ask(ratelimit, site, "inspect", "edge", "=x")
    away = await asyncio.to_thread(ratelimit, "top", "--admin", "127.0.0.1:1")

    assert json.loads(result.out)["descriptor"] == [["user", "a,b"]]
    assert (wrong.code, "has an entry without key" in wrong.err) == (2, True)
    assert (away.code, "no admin listener answers at 127.0.0.1:1" in away.err) == (2, True)


async def test_why_without_a_log(ratelimit: Inside, site: AdminSite) -> None:
    """The listener tells the last denials, how the counters stand, and which overrides decide."""
    await site.json_of("/denials")  # from now on some are noted
    await site.asking.ask("user=ann", hits=11)
    await ask(ratelimit, site, "ban", "edge", "user=eve", "--reason", "spam")
    await site.asking.ask("user=eve")

    ann = await ask(ratelimit, site, "why", "edge", "user=ann")
    eve = await ask(ratelimit, site, "why", "edge", "user=eve")
    again = await ask(ratelimit, site, "why", "edge", "user=ann", "--at", "2025-11-22T14:03:07Z")
    as_json = await ask(ratelimit, site, "why", "edge", "user=ann", "--json")

    first, second = ann.out.splitlines()
    assert (ann.code, ann.err) == (0, "")
    assert re.match(r"denied at \d\d:\d\d:\d\d UTC by `user` \(.*:4\): 10 a day, ", first)
    assert second.startswith("now: 10 per day: 0 used, 10 left")
    assert " UTC: by override (ban " in eve.out
    assert eve.out.splitlines()[-1].startswith("override: ban ")
    assert again.code == 1
    assert again.err.endswith("; the nearest:\n")
    assert again.out.splitlines()[0] == first
    assert json.loads(as_json.out)["rule"] == "user"


async def test_why_knows_of_no_denial(ratelimit: Inside, site: AdminSite) -> None:
    """Where the listener has noted none it says what to switch on, and how the counters stand."""
    result = await ask(ratelimit, site, "why", "edge", "user=bob", "--wait", "0s")

    assert result.code == 1
    assert "has noted no denial of user=bob in edge" in result.err
    assert "--wait 1m" in result.err
    assert "--decision-log PATH" in result.err
    assert result.out.startswith("now: 10 per day: 0 used, 10 left")


async def test_why_with_the_counters(ratelimit: Inside, site: AdminSite, tmp_path: Path) -> None:
    """--now tells how the counters stand beside what the log says, also where it has no denial."""
    denial = {
        "v": 1,
        "time": "2025-11-22T14:03:07Z",
        "domain": "edge",
        "rule": "user",
        "by": "count",
    }
    denial |= {"descriptors": [{"entries": [["user", "ann"]]}], "code": "OVER_LIMIT"}
    log = tmp_path / "decisions.jsonl"
    log.write_text(json.dumps(denial) + "\n")
    await site.asking.ask("user=ann", hits=4)

    result = await ask(ratelimit, site, "why", "edge", "user=ann", "--log", log, "--now")
    none = await ask(ratelimit, site, "why", "edge", "user=bob", "--log", log, "--now")
    other = await ask(ratelimit, site, "why", "edge", "user=ann", "--log", log, "--now", "--json")

    first, second = result.out.splitlines()
    assert (result.code, first[:20]) == (0, "denied at 14:03:07 U")
    assert second.startswith("now: 10 per day: 4 used, 6 left; ends in ")
    assert (none.code, none.out.startswith("now: 10 per day: 0 used, 10 left")) == (1, True)
    assert [each["count"] for each in json.loads(other.out)["now"]] == [4]


async def test_inspect_and_why_tell_who_holds(ratelimit: Inside, site: AdminSite) -> None:
    """How many reservations hold beside a counter, and of those that end first how much each."""
    gateway = Gateway(site.asking, "edge")
    held = await gateway.reserve(30, "stream=x", seconds=20)
    one = await ask(ratelimit, site, "inspect", "edge", "stream=x")
    for _ in range(21):
        await gateway.reserve(3, "stream=x", seconds=60)
    several = await ask(ratelimit, site, "inspect", "edge", "stream=x")
    why = await ask(ratelimit, site, "why", "edge", "stream=x", "--at", "14:03", "--now")

    assert ": 0 used, 30 held by 1 reservation, 70 left" in one.out
    assert one.out.splitlines()[3:] == [f"  reservation {held[:8]}: 30 hits held, ends in 20 s"]
    lines = several.out.splitlines()
    assert "0 used, 93 held by 22 reservations, 7 left" in lines[1]
    assert lines[3] == one.out.splitlines()[3]
    assert re.fullmatch("  reservation [0-9a-f]{8}: 3 hits held, ends in 60 s", lines[22])
    assert lines[23:] == ["  and 2 more reservations"]
    assert ": 0 used, 93 held by 22 reservations, 7 left" in why.err + why.out
