"""The rules that hold now: reads files, merges domains, keeps what was good.

A load builds a new snapshot beside the old one and swaps it in whole. One bad file never
takes another down: it keeps its own last good version, and a domain whose files contradict
each other keeps its last good whole. What a file says is `schema`'s business.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ratelimit_service.errors import RulesError
from ratelimit_service.health import Health
from ratelimit_service.observer import Counters, Tallies
from ratelimit_service.rules.problem import Problem, did_you_mean
from ratelimit_service.rules.schema import RuleFile, parse
from ratelimit_service.rules.tree import Domain, Level, Node, Snapshot, path_text, walk

__all__ = ["Rules", "merge", "rule_files"]

log = logging.getLogger(__name__)

_OVERRIDES = ""
"""In place of a rule's path: the tallies of a domain's overrides."""


def rule_files(path: Path) -> list[Path]:
    """The files of a rule path, in path order: all below a directory but dot files.

    Symbolic links are followed, so that a mounted Kubernetes ConfigMap counts once. Raises
    RulesError if there is nothing to read.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise RulesError(f"{path}: there is no such file or directory: name one with --rules PATH")
    found = sorted(_walk(path))
    if not found:
        raise RulesError(f"{path}: there is no rule file in this directory")
    return found


def _walk(directory: Path) -> Iterator[Path]:
    seen = set()
    for parent, directories, files in os.walk(directory, followlinks=True):
        real = Path(parent).resolve()
        if real in seen:  # a link to a directory above
            directories.clear()
            continue
        seen.add(real)
        directories[:] = [name for name in directories if not name.startswith(".")]
        yield from (Path(parent, name) for name in files if not name.startswith("."))


def merge(files: Sequence[RuleFile]) -> tuple[tuple[Node, ...], list[Problem]]:
    """The root nodes of one domain's files, in their order, and where they contradict."""
    seen: dict[tuple[str, str], Node] = {}
    problems = []
    for node in (node for file in files for node in file.nodes):
        other = seen.setdefault((node.key, node.value), node)
        if other is not node:
            message = f"the same key and value stand at {other.source}: merge the two"
            text = path_text([(node.key, node.value)])
            problems.append(Problem(node.source, text, message, "duplicate"))
    nodes = tuple(seen.values())
    return nodes, problems + list(_unknown_targets(nodes))


def _unknown_targets(nodes: Iterable[Node]) -> Iterator[Problem]:
    """Names that a rule replaces and no rule of the domain has."""
    rules = [node.rule for node in walk(nodes) if node.rule]
    names = {rule.name for rule in rules if rule.name}
    for rule in rules:
        for name in sorted(rule.replaces - names):
            message = f"no rule of this domain is named {name!r}{did_you_mean(name, names)}"
            yield Problem(rule.source, rule.path, message, "replaces", tolerated=True)


@dataclass(slots=True)
class _File:
    """A rule file as last read: its bytes, what they say, and its last good version."""

    data: bytes
    newest: RuleFile
    good: RuleFile | None


