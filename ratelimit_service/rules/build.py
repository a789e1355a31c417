"""From the bytes of all rule files to domains: pure, so that it can run in another process.

One bad file never takes another down: its last good version stands in for it. What to do with
a domain whose files contradict each other is `load`'s business.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from ratelimit_service.algorithms import spec_of
from ratelimit_service.rules.overlay import NO_OVERLAY, Overlay, parse_overlay
from ratelimit_service.rules.paths import path_text
from ratelimit_service.rules.problem import Problem, did_you_mean, quoted
from ratelimit_service.rules.resource import parse_resource
from ratelimit_service.rules.schema import RuleFile, parse
from ratelimit_service.rules.tree import (
    OVERRIDES,
    UNMATCHED,
    Domain,
    Level,
    Node,
    Rule,
    TalliesOf,
    Times,
    taken_twice,
    too_many,
    walk,
)

__all__ = ["Built", "FileReport", "Language", "Version", "build", "merge"]


Language = Literal["yaml", "resource", "overlay"]
"""What a file is: rules in YAML, rules as `resource` keeps them, or an `overlay` for the latter."""


class Version(NamedTuple):
    """A file's bytes as they are now, and as they were when they were last good."""

    name: str
    newest: bytes
    good: bytes | None
    vanished: bool = False
    """Whether the file has vanished. It is dropped if other files contradict it."""
    language: Language = "yaml"


class FileReport(NamedTuple):
    """What is to be said of a file; `bad` ones are not used.

    `digest` is that of the bytes in force, "" if there are none.
    """

    name: str
    domain: str
    problems: tuple[Problem, ...]
    bad: bool
    digest: str = ""


class Built(NamedTuple):
    """What all files come to.

    `never_good` are domains of bad files that have no good version; `contradicting` are those
    whose files cannot be merged, for the reasons in `conflicts`.
    """

    files: tuple[FileReport, ...]
    domains: dict[str, Domain]
    never_good: frozenset[str]
    contradicting: frozenset[str]
    conflicts: tuple[Problem, ...]
    rules: dict[str, int]
    """How many rules each of the domains has."""
    let_go: frozenset[str] = frozenset()
    """Vanished files whose rules others have now, as after a renaming."""


def build(versions: Iterable[Version], tallies: TalliesOf, *, strict: bool) -> Built:
    """Reads and merges all files; with `strict` any problem makes a file bad."""

    def fatal(problems: Iterable[Problem]) -> bool:
        return any(problem.fatal(strict=strict) for problem in problems)

    every = sorted(versions)
    reports: list[FileReport] = []
    overlay = NO_OVERLAY
    for version in (each for each in every if each.language == "overlay"):
        overlay, report = _overlay(version, fatal)
        reports.append(report)
    good: dict[str, list[RuleFile]] = {}
    never_good = set()
    vanished = set()
    for version in (each for each in every if each.language != "overlay"):
        if version.vanished:
            vanished.add(version.name)
        file = _parsed(version, version.newest, tallies, overlay)
        bad = fatal(file.problems)
        digest = _digest(version, bad=bad)
        reports.append(FileReport(file.name, file.domain, file.problems, bad, digest))
        if bad and version.good is not None:
            file = _parsed(version, version.good, tallies, overlay)
        elif bad:
            if file.domain:
                never_good.add(file.domain)
            continue
        good.setdefault(file.domain, []).append(file)
    domains, contradicting, conflicts = {}, set(), []
    let_go: set[str] = set()
    for name, each in good.items():
        files = each
        nodes, problems = merge(files)
        there = [file for file in files if file.name not in vanished]
        if fatal(problems) and len(there) < len(files):
            let_go |= {file.name for file in files} & vanished
            files = there
            nodes, problems = merge(files)
        conflicts += problems
        if fatal(problems):
            contradicting.add(name)
        else:
            shard_by = next((file.shard_by.keys for file in files if file.shard_by), None)
            overrides, unmatched = tallies(name, OVERRIDES), tallies(name, UNMATCHED)
            policies = frozenset(node.rule.failure_policy for node in walk(nodes) if node.rule)
            times = Times()
            for node in walk(nodes):
                times.add(node)
            domains[name] = Domain(
                name,
                Level.of(nodes),
                overrides,
                shard_by,
                policies,
                times or None,
                unmatched,
                any(node.rule.enqueue for node in walk(nodes) if node.rule),
            )
    return Built(
        tuple(reports),
        domains,
        frozenset(never_good),
        frozenset(contradicting),
        tuple(conflicts),
        {name: sum(1 for _ in domain.rules) for name, domain in domains.items()},
        frozenset(let_go),
    )


