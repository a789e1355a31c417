"""A source of rules is one file and one line: held by one that is not shipped."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path

import pytest

from ratelimit_service.errors import RulesError, SettingsError
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.rules.load import Rules
from ratelimit_service.rules.source import LastGoodFiles, SourceContent
from ratelimit_service.rules.sources import SOURCES, source_of
from ratelimit_service.rules.watch import watch
from ratelimit_service.settings import Settings
from tests.rules.from_command import FromCommand
from tests.rules.test_load import file_of
from tests.waiting import PATIENCE_SECONDS


@pytest.fixture(autouse=True)
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SOURCES, "exec", FromCommand)  # the one line
    monkeypatch.setattr("tests.rules.from_command._LOOK_SECONDS", 0.01)


def rules_from(location: str, health: Health | None = None) -> Rules:
    source = source_of(Settings(rules=location))
    return Rules(source, stats=Stats(), health=health or Health())


def paths(rules: Rules) -> list[str]:
    return [rule.path for each in rules.snapshot.domains.values() for rule in each.rules]


async def test_source_of_ones_own(tmp_path: Path) -> None:
    """What it finds is built, kept while it is good, and told of, as rule files are."""
    file = tmp_path / "printed"
    file.write_text(file_of("edge", "one"))
    health = Health()
    rules = rules_from(f"exec://cat {shlex.quote(str(file))}", health)
    rules.load()
    assert paths(rules) == ["one"]
    watching = asyncio.create_task(watch(rules))

    async with asyncio.timeout(PATIENCE_SECONDS):
        file.write_text(file_of("edge", "two"))
        while paths(rules) != ["two"]:
            await asyncio.sleep(0.001)
        file.write_text("domain: edge\ndescriptors: [{kye: x}]\n")
        while "2:16" not in health.faults.get("rules", ""):
            await asyncio.sleep(0.001)
        assert f"{rules.source.location}:2:16" in health.faults["rules"]
        file.unlink()
        while "returned non-zero exit status" not in health.faults["rules"]:
            await asyncio.sleep(0.001)
        assert paths(rules) == ["two"]
        file.write_text(file_of("edge", "three"))
        while paths(rules) != ["three"] or health.faults:
            await asyncio.sleep(0.001)
    watching.cancel()


@pytest.mark.usefixtures("programs")
def test_source_that_has_nothing() -> None:
    """A first read that fails says why, and what to do."""
    with pytest.raises(RulesError, match=r"exec://false: .*name another with --rules"):
        rules_from("exec://false").load()


class Later(FromCommand):
    """Has nothing at the start."""

    def first(self, former: LastGoodFiles | None) -> SourceContent | None:
        return None


async def test_rules_begin_when_everybody_has_them(tmp_path: Path) -> None:
    """Who waits for the first rules waits until those who are told of them have them, too.

    Else a worker that starts just then would decide without rules.
    """
    file = tmp_path / "rules.yaml"
    file.write_text("domain: one\ndescriptors: [{key: a, rate_limit: {unlimited: true}}]\n")
    notified, handed_on = asyncio.Event(), asyncio.Event()

    async def tell() -> None:
        notified.set()
        await handed_on.wait()

    source = Later(f"exec://cat {file}")
    rules = Rules(source, stats=Stats(), health=Health(), reloaded=tell)
    rules.load()
    reading = asyncio.create_task(rules.reload())
    waiting = asyncio.create_task(rules.begin())

    await notified.wait()
    await asyncio.sleep(0)
    assert rules.begun
    assert not waiting.done()
    handed_on.set()
    await waiting
    await reading


def test_no_such_source() -> None:
    """A kind of source that there is not is an error that names those that there are."""
    with pytest.raises(SettingsError, match=r"--rules ftp://x: write a path, or one of .*exec://"):
        rules_from("ftp://x")


def test_no_source_at_all() -> None:
    """An unset variable in a shell does not make all files of the directory here rules."""
    with pytest.raises(SettingsError, match="--rules is empty: name a file or a directory"):
        rules_from("")
