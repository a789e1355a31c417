"""Colours: in a terminal, or where they are asked for, and never of what others have written."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from ratelimit_service.cli.say import painted
from tests.cli.inside import Inside

RED, GREEN, END = "\x1b[31m", "\x1b[32m", "\x1b[0m"
RULES = "domain: a\ndescriptors: [{key: user, rate_limit: {unit: minute, requests_per_unit: %s}}]\n"


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    file = tmp_path / "bad.yaml"
    file.write_text(RULES % "x")
    return file


def test_always_and_never(ratelimit: Inside, bad: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a terminal there is no colour but with --color always, which goes before NO_COLOR."""
    plain = ratelimit("lint", bad)
    monkeypatch.setenv("NO_COLOR", "1")

    coloured = ratelimit("lint", "--color", "always", bad)

    assert "\x1b" not in plain.out
    assert f"{RED}{bad}:2:73:{END} " in coloured.out
    assert click.unstyle(coloured.out) == plain.out
    assert ratelimit("lint", "--color", "never", bad).out == plain.out


def test_programs_get_no_colours(ratelimit: Inside, bad: Path) -> None:
    """Formats for programs have none, whatever is asked for."""
    for shape in ("json", "github", "sarif"):
        assert "\x1b" not in ratelimit("lint", "--color", "always", "--format", shape, bad).out


def test_both_sides_of_a_change(ratelimit: Inside, tmp_path: Path) -> None:
    """`diff` shows what held in red, and what holds in green."""
    for name, number in (("old", 5), ("new", 9)):
        (tmp_path / f"{name}.yaml").write_text(RULES % number)

    result = ratelimit("diff", "--color", "always", tmp_path / "old.yaml", tmp_path / "new.yaml")

    assert f"  {RED}- " in result.out
    assert f"  {GREEN}+ " in result.out


def test_nothing_of_others_acts() -> None:
    """A colour that somebody else has written is shown, and does not colour."""
    assert painted("OK \x1b[31mx", {"OK": "green"}.get) == f"{GREEN}OK{END} \\x1b[31mx"
