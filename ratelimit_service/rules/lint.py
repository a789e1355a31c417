"""Everything that is wrong with rule files, the tolerated included."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ratelimit_service.errors import RulesError
from ratelimit_service.rules.build import merge
from ratelimit_service.rules.load import rule_files
from ratelimit_service.rules.problem import Problem
from ratelimit_service.rules.schema import RuleFile, parse

__all__ = ["lint"]


def lint(paths: Sequence[Path]) -> list[Problem]:
    """The problems of the files under each path, read as `serve` would, by file and line.

    Files of one path that name the same domain are merged, those of different paths are not.
    Raises RulesError if a path cannot be read.
    """
    problems: list[Problem] = []
    for path in paths:
        domains: dict[str, list[RuleFile]] = {}
        for name in rule_files(path):
            try:
                file = parse(str(name), name.read_bytes())
            except OSError as error:
                raise RulesError(f"{name} cannot be read: {error.strerror}") from error
            problems += file.problems
            domains.setdefault(file.domain, []).append(file)
        for files in domains.values():
            problems += merge(files)[1]
    return sorted(problems)
