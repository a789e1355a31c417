"""Everything that is wrong with rule files, the tolerated and the hints included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ratelimit_service.errors import RulesError
from ratelimit_service.eventloop.clock import Clock, now_us
from ratelimit_service.model import MINUTE_US
from ratelimit_service.rules.advice import advice
from ratelimit_service.rules.build import merge
from ratelimit_service.rules.files import read_rule_files
from ratelimit_service.rules.paths import Source
from ratelimit_service.rules.problem import Problem
from ratelimit_service.rules.schema import RuleFile, parse
from ratelimit_service.text.display import printable
from ratelimit_service.text.yaml_slips import lines_of

__all__ = ["SKIPPED", "Linted", "lint", "lint_text"]

SKIPPED: Final = "skipped"
"""The kind of what only says that a file is none of rules."""


@dataclass(frozen=True, slots=True)
class Linted:
    """What was found, by file and line, and the bytes that were read, by file."""

    problems: tuple[Problem, ...]
    files: dict[str, bytes]

    def lines(self, name: str) -> list[str]:
        """The lines of a file as YAML counts them; an empty one if it was not read."""
        return lines_of(self.files.get(name, b"").decode("utf-8-sig", "replace"))


def lint(paths: Sequence[Path], clock: Clock = now_us) -> Linted:
    """The problems of the files under each path, read as `serve` would.

    Files of one path that name the same domain are merged, those of different paths are not.
    The clock tells what has ended.
    Raises RulesError if a path cannot be read.
    """
    problems: list[Problem] = []
    files: dict[str, bytes] = {}
    for path in paths:
        content = read_rule_files(path)
        for name, why in content.unread.items():
            raise RulesError(f"{printable(name)} cannot be read: {why}")
        for name, why in content.skipped.items():
            problems.append(Problem(Source(name), "", f"not read: {why}", SKIPPED, hint=True))
        problems += _problems(content.files, clock)
        files |= content.files
    return Linted(tuple(sorted(problems)), files)


def lint_text(name: str, data: bytes, clock: Clock = now_us) -> Linted:
    """As `lint`, for one file that lies nowhere; it goes by this name."""
    return Linted(tuple(sorted(_problems({name: data}, clock))), {name: data})


def _problems(files: dict[str, bytes], clock: Clock) -> list[Problem]:
    problems: list[Problem] = []
    domains: dict[str, list[RuleFile]] = {}
    for name, data in files.items():
        file = parse(name, data, advises=True)
        problems += file.problems
        if not file.bad:  # what is wrong comes first
            problems += advice(file.nodes, clock() // MINUTE_US)
        domains.setdefault(file.domain, []).append(file)
    for of_domain in domains.values():
        problems += merge(of_domain)[1]
    return problems
