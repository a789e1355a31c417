"""Overrides of a service that counts in memory, kept in a file."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from ratelimit_service.errors import SettingsError, StoreError
from ratelimit_service.stores.overrides import OverridesInMemory
from tests.service.overriding import BAN, LIMIT, override
from tests.stores.cases import T
from tests.stores.conftest import Time
from tests.stores.overriding import Process


async def test_overrides_are_kept_in_a_file(tmp_path: Path, clock: Time) -> None:
    """With counters in memory a file keeps overrides over a restart; it is replaced as a whole."""
    path = tmp_path / "overrides.json"
    process, ban = Process(OverridesInMemory(str(path)), clock), override(BAN)
    limit = override(LIMIT, "user=*", 7, until_us=T + 5)
    await process.overrides.change([ban, limit], [])

    again = Process(OverridesInMemory(str(path)), clock)
    await again.overrides.refresh()
    assert again.known == [ban, limit]
    await again.overrides.change([], [ban.id])
    assert [each["id"] for each in json.loads(path.read_text())["overrides"]] == [limit.id]
    assert files(tmp_path) == ["overrides.json"]

    clock.now_us = T + 5
    await again.overrides.refresh()
    assert again.known == []


async def test_changes_at_once_are_all_kept(tmp_path: Path, clock: Time) -> None:
    """While the file is replaced others may change overrides too: none of it is lost."""
    path = tmp_path / "overrides.json"
    process = Process(OverridesInMemory(str(path)), clock)
    bans = [override(BAN, f"user={number}") for number in range(20)]
    await asyncio.gather(*[process.overrides.change([each], []) for each in bans])

    again = Process(OverridesInMemory(str(path)), clock)
    await again.overrides.refresh()
    assert process.known == again.known == bans


def files(directory: Path) -> list[str]:
    return [each.name for each in directory.iterdir()]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "cannot be used: it is no JSON: line 1, column 2: a name in double quotes must"),
        ("[" * 200_000, "cannot be used: it is no JSON: it is nested too deep; mend it"),
        ("9" * 5_000, "cannot be used: it is no JSON: a number has too many digits; mend it"),
        ("[]", "cannot be used: it is no object with a list of overrides; mend it"),
        ('{"v": 1}', "cannot be used: it is no object with a list of overrides; mend it"),
        ('{"v": 1, "overrides": [3]}', "cannot be used: override 1 is no object; mend it"),
        ('{"v": 2, "overrides": []}', "another version"),
        ('{"v": 1, "overrides": [{"v": 1, "kind": "banish"}]}', "ban, exempt, limit, grant"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, text: str, said: str) -> None:
    """A file that is damaged, or of another version, is an error that names it."""
    path = tmp_path / "overrides.json"
    path.write_text(text)

    with pytest.raises(SettingsError, match=f"overrides.json.*{said}"):
        OverridesInMemory(str(path))


async def test_a_file_that_cannot_be_written(tmp_path: Path, clock: Time) -> None:
    """If the file cannot be written nothing has changed, and the error says so."""
    directory = tmp_path / "gone"
    directory.mkdir()
    process = Process(OverridesInMemory(str(directory / "overrides.json")), clock)
    directory.rmdir()

    with pytest.raises(StoreError, match="nothing was changed"):
        await process.overrides.change([override(BAN)], [])
    assert process.known == []
