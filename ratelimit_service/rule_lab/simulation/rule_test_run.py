"""Runs tests of rules: each case on a simulator of its own, step after step.

What must not live here: how results are shown (`cli.results`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ratelimit_service.errors import BadRequestError, PolicyError
from ratelimit_service.model import SECOND_US, Code, Decision, whole_seconds
from ratelimit_service.rule_lab.simulation.cases import (
    Case,
    CaseFile,
    CaseReservation,
    CasesError,
    CaseStep,
    Expected,
)
from ratelimit_service.rule_lab.simulation.simulator import (
    SimulatedDecision,
    SimulatedReservation,
    Simulator,
)
from ratelimit_service.rule_lab.simulation.snapshots import BrokenRulesError, snapshot_of
from ratelimit_service.rules.tree import Rule, Snapshot
from ratelimit_service.settings import duration_text

__all__ = ["Coverage", "Difference", "Result", "RuleTestRun"]


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not as expected, both in the words of case files."""

    key: str
    expected: str
    got: str


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a case; `step` is the one that failed, `request` which of its `times`."""

    path: Path
    case: Case
    step: CaseStep | None = None
    request: int = 0
    differences: tuple[Difference, ...] = ()
    why: str = ""

    @property
    def passed(self) -> bool:
        """Whether everything was as expected."""
        return self.step is None


@dataclass(frozen=True, slots=True)
class Coverage:
    """The rules of all tested files, and those of them that some step has met."""

    rules: tuple[Rule, ...]
    covered: frozenset[Rule]

    @property
    def uncovered(self) -> tuple[Rule, ...]:
        """The rules that no case has met."""
        return tuple(rule for rule in self.rules if rule not in self.covered)

    @property
    def percent(self) -> float:
        """The share of rules that were met; 100 if there are none."""
        return 100 * len(self.covered) / len(self.rules) if self.rules else 100.0


class RuleTestRun:
    """Runs the cases of files, and remembers which rules they have met."""

    def __init__(self) -> None:
        self._snapshots: dict[Path, Snapshot] = {}
        self._covered: set[Rule] = set()
        self.notes: dict[str, str] = {}
        """What a service would have noted of what has run until now, by subject."""

    @property
    def coverage(self) -> Coverage:
        """Of what has run until now."""
        rules = [
            rule
            for snapshot in self._snapshots.values()
            for domain in snapshot.domains.values()
            for rule in domain.rules
        ]
        return Coverage(tuple(rules), frozenset(self._covered))

    def run(self, file: CaseFile) -> Iterator[Result]:
        """Runs the cases of a file. Raises CasesError if its rules have problems."""
        snapshot = self._snapshot(file.rules)
        for case in file.cases:
            simulator = Simulator(snapshot, case.settings)
            yield self._run(file.path, case, simulator)
            self.notes |= simulator.notes

    def _snapshot(self, path: Path) -> Snapshot:
        path = path.resolve()  # so that several test files may share rules, however they name them
        if path.is_relative_to(here := Path.cwd()):
            path = path.relative_to(here)  # for the reader
        if path not in self._snapshots:
            try:
                self._snapshots[path] = snapshot_of(path)
            except BrokenRulesError as error:
                raise CasesError(str(error)) from error
        return self._snapshots[path]

    def _run(self, path: Path, case: Case, simulator: Simulator) -> Result:
        for step in case.steps:
            for request in range(1, step.times + 1):
                last = request == step.times
                try:
                    rules, differences = _tried(step, simulator, case.start_us, last=last)
                except (BadRequestError, PolicyError) as error:
                    return Result(path, case, step, request, why=str(error))
                self._covered.update(rule for rule in rules if rule is not None)
                if differences:
                    why = _why(step, rules)
                    return Result(path, case, step, request, differences, why)
        return Result(path, case)


def _tried(
    step: CaseStep, simulator: Simulator, start_us: int, *, last: bool
) -> tuple[Sequence[Rule | None], tuple[Difference, ...]]:
    """The rules that a step meets, and where its answer is not as expected."""
    at_us, asked = start_us + step.at_us, step.reservation
    if asked is None:
        decided = simulator.decide(step.request, at_us)
        return decided.rules, tuple(_differences(step.expected, decided, last=last))
    if asked.settles:
        found = simulator.settle(step.request, asked.hits, asked.name, at_us)
    else:
        found = simulator.reserve(step.request, asked.hits, asked.name, asked.ttl_us, at_us)
    return found.rules, tuple(_of_reservation(step.expected, asked, found))


def _of_reservation(
    expected: Expected, asked: CaseReservation, found: SimulatedReservation
) -> Iterator[Difference]:
    """Where a reservation or a settle is not as expected."""
    code = Code.OK if found.passed else Code.OVER_LIMIT
    if expected.code is not None and expected.code is not code:
        yield Difference("expect", expected.code.name, code.name)
    yield from _number("held", expected.held, found.held)
    yield from _number("released", expected.released, max(0, found.held - asked.hits))
    overrun = max(0, asked.hits - found.held) if found.held else 0
    yield from _number("overrun", expected.overrun, overrun)


def _differences(
    expected: Expected, decided: SimulatedDecision, *, last: bool
) -> Iterator[Difference]:
    """Where an answer is not as expected. Numbers and headers are those of the last request."""
    decision, status = decided.decision, decided.status
    if expected.code is not None and decision.code is not expected.code:
        yield Difference("expect", expected.code.name, decision.code.name)
    if expected.statuses is not None:
        codes = tuple(each.code for each in decision.statuses)
        if codes != expected.statuses:
            yield Difference("statuses", _names(expected.statuses), _names(codes))
    if expected.rule is not None:
        rule = decided.rule
        names = {rule.path, *rule.names} if rule else {"none"}
        if expected.rule not in names:
            yield Difference("rule", expected.rule, rule.path if rule else "none")
    if not last:
        return
    limit = status.limit if status else None
    remaining = status.remaining if status and limit else None
    yield from _number("limit", expected.limit, limit.requests_per_unit if limit else None)
    yield from _number("remaining", expected.remaining, remaining)
    reset_us = status.reset_us if status else None
    yield from _seconds("reset", expected.reset_us, reset_us)
    over = decision.code is Code.OVER_LIMIT
    yield from _seconds("retry_after", expected.retry_after_us, reset_us if over else None)
    yield from _paid(expected.paid, decision.metadata or {})
    yield from _headers(expected.headers or {}, decision)


def _headers(expected: Mapping[str, str], decision: Decision) -> Iterator[Difference]:
    sent = {each.key.lower(): each.value for each in decision.response_headers}
    for name, value in expected.items():
        got = sent.get(name.lower(), "none")
        if got != value:
            yield Difference(f"headers.{name}", value, got)


def _paid(expected: str | None, metadata: Mapping[str, object]) -> Iterator[Difference]:
    """Compares which limits have paid, of each descriptor whose limits pay in turn."""
    listed = metadata.get("paid")
    names = [each["limit"] for each in listed] if isinstance(listed, list) else []
    got = ", ".join(names) or "none"
    if expected not in {None, got}:
        yield Difference("paid", str(expected), got)


def _names(codes: Iterable[Code]) -> str:
    return f"[{', '.join(code.name for code in codes)}]"


def _number(key: str, expected: int | None, got: int | None) -> Iterator[Difference]:
    if expected is not None and got != expected:
        yield Difference(key, str(expected), "none" if got is None else str(got))


def _seconds(key: str, expected_us: int | None, got_us: int | None) -> Iterator[Difference]:
    """Compares waits as callers are told them: in whole seconds, rounded up."""
    if expected_us is None:
        return
    got = None if got_us is None else whole_seconds(got_us) * SECOND_US
    if got != expected_us:
        yield Difference(
            key, duration_text(expected_us), "none" if got is None else duration_text(got)
        )


def _why(step: CaseStep, rules: Iterable[Rule | None]) -> str:
    """What the reader should look at: the rules that the request met."""
    met = [
        f"rule {rule.path} at {rule.source}" if rule else "no rule" for rule in dict.fromkeys(rules)
    ]
    return f"it met {' and '.join(met)} of domain {step.request.domain}"