def _overlay(
    version: Version, fatal: Callable[[Iterable[Problem]], bool]
) -> tuple[Overlay, FileReport]:
    overlay, problems = parse_overlay(version.name, version.newest)
    bad = fatal(problems)
    if bad:
        overlay = parse_overlay(version.name, version.good)[0] if version.good else NO_OVERLAY
    digest = _digest(version, bad=bad)
    return overlay, FileReport(version.name, "", problems, bad, digest)


def _digest(version: Version, *, bad: bool) -> str:
    used = version.good if bad else version.newest
    return "" if used is None else hashlib.sha256(used).hexdigest()


def _parsed(version: Version, data: bytes, tallies: TalliesOf, overlay: Overlay) -> RuleFile:
    if version.language == "resource":
        return parse_resource(version.name, data, tallies, overlay)
    return parse(version.name, data, tallies)


def merge(files: Sequence[RuleFile]) -> tuple[tuple[Node, ...], list[Problem]]:
    """The root nodes of one domain's files, in their order, and where they contradict."""
    seen: dict[tuple[str, str, bool], Node] = {}
    problems = []
    found = []
    for node in (node for file in files for node in file.nodes):
        if message := taken_twice(node, seen):
            text = path_text([(node.key, node.value)])
            problems.append(Problem(node.source, text, message, "duplicate"))
        else:
            found.append(node)
    nodes = tuple(found)
    if len(files) > 1:  # one file's are known already
        for node, message in too_many(nodes):
            problems.append(Problem(node.source, "", message, "matcher"))
    return nodes, [
        *problems,
        *_other_shards(files),
        *_unknown_targets(nodes),
        *_unequal_pools(nodes),
    ]


def _other_shards(files: Sequence[RuleFile]) -> Iterator[Problem]:
    """Files of a domain that place its counters by other entries than the first that says."""
    said = [file.shard_by for file in files if file.shard_by]
    for other in said[1:]:
        if other.keys != said[0].keys:
            message = f"the domain's counters are placed otherwise at {said[0].source}"
            yield Problem(other.source, "", f"{message}: write the same", "shard_by")


def _unequal_pools(nodes: Iterable[Node]) -> Iterator[Problem]:
    """Limits of a pool that count otherwise, or up to another number, than its first one."""
    first: dict[str, tuple[Rule, object]] = {}
    for rule in (node.rule for node in walk(nodes) if node.rule):
        for limit in rule.limits:
            if limit.pool:
                spec = spec_of(limit)
                counted = (spec.key + limit.scope, spec.limit + limit.reserved, spec.rate)
                other, before = first.setdefault(limit.pool, (rule, counted))
                if counted != before:
                    message = (
                        f"the limits of pool {quoted(limit.pool)} must be the same, but for what "
                        f"they reserve: see {other.source}"
                    )
                    yield Problem(rule.source, rule.path, message, "pool")


def _unknown_targets(nodes: Iterable[Node]) -> Iterator[Problem]:
    """Names that a rule replaces and no rule of the domain has."""
    rules = [node.rule for node in walk(nodes) if node.rule]
    names = {name for rule in rules for name in rule.names}
    for rule in rules:
        for name in sorted(rule.replaces - names):
            message = f"no rule of this domain is named {quoted(name)}{did_you_mean(name, names)}"
            yield Problem(rule.source, rule.path, message, "replaces", tolerated=True)
