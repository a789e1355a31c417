"""What callers choose and cause does no harm in the log."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ratelimit_service.runtime import logs
from tests.service.asking import Asking, Away

EVIL = "a\r\n2026-01-01 00:00:00,000 ERROR forged \x1b[2J \u202e\u2028 \x00 \udcff"
HARMLESS = "a\\r\\n2026-01-01 00:00:00,000 ERROR forged \\x1b[2J \\u202e\\u2028 \\x00 \\udcff"

RULES = "domain: edge\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 2}}]\n"

log = logging.getLogger("ratelimit_service.tests")


def fail() -> None:
    raise ValueError(EVIL)


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("ratelimit_service")
    before = root.handlers[:], root.level, ours.level
    yield
    root.handlers, root.level, level = before
    ours.setLevel(level)


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    """A message is one line of what prints; below it a traceback is indented."""
    logs.configure("info", "text", 3)

    log.warning("no rule file has the domain %s", EVIL)
    try:
        fail()
    except ValueError:
        log.exception("a fault")

    first, second, *rest = capsys.readouterr().err.splitlines()
    assert first.endswith(f" WARNING worker 3: no rule file has the domain {HARMLESS}")
    assert second.endswith(" ERROR worker 3: a fault")
    assert rest[0] == "  Traceback (most recent call last):"
    assert all(line.startswith("  ") and line.isprintable() for line in rest)


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    """As JSON every event is one line of ASCII."""
    logs.configure("info", "json")

    log.warning("no rule file has the domain %s", EVIL)

    (line,) = capsys.readouterr().err.splitlines()
    assert line.isascii()
    assert json.loads(line)["@message"].endswith(HARMLESS)


def test_json_has_fields(capsys: pytest.CaptureFixture[str]) -> None:
    """What an event tells beside its sentence stands in fields; these replace none of its own."""
    logs.configure("info", "json", 2)

    log.info("reloaded", extra={"fields": {"rules": 4, "level": "none", "why": EVIL}})

    line = json.loads(capsys.readouterr().err)
    assert (line["rules"], line["level"], line["why"]) == (4, "info", EVIL)


def test_libraries_make_no_noise(capsys: pytest.CaptureFixture[str]) -> None:
    """At debug level our own lines are written, and of a library only what it warns of."""
    logs.configure("debug", "text")
    library = logging.getLogger("hpack.hpack")

    log.debug("ours")
    library.debug("decoded a header")
    library.info("connected")
    logging.getLogger().info("hello")
    library.warning("a table is full")

    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" DEBUG ")[2] or line.partition(" WARNING ")[2] for line in lines] == [
        "ours",
        "a table is full",
    ]


def test_lines_are_bounded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One place writes a thousand lines and then ten a second, which say what was left out."""
    now_us = 0
    monkeypatch.setattr(logs, "elapsed_us", lambda: now_us)
    logs.configure("info", "text")

    def write(number: int) -> None:
        for _ in range(number):
            log.warning("again")

    write(1_500)
    log.warning("something else")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1_001
    assert lines[-1].endswith("something else")
    now_us += 1_000_000
    write(100)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 10
    assert lines[0].endswith("again (500 more like this were left out)")
    assert lines[1].endswith("again")


async def test_events_have_the_documented_fields(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each event has the fields that the documents name."""
    caplog.set_level(logging.DEBUG)
    table = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    rows = re.findall(r"^\| (a .*|requests .*) \| (`.*) \|$", table, re.MULTILINE)
    documented = {frozenset(re.findall(r"`(\w+)`", names)) for _, names in rows}
    asking = Asking(tmp_path, RULES, store=Away())
    await asking.ask("user=bob")
    await asking.ask("user=bob", domain="other")
    await asking.service.decide([b"\xff"])
    (tmp_path / "0.yaml").write_text(RULES.replace("unit", "unti"))
    await asking.rules.reload()
    asking.rules.watched_by("no more can be watched")

    fields = [vars(each)["fields"] for each in caplog.records if "fields" in vars(each)]
    result = {frozenset(each) for each in fields}
    named = [each for each in result if not any(each <= row for row in documented)]
    assert named == []
    assert {"file", "line", "rule", "kind"} in result
    assert {"component", "reason"} in result
    assert {"requests", "policies", "reasons"} in result
    assert {"domain"} in result
    assert {"domain", "code", "descriptors"} in result
    assert any("revision" in each for each in result)
