"""What is typed to start this program again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ratelimit_service.processes.command_line import typed


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (".venv/bin/ratelimit", [".venv/bin/ratelimit"]),
        ("{here}/.venv/bin/ratelimit", [".venv/bin/ratelimit"]),
        ("{path}/ratelimit", ["ratelimit"]),
        ("/elsewhere/bin/ratelimit", ["/elsewhere/bin/ratelimit"]),
        ("/elsewhere/ratelimit_service/__main__.py", ["bin/python", "-m", "ratelimit_service"]),
    ],
)
def test_as_it_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, words: list[str]
) -> None:
    """Only what a shell finds by its name goes by its name alone; all else by a path that works."""
    here, path = tmp_path / "here", tmp_path / "path"
    for directory in (here, path):
        directory.mkdir()
    (path / "ratelimit").touch(mode=0o755)
    monkeypatch.chdir(here)
    monkeypatch.setenv("PATH", str(path))
    monkeypatch.setattr(sys, "argv", [program.format(here=here, path=path), "serve"])
    monkeypatch.setattr(sys, "executable", str(here / "bin" / "python"))

    assert typed() == words
