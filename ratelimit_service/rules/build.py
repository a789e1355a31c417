"""From the bytes of all rule files to domains: pure, so that it can run in another process.

One bad file never takes another down: its last good version stands in for it. What to do with
a domain whose files contradict each other is `load`'s business.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from ratelimit_service.algorithms import spec_of
from ratelimit_service.model import Limit
from ratelimit_service.rules.conflicts import taken_twice, too_many
from ratelimit_service.rules.overlay import NO_OVERLAY, Overlay, parse_overlay
from ratelimit_service.rules.paths import Source, path_text
from ratelimit_service.rules.problem import Problem, did_you_mean, quoted
from ratelimit_service.rules.resource import DescriptorCache, content_of, parse_resource
from ratelimit_service.rules.schema import RuleFile, parse
from ratelimit_service.rules.times import Times
from ratelimit_service.rules.tree import (
    OVERRIDES,
    UNMATCHED,
    Domain,
    Level,
    Node,
    Rule,
    TalliesOf,
    walk,
)
from ratelimit_service.text.display import count

__all__ = [
    "MAX_REPORTED",
    "BuildCache",
    "Built",
    "FileReport",
    "Language",
    "Version",
    "build",
    "merge",
]


MAX_REPORTED = 100
"""So many problems of a file are told, and then how many more there are."""

_REVISION_DIGITS = 8

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

    `digest` is that of the bytes in use, "" if there are none; `used` is their domain.
    """

    name: str
    domain: str
    problems: tuple[Problem, ...]
    bad: bool
    digest: str = ""
    used: str = ""


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
    revision: str
    """What names the files in force, by their content alone: hosts and paths do not matter."""
    let_go: frozenset[str] = frozenset()
    """Vanished files whose rules others have now, as after a renaming."""


class _ReadFile(NamedTuple):
    """What a file has come to."""

    content: bytes
    file: RuleFile


class _Merged(NamedTuple):
    """What the files of a domain have come to."""

    files: list[RuleFile]
    domain: Domain
    rules: int


class BuildCache:
    """What was built last. What has not changed since is not read again, and is the same object."""

    def __init__(self) -> None:
        self.domains: dict[str, _Merged] = {}
        """Those of which nothing was to be said."""
        self._overlay: bytes | None = None
        self._read: dict[str, list[_ReadFile]] = {}
        self._now: dict[str, list[_ReadFile]] = {}
        """Those of the build that goes on."""
        self._caches: dict[str, DescriptorCache] = {}

    def begin(self, overlay: bytes) -> None:
        """Begins the next build. With another overlay nothing of the last build is used again."""
        if overlay != self._overlay:
            self.domains, self._read, self._caches = {}, {}, {}
        self._overlay = overlay

    def end(self, domains: dict[str, _Merged]) -> None:
        """Ends the build: what it did not use is forgotten."""
        self.domains = domains
        self._read, self._now = self._now, {}
        self._caches = {name: cache for name, cache in self._caches.items() if name in self._read}

    def parsed(
        self, version: Version, data: bytes, tallies: TalliesOf, overlay: Overlay
    ) -> RuleFile:
        """What a version's bytes say. It is read again if there was anything to be said of it."""
        resource = version.language == "resource"
        content = content_of(data) if resource else data
        for read in self._read.get(version.name, ()):
            if read.content == content and not read.file.problems:
                break
        else:
            if resource:
                cache = self._caches.setdefault(version.name, DescriptorCache())
                file = parse_resource(version.name, data, tallies, overlay, cache)
            else:
                file = parse(version.name, data, tallies)
            read = _ReadFile(content, file)
        self._now.setdefault(version.name, []).append(read)
        return read.file


def build(
    versions: Iterable[Version],
    tallies: TalliesOf,
    *,
    strict: bool,
    cache: BuildCache | None = None,
    root: Callable[[Sequence[Node]], Level] = Level.of,
) -> Built:
    """Reads and merges all files; with `strict` any problem makes a file bad.

    With `cache` only what has changed since the last build is read. It takes what is built now.
    `root` makes the roots of domains of their nodes.
    """
    cache = cache or BuildCache()
    every = sorted(versions)
    reports: list[FileReport] = []
    overlay, overlay_bytes = NO_OVERLAY, b""
    for version in (each for each in every if each.language == "overlay"):
        overlay, report = _overlay(version, strict=strict)
        overlay_bytes = (version.good or b"") if report.bad else version.newest
        reports.append(report)
    cache.begin(overlay_bytes)
    of_files = all(each.language == "yaml" for each in every)
    good: dict[str, list[RuleFile]] = {}
    never_good: set[str] = set()
    for version in (each for each in every if each.language != "overlay"):
        file = cache.parsed(version, version.newest, tallies, overlay)
        bad = _any_fatal(file.problems, strict=strict)
        reported = _reported(file.name, file.problems, strict=strict)
        reports.append(FileReport(file.name, file.domain, reported, bad, _digest(version, bad=bad)))
        if bad and version.good is not None:
            file = cache.parsed(version, version.good, tallies, overlay)
        elif bad:
            never_good |= {file.domain} - {""}
            continue
        reports[-1] = reports[-1]._replace(used=file.domain)
        good.setdefault(file.domain, []).append(file)
    vanished = {each.name for each in every if each.vanished}
    merged: dict[str, _Merged] = {}
    clean: dict[str, _Merged] = {}
    contradicting: set[str] = set()
    conflicts: list[Problem] = []
    let_go: set[str] = set()
    for name, files in good.items():
        before = cache.domains.get(name)
        if before is not None and before.files == files:
            merged[name] = clean[name] = before
            continue
        used, nodes, problems = _merge_present(files, vanished, of_files=of_files, strict=strict)
        let_go |= {file.name for file in files} - {file.name for file in used}
        conflicts += _reported(files[0].name, problems, strict=strict)
        if _any_fatal(problems, strict=strict):
            contradicting.add(name)
            continue
        merged[name] = _merged(name, root(nodes), used, tallies)
        if not problems:
            clean[name] = merged[name]
    cache.end(clean)
    return Built(
        tuple(reports),
        {name: each.domain for name, each in merged.items()},
        frozenset(never_good),
        frozenset(contradicting),
        tuple(conflicts),
        {name: each.rules for name, each in merged.items()},
        _revision(reports),
        frozenset(let_go),
    )


