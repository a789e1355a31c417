"""The rules that hold now: reads their source, keeps what was good, swaps snapshots.

A load builds a new snapshot beside the old one and swaps it in whole. One bad file never
takes another down: it keeps its own last good version, and a domain whose files contradict
each other keeps its last good whole. What files say is `build`'s business, and in which process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from ratelimit_service.errors import RulesError
from ratelimit_service.eventloop.clock import now_us
from ratelimit_service.eventloop.slices import at_once, stepwise
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.rules.build import Built, FileReport, Language, Version, build
from ratelimit_service.rules.child import Builder
from ratelimit_service.rules.from_files import FromFiles
from ratelimit_service.rules.paths import Source
from ratelimit_service.rules.problem import Problem
from ratelimit_service.rules.reload_log import ReloadDifference, log_problems, log_reload
from ratelimit_service.rules.rulebook import Rulebook, hold_without
from ratelimit_service.rules.source import FileProblems, LastGoodFiles, RuleSource, SourceContent
from ratelimit_service.rules.tree import Domain, Snapshot
from ratelimit_service.text.display import count, printable

__all__ = ["LoadPolicy", "Loaded", "Rules"]

_READ_SECONDS = 30.0
_FILES = 100
"""Files that are looked at in a step: a management server may send thousands at a time."""

ReloadDifferenceOf = Callable[
    [Mapping[str, Domain], Mapping[str, Domain]], Awaitable[ReloadDifference]
]
"""Compares the domains of before and now, with pauses for requests."""


class Loaded(NamedTuple):
    """When all rules were last loaded without an error, and the revision that is in force.

    The time is in microseconds since 1970, 0 for never. The revision is the same wherever the same
    bytes are in force.
    """

    at_us: int
    revision: str


@dataclass(frozen=True, slots=True)
class LoadPolicy:
    """What is made of rules that have problems, or are not there."""

    strict: bool = False
    """Whether problems that are otherwise only warned of make a file bad."""
    waits: bool = False
    """Whether nothing is served before there are rules."""
    needed: bool = False
    """Whether health says so, too, when there are none any more."""


class _InForce(NamedTuple):
    """What is in force of a file: its bytes, and the domain that they are of."""

    domain: str
    data: bytes


@dataclass(frozen=True, slots=True)
class _File:
    """A rule file as last read: its bytes, what is to be said of it, and its last good bytes.

    `held` is what is in force of it: other bytes than the good ones, or none, while other files
    contradict these.
    """

    data: bytes
    report: FileReport
    good: bytes | None
    held: _InForce | None
    language: Language


@dataclass(frozen=True, slots=True)
class _LoadState:
    """What the loads so far have come to."""

    begun: bool = False
    """Whether the source has said which rules there are."""
    files: dict[str, _File] = field(default_factory=dict)
    conflicts: tuple[Problem, ...] = ()
    missing: tuple[Problem, ...] = ()
    """Of files and directories that cannot be read, or have vanished."""
    sizes: dict[str, int] = field(default_factory=dict)
    """How many rules each domain has that is served."""
    accepted: dict[str, _InForce] = field(default_factory=dict)
    """Of a source that leaves it: each file that is in force."""


class _Verdict(NamedTuple):
    """Why files are not used, under "" what is of no file; and how many problems, hints apart."""

    fatal: FileProblems = MappingProxyType({})
    problems: int = 0


class Rules:
    """The rule files of one source, and the rulebook made of them."""

    def __init__(
        self,
        source: RuleSource | Path,
        *,
        stats: Stats,
        health: Health,
        policy: LoadPolicy = LoadPolicy(),
        reloaded: Callable[[], Awaitable[None]] | None = None,
        difference: ReloadDifferenceOf | None = None,
    ) -> None:
        """A path stands for the files under it.

        `reloaded` is awaited whenever other rules have come to hold; `difference` tells the log
        what is another in them.
        """
        self._policy = policy
        self._reloaded = reloaded
        self._difference = difference
        self._source = FromFiles(source) if isinstance(source, Path) else source
        self._builder = Builder(stays=self._source.changes_often)
        self._stats = stats
        self._health = health
        self._state = _LoadState()
        self._verdict = _Verdict()
        self._reading: asyncio.Future[SourceContent] | None = None
        self._loaded = Loaded(0, "")
        self._lock = asyncio.Lock()
        self._begun = asyncio.Event()
        self._ended = False
        self.book = Rulebook()

    @property
    def source(self) -> RuleSource:
        """Where the rules come from."""
        return self._source

    @property
    def snapshot(self) -> Snapshot:
        """The rules that hold now."""
        return self.book.snapshot

    @property
    def loaded(self) -> Loaded:
        """When all rules were last loaded without an error, and what is in force."""
        return self._loaded

    @property
    def begun(self) -> bool:
        """Whether the source has said which rules there are."""
        return self._state.begun

    async def begin(self) -> None:
        """Waits until the source has said so, and whoever is told of new rules has them."""
        await self._begun.wait()

    def load(self, former: LastGoodFiles | None = None, *, once: bool = False) -> None:
        """The first load. Raises RulesError if there is nothing to serve, or something unreadable.

        With `strict`, any problem is an error; else bad files leave their domains unserved.
        `former` is what `leave` gave to a former program of this process. With `once` nobody will
        reload. A source that has nothing yet begins without rules.
        """
        content = self._source.fetch() if once else self._source.first(former)
        if content is None:
            then = "nothing is served" if self._policy.waits else "the failure policy decides"
            why = f"no rules have come from {self._source.location} yet: until then {then}"
            self._health.degrade("rules", why)
            self._hold()
            return
        for name, why in content.unread.items():
            raise RulesError(f"{printable(name)} cannot be read: {why}")
        versions, _ = at_once(self._versions(content, keep_vanished=False))
        built = build(versions, self.book.tallies_of, strict=self._policy.strict)
        at_once(self._take_over(built, versions))
        self._begun.set()
        self._source.judged(content, self._verdict.fatal)
        problems = sorted(chain.from_iterable(self._verdict.fatal.values()))
        if self._policy.strict and problems:
            lines = "\n".join(f"  {problem}" for problem in problems)
            counted = count(len(problems), "problem")
            raise RulesError(f"--strict-rules: {counted} in the rules\n{lines}")

    async def load_aside(self, former: LastGoodFiles | None = None) -> None:
        """As `load`, in a thread; who is told of new rules has them then. A reload waits for it."""
        async with self._lock:
            await asyncio.to_thread(self.load, former)
            if self._reloaded is not None:
                await self._reloaded()

    async def reload(self, *, keep_vanished: bool = False) -> None:
        """Loads again what has changed, beside the running requests; never raises.

        What cannot be loaded is in the log, the stats and health, and changes nothing. With
        `keep_vanished` that goes for files that are not there any more, too.
        """
        content = None
        async with self._lock:
            try:
                content = await self._read_in_time()
                versions, missing = await stepwise(
                    self._versions(content, keep_vanished=keep_vanished)
                )
                await stepwise(self._note_missing(missing))
                changed = await stepwise(self._changed(versions))
                if changed or not (self.begun or missing):
                    built = await self._builder.build(
                        versions, self.book.tallies_of, strict=self._policy.strict
                    )
                    # No name for the old snapshot here, or it would outlive its last slice.
                    old = [await stepwise(self._take_over(built, versions))]
                    if self._reloaded is not None:
                        await self._reloaded()
                    difference = None
                    if self._difference is not None:
                        difference = await self._difference(old[0].domains, self.snapshot.domains)
                    log_reload(
                        self._state.sizes, self._verdict.problems, self._loaded.revision, difference
                    )
                    await self.book.let_go(old.pop())
                    self._begun.set()
                else:
                    await stepwise(self._judge())
                self._source.judged(content, self._verdict.fatal)
            except RulesError as error:
                if self._ended:  # and with it the process that built
                    return
                self._stats.rule_loads["error"] += 1
                then = "the last good rules stay" if self.begun else "the failure policy decides"
                self._health.degrade("rules", f"{error}; {then}")
                if content is not None:
                    problem = Problem(Source(self._source.location), "", str(error), "internal")
                    self._source.judged(content, {"": [problem]})

    def leave(self) -> LastGoodFiles | None:
        """Rules that the next program of this process starts with; None if it reads them itself."""
        if not (self._source.leaves and self.begun):
            return None
        return {name: file.data.decode() for name, file in self._state.accepted.items()}

    def end(self) -> None:
        """Ends the processes that the rules come from, and those that build them: for good."""
        self._ended = True
        self._source.end()
        self._builder.end()

    def watched_by(self, fault: str) -> None:
        """Says whether changes are seen at once: "", or why they are not."""
        if fault:
            self._health.degrade("watch", fault)
        else:
            self._health.recover("watch")

    async def _read_in_time(self) -> SourceContent:
        """Raises RulesError if reading takes too long, as from a network that is away.

        The read goes on in its thread all the same. The next one waits for it and drops what it
        brings, which may be older than the change that we look for.
        """
        if self._reading is not None:
            await self._done_in_time(self._reading)
            self._reading.exception()
        self._reading = asyncio.ensure_future(asyncio.to_thread(self._source.read))
        await self._done_in_time(self._reading)
        reading, self._reading = self._reading, None
        return reading.result()

    async def _done_in_time(self, reading: asyncio.Future[SourceContent]) -> None:
        await asyncio.wait([reading], timeout=_READ_SECONDS)
        if not reading.done():
            raise RulesError(f"reading {self._source.location} takes more than {_READ_SECONDS:g} s")

    def _versions(
        self, content: SourceContent, *, keep_vanished: bool
    ) -> Generator[None, None, tuple[list[Version], list[Problem]]]:
        """The versions to build, and what is missing: such files keep their last version.

        A vanished file keeps what was in force of it. One of which nothing was is let go.
        """
        versions = []
        missing = [
            Problem(Source(name), "", f"this cannot be read: {why}; what was good stays", "unread")
            for name, why in content.unread.items()
        ]
        for number, (name, data) in enumerate(content.files.items()):
            if number % _FILES == 0:
                yield
            known = self._state.files.get(name)
            language = content.languages.get(name, "yaml")
            good = known.good if known else None
            versions.append(Version(name, data, good, language=language))
        for number, (name, file) in enumerate(self._state.files.items()):
            if number % _FILES == 0:
                yield
            if name in content.files:
                continue
            if content.unread_above(name):
                versions.append(Version(name, file.data, file.good, language=file.language))
            elif keep_vanished and file.held is not None:
                held = file.held.data
                versions.append(Version(name, held, held, vanished=True, language=file.language))
                message = "this file has vanished: what was good stays until SIGHUP or a restart"
                missing.append(Problem(Source(name), "", message, "vanished"))
        return versions, missing

    def _note_missing(self, missing: Sequence[Problem]) -> Generator[None, None, None]:
        known = set(self._state.missing)
        if new := [problem for problem in missing if problem not in known]:
            self._stats.rule_loads["error"] += 1
            yield from log_problems(new, strict=self._policy.strict)
        self._state = replace(self._state, missing=tuple(missing))

    def _changed(self, versions: Sequence[Version]) -> Generator[None, None, bool]:
        """Whether files have come, gone or changed."""
        for number, version in enumerate(versions):
            if number % _FILES == 0:
                yield
            known = self._state.files.get(version.name)
            if known is None or known.data != version.newest:
                return True
        return len(versions) != len(self._state.files)

    def _take_over(
        self, built: Built, versions: Sequence[Version]
    ) -> Generator[None, None, Snapshot]:
        """Lets what was built hold from now on, and says what is new of its problems.

        Returns what held before. All of it comes into force in one step.
        """
        before = self._state.files
        read = {version.name: version for version in versions}
        files: dict[str, _File] = {}
        new: list[Problem] = []
        for number, report in enumerate(built.files):
            if number % _FILES == 0:
                yield
            if report.name in built.let_go:
                continue
            version = read[report.name]
            good = version.good if report.bad else version.newest
            known = before.get(report.name)
            held = _held(report, good, known, built.contradicting)
            files[report.name] = _File(version.newest, report, good, held, version.language)
            if known is None or known.data != version.newest:
                new += report.problems
        known_conflicts = set(self._state.conflicts)
        new += [each for each in built.conflicts if each not in known_conflicts]
        yield from log_problems(new, strict=self._policy.strict)
        domains, sizes, unserved = yield from self._served(built)
        accepted = yield from self._now_accepted(built, files, domains)
        missing = tuple(
            problem for problem in self._state.missing if problem.source.file not in built.let_go
        )
        emptied = not missing and all(file.language == "overlay" for file in files.values())
        self._state = _LoadState(True, files, built.conflicts, missing, sizes, accepted)
        old = self.book.swap(domains, unserved, emptied=emptied)
        yield from self._judge()
        at_us = self._loaded.at_us
        if self._verdict.fatal:
            self._stats.rule_loads["error"] += 1
        else:
            self._stats.rule_loads["success"] += 1
            at_us = now_us()
        self._loaded = Loaded(at_us, built.revision)
        while before:  # to free all of it at once would take long
            for _ in range(min(_FILES, len(before))):
                before.popitem()
            yield
        return old

    def _now_accepted(
        self, built: Built, files: Mapping[str, _File], domains: Mapping[str, Domain]
    ) -> Generator[None, None, dict[str, _InForce]]:
        """Where files contradict each other, those that held before are still in force."""
        if not self._source.leaves:
            return {}
        accepted = {
            name: file
            for name, file in self._state.accepted.items()
            if file.domain in built.contradicting and file.domain in domains
        }
        for number, (name, file) in enumerate(files.items()):
            if number % _FILES == 0:
                yield
            domain = file.report.domain
            if (
                file.good is not None
                and file.language == "resource"
                and domain not in built.contradicting
            ):
                accepted[name] = _InForce(domain, file.good)
        return accepted

    def _served(
        self, built: Built
    ) -> Generator[None, None, tuple[dict[str, Domain], dict[str, int], frozenset[str]]]:
        """The domains that hold now, how many rules these have, and those that are not served.

        Where there is nothing good, those hold that held before.
        """
        served = self.snapshot.domains
        domains, sizes, unserved = {}, {}, set()
        named = [*built.domains, *sorted(built.contradicting), *sorted(built.never_good)]
        for number, name in enumerate(dict.fromkeys(named)):
            if number % _FILES == 0:
                yield
            if name in built.domains and (name not in built.never_good or name in served):
                domains[name], sizes[name] = built.domains[name], built.rules[name]
            elif name in served:
                domains[name], sizes[name] = served[name], self._state.sizes[name]
            else:
                unserved.add(name)
        return domains, sizes, frozenset(unserved)

    def _judge(self) -> Generator[None, None, None]:
        """Finds out why files are not used, and lets health tell it."""
        loose = (*self._state.conflicts, *self._state.missing)
        verdict: dict[str, list[Problem]] = {}
        first: Problem | None = None
        wrong = 0
        of_files = ((name, each.report.problems) for name, each in self._state.files.items())
        every = chain(of_files, [("", loose)])
        looked = 0
        for name, problems in every:
            looked += 1 + len(problems)
            if looked >= _FILES:
                looked = 0
                yield
            if problems:
                wrong += sum(not each.hint for each in problems)
                if fatal := [each for each in problems if each.fatal(strict=self._policy.strict)]:
                    verdict[name] = fatal
                    first = min(fatal if first is None else [first, *fatal])
        self._verdict = _Verdict(verdict, wrong)
        if first is not None:
            number = sum(map(len, verdict.values()))
            more = f" (and {number - 1} more)" if number > 1 else ""
            self._health.degrade("rules", f"{first}{more}", logged=True)  # as each problem
        else:
            self._health.recover("rules")
        self._hold()

    def _hold(self) -> None:
        """Turns requests away for as long as there are no rules, where rules are needed."""
        if self._policy.needed:
            hold_without(self._health, self.snapshot)

    def problems(self) -> list[Problem]:
        """All that is wrong in the files, and hints, by their places."""
        state = self._state
        of_files = [problem for file in state.files.values() for problem in file.report.problems]
        return sorted([*of_files, *state.conflicts, *state.missing])


def _held(
    report: FileReport, good: bytes | None, known: _File | None, contradicting: Set[str]
) -> _InForce | None:
    """What is in force of a file: of domains that contradict themselves that is what it was."""
    if good is not None and report.used not in contradicting:
        return _InForce(report.used, good)
    if known is not None and known.held is not None and known.held.domain in contradicting:
        return known.held
    return None
