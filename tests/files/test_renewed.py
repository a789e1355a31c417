"""Files are read anew when they change, and what is bad in them does not come into force."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from pathlib import Path

import pytest

from ratelimit_service.errors import SettingsError
from ratelimit_service.files import renewed
from ratelimit_service.files.renewed import Renewed
from ratelimit_service.observability.health import Health
from tests.waiting import PATIENCE_SECONDS


class Pair:
    """Two files that belong together if they say the same."""

    def __init__(self, directory: Path) -> None:
        self.one, self.other = directory / "one", directory / "other"
        self.write("first", "first")
        self.health = Health()
        self.reloads: Counter[str] = Counter()
        self.logged: list[str] = []
        self.renewed = Renewed(
            "pair", [self.one, self.other], self._read, self.health, self.reloads
        )
        self.renewed.listen(self._hear)

    def write(self, one: str, other: str) -> None:
        self.one.write_text(one)
        self.other.write_text(other)

    async def look(self, times: int) -> None:
        for _ in range(times):
            await self.renewed.look()

    def _read(self) -> str:
        try:
            one, other = self.one.read_text(), self.other.read_text()
        except OSError as error:
            raise SettingsError(f"cannot be read: {error}") from error
        if one != other:
            raise SettingsError(f"{one} and {other} do not belong together")
        return one

    async def _hear(self, value: str) -> None:
        self.logged.append(value)


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


async def test_change(pair: Pair) -> None:
    """A change is taken over once, and told."""
    pair.write("second", "second")

    await pair.look(5)

    assert (pair.renewed.value, pair.logged) == ("second", ["second"])
    assert pair.reloads == {"success": 1}


async def test_fault_while_reading(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A fault of ours with one change is logged, and the next change is seen all the same."""
    monkeypatch.setattr(renewed, "_LOOK_SECONDS", 0)
    faults = iter([ZeroDivisionError("a fault")])

    async def fail(_: str) -> None:
        for fault in faults:
            raise fault

    pair.renewed.listen(fail)
    watching = asyncio.create_task(pair.renewed.watch())
    for value in ("second", "third"):
        pair.write(value, value)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while pair.logged[-1:] != [value]:
                await asyncio.sleep(0)
    watching.cancel()

    assert pair.logged == ["second", "third"]
    assert "pair: files could not be read anew: please report this" in caplog.text


async def test_nothing_has_changed(pair: Pair) -> None:
    """Files that stay as they are are not read again."""
    await pair.look(5)

    assert (pair.logged, pair.reloads) == ([], {})


async def test_files_that_are_just_written(pair: Pair) -> None:
    """A pair of which only one is new yet is no fault: it is read when it has come to rest."""
    pair.write("second", "first")
    await pair.look(1)
    pair.write("second", "second")
    await pair.look(1)
    before = pair.renewed.value
    await pair.look(1)

    assert (before, pair.renewed.value) == ("first", "second")
    assert (pair.reloads, pair.health.faults) == ({"success": 1}, {})


async def test_bad_pair(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    """A bad pair changes nothing; log, health and the metric say so, once."""
    caplog.set_level(logging.WARNING)
    pair.write("second", "third")

    await pair.look(5)

    fault = "second and third do not belong together; what was read before stays in force"
    assert (pair.renewed.value, pair.logged) == ("first", [])
    assert pair.health.faults == {"pair": fault}
    assert pair.reloads == {"error": 1}
    assert [record.getMessage() for record in caplog.records] == [f"degraded: pair: {fault}"]


async def test_files_that_vanish_and_come_back(pair: Pair) -> None:
    """Files that are gone are a fault for as long as they are gone, also if the same come back."""
    away = pair.one.with_name("away")
    pair.one.rename(away)
    await pair.look(2)
    faults = pair.health.faults
    away.rename(pair.one)

    await pair.look(2)

    assert "cannot be read" in faults["pair"]
    assert (pair.renewed.value, pair.health.faults) == ("first", {})
    assert pair.reloads == {"error": 1, "success": 1}


async def test_turned_link(tmp_path: Path) -> None:
    """A Secret's files are links through `..data`, which Kubernetes turns to another directory."""
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        for file in ("one", "other"):
            (tmp_path / name / file).write_text(name)
    data = tmp_path / "..data"
    data.symlink_to("old")
    for file in ("one", "other"):
        (tmp_path / file).symlink_to(f"..data/{file}")
    files = [tmp_path / "one", tmp_path / "other"]
    renewed = Renewed("pair", files, files[0].read_text, Health(), Counter())
    (tmp_path / "..next").symlink_to("new")
    (tmp_path / "..next").replace(data)

    for _ in range(2):
        await renewed.look()

    assert renewed.value == "new"