def _any_fatal(problems: Iterable[Problem], *, strict: bool) -> bool:
    return any(problem.fatal(strict=strict) for problem in problems)


def _merge_present(
    files: list[RuleFile], vanished: Collection[str], *, of_files: bool, strict: bool
) -> tuple[list[RuleFile], tuple[Node, ...], list[Problem]]:
    """The files of a domain that are used, their nodes, and where they contradict.

    Vanished ones are let go if others contradict them. If these contradict each other, too, the
    domain stays as it was, with the vanished ones.
    """
    nodes, problems = merge(files, of_files=of_files)
    present = [file for file in files if file.name not in vanished]
    if _any_fatal(problems, strict=strict) and len(present) < len(files):
        nodes, problems = merge(present, of_files=of_files)
        if not _any_fatal(problems, strict=strict):
            return present, nodes, problems
    return files, nodes, problems


def _merged(name: str, root: Level, files: list[RuleFile], tallies: TalliesOf) -> _Merged:
    """A domain of a root whose nodes do not contradict each other."""
    policies = set()
    rules = 0
    enqueues = False
    leased: set[Limit] = set()
    times = Times()
    for node in walk(root.nodes):
        times.add(node.valid_until, node.rule.limits if node.rule else ())
        if node.rule:
            rules += 1
            policies.add(node.rule.failure_policy)
            enqueues = enqueues or node.rule.enqueue
            leased.update(limit for limit in node.rule.limits if limit.advances)
    domain = Domain(
        name,
        root,
        tallies(name, OVERRIDES),
        next((file.shard_by.keys for file in files if file.shard_by), None),
        frozenset(policies),
        times or None,
        tallies(name, UNMATCHED),
        enqueues,
        frozenset(leased),
    )
    return _Merged(files, domain, rules)


def _overlay(version: Version, *, strict: bool) -> tuple[Overlay, FileReport]:
    overlay, problems = parse_overlay(version.name, version.newest)
    bad = _any_fatal(problems, strict=strict)
    if bad:
        overlay = parse_overlay(version.name, version.good)[0] if version.good else NO_OVERLAY
    digest = _digest(version, bad=bad)
    reported = _reported(version.name, problems, strict=strict)
    return overlay, FileReport(version.name, "", reported, bad, digest)


def _reported(name: str, problems: Sequence[Problem], *, strict: bool) -> tuple[Problem, ...]:
    """What is told of a file's problems, those first for which it is not used.

    A file can have a million of them, and what serves looks at all that it is told.
    """
    if len(problems) <= MAX_REPORTED:
        return tuple(problems)
    by_weight = sorted(
        problems, key=lambda problem: (not problem.fatal(strict=strict), problem.hint)
    )
    shown, rest = by_weight[:MAX_REPORTED], by_weight[MAX_REPORTED:]
    more = Problem(
        Source(name),
        "",
        f"and {count(len(rest), 'more problem')}: `ratelimit lint` shows all",
        "more",
        all(problem.tolerated for problem in rest),
        all(problem.hint for problem in rest),
    )
    return (*shown, more)


def _revision(files: Iterable[FileReport]) -> str:
    digests = sorted(file.digest for file in files if file.digest)
    return hashlib.sha256("".join(digests).encode()).hexdigest()[:_REVISION_DIGITS]


def _digest(version: Version, *, bad: bool) -> str:
    used = version.good if bad else version.newest
    if used is None:
        return ""
    content = content_of(used) if version.language == "resource" else used
    return hashlib.sha256(content).hexdigest()


def merge(
    files: Sequence[RuleFile], *, of_files: bool = True
) -> tuple[tuple[Node, ...], list[Problem]]:
    """The root nodes of one domain's files, in their order, and where they contradict.

    Without `of_files` they are a management server's, and nobody is told to remove a file.
    """
    if len(files) == 1:  # what is wrong within one is known already
        nodes = files[0].nodes
        return nodes, [*_unknown_targets(nodes), *_unequal_pools(nodes)]
    seen: dict[tuple[str, str, bool], Node] = {}
    problems = []
    distinct = []
    for node in (node for file in files for node in file.nodes):
        if message := taken_twice(node, seen, of_files=of_files):
            text = path_text([(node.key, node.value)])
            problems.append(Problem(node.source, text, message, "duplicate"))
        else:
            distinct.append(node)
    nodes = tuple(distinct)
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
    declared = [file.shard_by for file in files if file.shard_by]
    for other in declared[1:]:
        if other.keys != declared[0].keys:
            message = f"the domain's counters are placed otherwise at {declared[0].source}"
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
