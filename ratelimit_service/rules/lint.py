"""Everything that is wrong with rule files, the tolerated included."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ratelimit_service.errors import RulesError
from ratelimit_service.rules.build import merge
from ratelimit_service.rules.files import read_rule_files
from ratelimit_service.rules.problem import Problem
from ratelimit_service.rules.schema import RuleFile, parse
from ratelimit_service.rules.tree import Source
from ratelimit_service.text import printable

__all__ = ["lint"]


def lint(paths: Sequence[Path]) -> list[Problem]:
    """The problems of the files under each path, read as `serve` would, by file and line.

    Files of one path that name the same domain are merged, those of different paths are not.
    Raises RulesError if a path cannot be read.
    """
    problems: list[Problem] = []
    for path in paths:
        domains: dict[str, list[RuleFile]] = {}
        found = read_rule_files(path)
        for name, why in found.unread.items():
            raise RulesError(f"{printable(name)} cannot be read: {why}")
        for name, why in found.skipped.items():
            problems.append(Problem(Source(name), "", f"not read: {why}", "skipped", hint=True))
        for name, data in found.files.items():
            file = parse(name, data)
            problems += file.problems
            domains.setdefault(file.domain, []).append(file)
        for files in domains.values():
            problems += merge(files)[1]
    return sorted(problems)
