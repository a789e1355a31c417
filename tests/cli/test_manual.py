"""What the command says of itself: the manual page, docs/cli.md, and what shells complete."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from ratelimit_service.cli.main import COMMANDS
from tests.cli.inside import Inside

CLI = Path(__file__).parents[2] / "docs" / "cli.md"


def flags(text: str) -> set[str]:
    return set(re.findall(r"--[a-z][\w-]*", text))


def test_manual_has_every_flag(ratelimit: Inside) -> None:
    """The manual page has each command, and each flag that its `--help` shows."""
    page = ratelimit("man").out.replace("\\-", "-")
    sections = dict(re.findall(r'^\.SH "(.*)"\n((?:(?!\.SH ).*\n)*)', page, re.MULTILINE))

    assert list(sections) == [f"RATELIMIT {name.upper()}" for name in COMMANDS]
    for name in COMMANDS:
        assert flags(ratelimit(name, "--help").out) <= flags(sections[f"RATELIMIT {name.upper()}"])


def test_manual_is_roff(ratelimit: Inside) -> None:
    """No text of a command is taken for a command of roff, and groff has nothing to warn about."""
    page = ratelimit("man").out

    known = {".TH", ".SH", ".SS", ".PP", ".TP", ".nf", ".fi"}
    assert {line.split()[0] for line in page.splitlines() if line[:1] in {".", "'"}} == known
    if groff := shutil.which("groff"):
        done = subprocess.run(
            [groff, "-K", "utf8", "-man", "-ww", "-z", "-T", "utf8"],
            input=page,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr == ""


def test_page_has_every_command() -> None:
    """docs/cli.md has a section for each command, in the order of `--help`."""
    headings = re.findall(r"^## ratelimit (.*)$", CLI.read_text(), re.MULTILINE)

    assert headings == list(COMMANDS)


@pytest.mark.parametrize("shell", ["bash", "fish", "zsh"])
def test_completion_is_a_script(ratelimit: Inside, shell: str) -> None:
    """The script is one that its shell reads, where there is that shell."""
    result = ratelimit("completion", shell)

    assert result.code == 0
    assert f"_RATELIMIT_COMPLETE={shell}_complete" in result.out
    if path := shutil.which(shell):
        subprocess.run([path, "-n"], input=result.out, text=True, check=True)


@pytest.mark.parametrize(
    ("words", "completed"),
    [("hi", {"hit"}), ("hit --re", {"--refund", "--repeat"}), ("lint --format s", {"sarif"})],
)
def test_shells_complete(
    ratelimit: Inside, monkeypatch: pytest.MonkeyPatch, words: str, completed: set[str]
) -> None:
    """Commands, flags and their values complete themselves."""
    monkeypatch.setenv("_RATELIMIT_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", f"ratelimit {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(words.split())))

    result = ratelimit()

    assert {line.partition(",")[2] for line in result.out.splitlines()} == completed


def test_unknown_shell(ratelimit: Inside) -> None:
    """A shell that cannot complete is told which ones can."""
    result = ratelimit("completion", "tcsh")

    assert result.code == 2
    assert "'bash', 'fish', 'zsh'" in result.err