class Rules:
    """The rule files under one path and the snapshot made of them.

    Reading `snapshot` is atomic; requests take it once and keep it to their end.
    """

    def __init__(
        self, path: Path, *, counters: Counters, health: Health, strict: bool = False
    ) -> None:
        """With `strict`, problems that are otherwise only warned of make a file bad."""
        self._path = path
        self._counters = counters
        self._health = health
        self._strict = strict
        self._files: dict[str, _File] = {}
        self._merge_problems: list[Problem] = []
        self._tallies: dict[tuple[str, str], Tallies] = {}
        self._snapshot = Snapshot(0, {})
        self._lock = asyncio.Lock()

    @property
    def path(self) -> Path:
        """What is watched."""
        return self._path

    @property
    def snapshot(self) -> Snapshot:
        """The rules that hold now."""
        return self._snapshot

    def load(self) -> None:
        """The first load. Raises RulesError if there is nothing to serve.

        With `strict`, any problem is an error; else bad files leave their domains unserved.
        """
        self._load()
        problems = self._problems()
        if self._strict and problems:
            lines = "\n".join(f"  {problem}" for problem in problems)
            raise RulesError(f"--strict-rules: {len(problems)} problems in the rules\n{lines}")

    async def reload(self) -> None:
        """Loads again what has changed, beside the running requests; never raises.

        What cannot be loaded is in the log, the counters and health, and changes nothing.
        """
        async with self._lock:
            try:
                await asyncio.to_thread(self._load)
            except RulesError as error:
                self._counters.rule_loads["error"] += 1
                self._health.degrade("rules", f"{error}; the last good rules stay")

    def _load(self) -> None:
        changed = self._read()
        if changed or not self._snapshot.number:
            self._swap(changed)
            result = "error" if self._fatal_problems() else "success"
            self._counters.rule_loads[result] += 1
        if fatal := self._fatal_problems():
            more = f" (and {len(fatal) - 1} more)" if len(fatal) > 1 else ""
            self._health.degrade("rules", f"{fatal[0]}{more}")
        else:
            self._health.recover("rules")

    def _swap(self, changed: Sequence[RuleFile]) -> None:
        """Merges all files anew, logs what is new of their problems, and lets that hold."""
        domains, unserved, conflicts = self._merged()
        new = [problem for problem in conflicts if problem not in self._merge_problems]
        self._merge_problems = conflicts
        for problem in [*(p for file in changed for p in file.problems), *new]:
            log.log(logging.ERROR if self._fatal(problem) else logging.WARNING, "%s", problem)
        self._snapshot = Snapshot(self._snapshot.number + 1, domains, unserved)
        self._forget_tallies(domains)

    def _read(self) -> list[RuleFile]:
        """Reads the files and parses those that have changed; returns these, and gone ones."""
        changed = []
        present = set()
        for path in rule_files(self._path):
            name = str(path)
            try:
                data = path.read_bytes()
            except OSError as error:
                raise RulesError(f"{path} cannot be read: {error.strerror}") from error
            present.add(name)
            known = self._files.get(name)
            if known and known.data == data:
                continue
            file = parse(name, data, self._tallies_of)
            good = None if any(map(self._fatal, file.problems)) else file
            self._files[name] = _File(data, file, good or (known.good if known else None))
            changed.append(file)
        for name in self._files.keys() - present:
            file = self._files.pop(name).newest
            changed.append(RuleFile(name, file.domain, (), ()))
        return changed

    def _merged(self) -> tuple[dict[str, Domain], frozenset[str], list[Problem]]:
        files: dict[str, list[RuleFile]] = {}
        never_good = set()
        for _, file in sorted(self._files.items()):
            if file.good:
                files.setdefault(file.good.domain, []).append(file.good)
            elif file.newest.domain:
                never_good.add(file.newest.domain)
        served = self._snapshot.domains
        domains, conflicts = {}, []
        unserved = never_good - files.keys() - served.keys()
        for name, parts in files.items():
            nodes, problems = merge(parts)
            conflicts += problems
            if name in never_good and name not in served:
                unserved.add(name)
            elif not any(map(self._fatal, problems)):
                tallies = self._tallies_of(name, _OVERRIDES)
                domains[name] = Domain(name, Level.of(nodes), tallies)
            elif name in served:
                domains[name] = served[name]
            else:
                unserved.add(name)
        for name in never_good & served.keys() - domains.keys():
            domains[name] = served[name]
        return domains, frozenset(unserved), conflicts

    def _problems(self) -> list[Problem]:
        return sorted(
            [problem for file in self._files.values() for problem in file.newest.problems]
            + self._merge_problems
        )

    def _fatal_problems(self) -> list[Problem]:
        return [problem for problem in self._problems() if self._fatal(problem)]

    def _fatal(self, problem: Problem) -> bool:
        return self._strict or not problem.tolerated

    def _tallies_of(self, domain: str, path: str) -> Tallies:
        return self._tallies.setdefault((domain, path), Tallies())

    def _forget_tallies(self, domains: dict[str, Domain]) -> None:
        """Keeps the tallies of rules that are still there, or whose file may yet be mended."""
        kept = {
            (domain.name, path)
            for domain in domains.values()
            for path in [_OVERRIDES, *(rule.path for rule in domain.rules)]
        }
        self._tallies = {key: self._tallies[key] for key in kept if key in self._tallies}
