"""What docs/replay.md shows is what comes out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ratelimit_service.replay.findings import NEAR
from ratelimit_service.replay.use import SAMPLE, TOP_NAMES
from tests.replay.playing import run

DOCUMENT = (Path(__file__).parents[2] / "docs" / "replay.md").read_text()


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", DOCUMENT, re.DOTALL)
    assert found
    return found[1]


def test_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The example's log and rules print the example's report."""
    (tmp_path / "requests.csv").write_text(block("csv"))
    (tmp_path / "new.yaml").write_text(block("yaml"))
    monkeypatch.chdir(tmp_path)

    ran = run(capsys, "--rules", "new.yaml", "requests.csv")

    assert ran.code == 0
    assert ran.out == block("text")


def test_bounds() -> None:
    """The document names the bounds that hold."""
    assert f"Up to {SAMPLE:,} callers" in DOCUMENT
    assert f"exact up to {TOP_NAMES:,} of them" in DOCUMENT
    assert f"above {NEAR} times the limit" in DOCUMENT
