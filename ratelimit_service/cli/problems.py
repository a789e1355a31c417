"""How problems in rule files are shown: for people, for programs, for GitHub, and as SARIF.

What must not live here: what is a problem (`ratelimit_service.rules`).
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby

from ratelimit_service import __version__
from ratelimit_service.cli.github import annotation
from ratelimit_service.rules.lint import Linted
from ratelimit_service.rules.problem import Problem
from ratelimit_service.text.display import printable

__all__ = ["FORMATS"]

_WIDTH = 100
"""How many characters of a line are shown; of a longer one those around the problem."""


def _text(linted: Linted) -> Iterator[str]:
    for name, problems in groupby(linted.problems, lambda problem: problem.source.file):
        lines = linted.lines(name)  # once, not for each problem: a file may have thousands
        for problem in problems:
            yield str(problem)
            yield from _excerpt(problem, lines)


def _excerpt(problem: Problem, lines: Sequence[str]) -> Iterator[str]:
    """The line of the file, and a caret below the place."""
    _, line, column = problem.source
    if not line or line > len(lines):
        return
    shown = lines[line - 1].replace("\t", " ")
    first = max(0, column - _WIDTH // 2)
    text = printable(shown[first : first + _WIDTH]).rstrip()
    margin = f"{line:5} | "
    yield margin + text
    before = printable(shown[first : column - 1])
    yield " " * (len(margin) + sum(map(_columns, before))) + "^"


def _columns(char: str) -> int:
    """How many columns of a terminal a character takes."""
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in {"W", "F"} else 1


def _json(linted: Linted) -> Iterator[str]:
    yield json.dumps([_described(problem) for problem in linted.problems], indent=2)


def _described(problem: Problem) -> dict[str, object]:
    return {
        "file": problem.source.file,
        "line": problem.source.line,
        "column": problem.source.column,
        "path": problem.path,
        "kind": problem.kind,
        "message": problem.message,
        "level": _level(problem),
    }


def _level(problem: Problem) -> str:
    return "note" if problem.hint else "error"


def _github(linted: Linted) -> Iterator[str]:
    for problem in linted.problems:
        level = "notice" if problem.hint else "error"
        where = f"{problem.path}: " if problem.path else ""
        yield annotation(level, problem.source, problem.kind, where + problem.message)


def _sarif(linted: Linted) -> Iterator[str]:
    """SARIF 2.1.0 (OASIS), as code scanning services read it."""
    kinds = sorted({problem.kind for problem in linted.problems})
    driver = {
        "name": "ratelimit lint",
        "version": __version__,
        "rules": [{"id": kind} for kind in kinds],
    }
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_result(problem) for problem in linted.problems],
    }
    yield json.dumps(
        {
            "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
            "version": "2.1.0",
            "runs": [run],
        },
        indent=2,
    )


def _result(problem: Problem) -> dict[str, object]:
    where = f"{problem.path}: " if problem.path else ""
    region = {"startLine": problem.source.line or 1, "startColumn": problem.source.column or 1}
    location = {"artifactLocation": {"uri": problem.source.file}, "region": region}
    return {
        "ruleId": problem.kind,
        "level": _level(problem),
        "message": {"text": where + problem.message},
        "locations": [{"physicalLocation": location}],
    }


FORMATS: Mapping[str, Callable[[Linted], Iterator[str]]] = {
    "text": _text,
    "json": _json,
    "github": _github,
    "sarif": _sarif,
}
"""The ways to show problems, each as lines."""
