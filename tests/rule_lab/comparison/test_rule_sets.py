"""Which rules are compared: of files, directories and revisions."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ratelimit_service.errors import RulesError
from ratelimit_service.rule_lab.comparison import RuleSetError, compare, read_rule_sets

RULES = "domain: {}\ndescriptors: [{{key: k, rate_limit: {{unit: day, requests_per_unit: {}}}}}]\n"


def git(*arguments: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *who, *arguments], check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose directory `rules` is other in `main` than in the working tree."""
    top = tmp_path / "top"
    (top / "rules" / "below").mkdir(parents=True)
    monkeypatch.chdir(top)
    (top / "rules" / "a.yaml").write_text(RULES.format("a", 1))
    (top / "rules" / "below" / "b.yaml").write_text(RULES.format("b", 1))
    (top / "rules" / "a.test.yaml").write_text("no rules")
    git("init", "--quiet", "--initial-branch=main")
    git("add", ".")
    git("commit", "--quiet", "--message=first")
    (top / "rules" / "a.yaml").write_text(RULES.format("a", 2))
    return top


def texts_of(old: str, new: str) -> list[str]:
    before, after = read_rule_sets(old, new)
    return [
        f"{change.domain}: {change.old and change.old.source} -> {change.new and change.new.source}"
        for change in compare(before.domains, after.domains)
    ]


A = "a: main:rules/a.yaml:2:24 -> rules/a.yaml:2:24"


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        ("main", "rules", [A]),
        ("main:rules", "rules", [A]),
        ("main:rules/a.yaml", "rules/a.yaml", [A]),
        ("main", "rules/a.yaml", [A]),
        ("main:./rules", "rules", [A]),
        ("main:rules/below", "rules/below", []),
        ("main", "main", []),
        ("rules", "rules", []),
    ],
)
def test_revisions(checkout: Path, old: str, new: str, changes: list[str]) -> None:
    """A revision has its path, or that of the other side; places are named as git names them."""
    assert texts_of(old, new) == changes


def test_below_the_top(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below a checkout's top a path stands for itself, and `./` begins there."""
    monkeypatch.chdir(checkout / "rules")

    changes = ["a: main:rules/a.yaml:2:24 -> a.yaml:2:24"]
    assert texts_of("main", "a.yaml") == changes
    assert texts_of("main:./a.yaml", "a.yaml") == changes


@pytest.mark.parametrize(
    ("old", "message"),
    [
        ("nobody", "nobody: there is no such file or directory, and git knows no such revision"),
        ("--help", "--help: there is no such file"),
        ("", ": there is no such file"),
        ("main:nowhere", "main has no rules at nowhere"),
        ("main:../..", "main has no rules at"),
    ],
)
def test_rules_that_are_not_there(checkout: Path, old: str, message: str) -> None:
    """What is neither a path nor a revision with rules is told in one line."""
    with pytest.raises(RulesError) as raised:
        read_rule_sets(old, "rules")

    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


def test_first_rules(checkout: Path) -> None:
    """A pull request that brings the first rules can be compared with what it is based on."""
    (checkout / "first").mkdir()
    (checkout / "first" / "c.yaml").write_text(RULES.format("c", 1))

    assert texts_of("main", "first") == ["c: None -> None", "c: None -> first/c.yaml:2:24"]
    with pytest.raises(RulesError, match="main has no rules at first"):
        read_rule_sets("main:first", "first")
    with pytest.raises(RulesError, match="main has no rules at first"):
        read_rule_sets("first", "main")


def test_bad_rules(checkout: Path) -> None:
    """Rules with problems cannot be compared: all of these are told."""
    (checkout / "rules" / "a.yaml").write_text("domain: a\nx: 1\ny: 1\n")

    with pytest.raises(RuleSetError) as raised:
        read_rule_sets("main", "rules")

    first, second, last = str(raised.value).splitlines()
    assert first.startswith("rules/a.yaml:2:1: 'x' is no key")
    assert second.startswith("rules/a.yaml:3:1: 'y' is no key")
    assert last == "rules cannot be compared: mend these first"
