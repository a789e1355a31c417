"""What a replay has found, as values: rule by rule, with findings to act on.

What must not live here: how it is shown (`text`, `page`), and which findings there are
(`findings`).
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Final

from ratelimit_service.containers.sketches import Frequent, TopNames
from ratelimit_service.limiter.compiled import Kind
from ratelimit_service.model import Mode
from ratelimit_service.rule_lab.replay.findings import Finding, Suggestion, findings_of, suggestions
from ratelimit_service.rule_lab.replay.play import Replay, SideChanges
from ratelimit_service.rule_lab.replay.sketches import CallerSample
from ratelimit_service.rule_lab.replay.timeline import Span, Timeline
from ratelimit_service.rule_lab.replay.trace import Trace
from ratelimit_service.rule_lab.replay.use import LimitUse, RuleUse
from ratelimit_service.rules.texts import limit_text

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = [
    "DEMAND_BOUNDS",
    "ChangeReport",
    "LimitReport",
    "Plot",
    "Report",
    "RuleReport",
    "as_json",
    "moment",
    "report_of",
    "side_changes",
]

SCHEMA: Final = 1
"""The version of the report as JSON."""

_TOP: Final = 10
_SPANS: Final = 120

DEMAND_BOUNDS: Final = (0.1, 0.25, 0.5, 0.75, 1.0, 1.2, 1.5, 2.0, 5.0, 10.0)
"""Bounds of callers' demand, in limits, for the plot; what is above comes last."""


@dataclass(frozen=True, slots=True)
class Plot:
    """What came when: spans of one width, in seconds."""

    width_seconds: int
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class LimitReport:
    """One limit. Numbers of it are hits; `denied` are requests."""

    text: str
    most: int
    """The most hits that it holds, its soft part included."""
    peak: int
    peak_percent: float
    peak_caller: str
    peak_at: str
    denied: int
    suggestions: tuple[Suggestion, ...]
    demand: tuple[int, ...]
    """Callers by how much they asked at most: up to each of `DEMAND_BOUNDS`, and more."""


@dataclass(frozen=True, slots=True)
class ChangeReport:
    """Requests that change side, how many callers that are, and who most often."""

    requests: int
    callers: int
    top: tuple[Frequent, ...]


@dataclass(frozen=True, slots=True)
class RuleReport:
    """One rule; numbers are requests."""

    domain: str
    rule: str
    source: str
    mode: str
    asked: int
    hits: int
    allowed: int
    denied: int
    admitted_over: int
    held_back: int
    refunds: int
    callers: int
    callers_exact: bool
    callers_denied_percent: float
    busiest_second: int
    busiest_second_at: str
    limits: tuple[LimitReport, ...]
    denials: int
    """What the names in `top_denied` are of; it includes what a shadow would have denied."""
    top_denied: tuple[Frequent, ...]
    findings: tuple[Finding, ...]
    plot: Plot
    denied_before: int | None = None
    newly_denied: ChangeReport | None = None
    newly_allowed: ChangeReport | None = None


@dataclass(frozen=True, slots=True)
class UnmetRule:
    """A rule that no request met."""

    domain: str
    rule: str
    source: str


@dataclass(frozen=True, slots=True)
class Report:
    """All of it. Times are of RFC 3339 in UTC."""

    new: str
    old: str | None
    logs: tuple[str, ...]
    requests: int
    first: str
    last: str
    denied: int
    denied_before: int | None
    recorded: dict[str, int]
    """What the logs say was answered, by code, where they do."""
    newly_denied: ChangeReport | None
    newly_allowed: ChangeReport | None
    rules: tuple[RuleReport, ...]
    removed: tuple[RuleReport, ...]
    """Rules that requests met in the old ones only, with what they were asked there.

    The new ones may have them, too: then other rules go before them now.
    """
    unmet: tuple[UnmetRule, ...]
    unmatched: dict[str, int]
    """Requests in which a descriptor met no rule, by domain."""
    notes: tuple[str, ...]
    """What is to be known before the numbers are believed."""
    plot: Plot

    @property
    def changes(self) -> bool:
        """Whether any request changes side."""
        return any(side_changes(self))


def side_changes(report: Report | RuleReport) -> Iterator[tuple[str, ChangeReport]]:
    """What changes side, `newly denied` and `newly allowed`, if anything does."""
    for what, change in (
        ("newly denied", report.newly_denied),
        ("newly allowed", report.newly_allowed),
    ):
        if change is not None and change.requests:
            yield what, change


def as_json(report: Report) -> dict[str, object]:
    """The report for programs."""
    return {"version": SCHEMA, **_fields(report)}


def _fields(value: DataclassInstance) -> dict[str, object]:
    return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}


def _plain(value: object) -> object:
    """The value as JSON has it."""
    if isinstance(value, Span):
        start = moment(value.start_us)
        return {"start": start, "asked": value.requests, "denied": value.denied}
    if isinstance(value, Frequent):
        return value._asdict()
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if is_dataclass(value) and not isinstance(value, type):
        return _fields(value)
    return value


def moment(at_us: int) -> str:
    """A moment in microseconds since 1970, as RFC 3339 has it, in whole seconds."""
    if not at_us:
        return ""
    at = datetime.datetime.fromtimestamp(at_us // 1_000_000, datetime.UTC)
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def report_of(
    replay: Replay,
    *,
    new: str,
    old: str | None,
    logs: Sequence[str],
    percent: float,
    notes: Sequence[str] = (),
) -> Report:
    """What a replay has found. Suggested are limits that deny at most so many percent of callers.

    `new`, `old` and `logs` say in words what was compared.
    """
    before = replay.old
    keys = replay.new.uses.keys()
    rules = [
        _rule(key, use, before.uses.get(key) if before else None, replay, percent)
        for key, use in replay.new.uses.items()
    ]
    removed = [
        _rule(key, use, use, replay, percent)
        for key, use in (before.uses.items() if before else ())
        if key not in keys
    ]
    rules.sort(key=_importance)
    return Report(
        new=new,
        old=old,
        logs=tuple(logs),
        requests=replay.requests,
        first=moment(replay.first_us),
        last=moment(replay.last_us),
        denied=replay.new.denied,
        denied_before=before.denied if before else None,
        recorded={code.name: count for code, count in sorted(replay.recorded.items())},
        newly_denied=_side(replay.newly_denied) if before else None,
        newly_allowed=_side(replay.newly_allowed) if before else None,
        rules=tuple(rules),
        removed=tuple(sorted(removed, key=_importance)),
        unmet=_unmet(replay.new),
        unmatched=dict(replay.new.unmatched.most_common()),
        notes=(*_notes(replay), *notes),
        plot=_plot(replay.new.timeline),
    )


def _importance(rule: RuleReport) -> tuple[int, int, str, str]:
    return -rule.denials, -rule.asked, rule.domain, rule.rule


def _rule(
    key: tuple[str, str], use: RuleUse, before: RuleUse | None, replay: Replay, percent: float
) -> RuleReport:
    domain, path = key
    declared = use.declared
    compared = replay.old is not None
    denied_callers = sum(caller.denied > 0 for caller in use.callers)
    limits = tuple(_limit(limit, index, use, percent) for index, limit in enumerate(use.limits))
    over = use.denied + use.admitted_over
    busiest, busiest_us = use.timeline.busiest()
    return RuleReport(
        domain=domain,
        rule=path or "limits that callers bring",
        source=str(declared.source) if declared else "",
        mode=_mode(use),
        asked=use.requests,
        hits=use.hits,
        allowed=use.requests - use.denied - use.held_back,
        denied=use.denied,
        admitted_over=use.admitted_over,
        held_back=use.held_back,
        refunds=use.refunds,
        callers=use.callers.distinct(),
        callers_exact=use.callers.exact,
        callers_denied_percent=_percent(denied_callers, len(use.callers)),
        busiest_second=busiest,
        busiest_second_at=moment(busiest_us),
        limits=limits,
        denials=over,
        top_denied=tuple(use.deniers.top(_TOP)),
        findings=tuple(findings_of(use, percent)),
        plot=_plot(use.timeline),
        denied_before=(before.denied if before else 0) if compared else None,
        newly_denied=_of_rule(use) if compared and use is not before else None,
        newly_allowed=_of_rule(before) if compared and before else None,
    )


def _mode(use: RuleUse) -> str:
    if use.rule.kind is Kind.UNLIMITED:
        return "unlimited"
    return {Mode.ENFORCED: "enforced", Mode.SHADOW: "shadow", Mode.QUOTA: "quota"}[use.rule.mode]


def _limit(limit: LimitUse, index: int, use: RuleUse, percent: float) -> LimitReport:
    most = limit.spec.limit
    demand = [0] * (len(DEMAND_BOUNDS) + 1)
    if limit.demand is not None and most:
        for caller in use.callers:
            share = caller.peaks[index] / most
            demand[sum(share > bound for bound in DEMAND_BOUNDS)] += 1
    return LimitReport(
        text=limit_text(limit.limit),
        most=most,
        peak=max(0, limit.peak),
        peak_percent=_percent(max(0, limit.peak), most),
        peak_caller=limit.peak_name,
        peak_at=moment(limit.peak_us),
        denied=limit.denied,
        suggestions=tuple(suggestions(limit, index, use, percent)),
        demand=tuple(demand),
    )


def _percent(part: int, whole: int) -> float:
    return round(100 * part / whole, 1) if whole else 0.0


def _change(requests: int, callers: CallerSample[str], names: TopNames[str]) -> ChangeReport:
    return ChangeReport(requests, callers.distinct(), tuple(names.top(_TOP)))


def _side(changes: SideChanges) -> ChangeReport:
    return _change(changes.requests, changes.callers, changes.names)


def _of_rule(use: RuleUse) -> ChangeReport:
    return _change(use.changed.total, use.changed_callers, use.changed)


def _unmet(trace: Trace) -> tuple[UnmetRule, ...]:
    matched = {  # a rule has several uses if its limits hold at different times
        (domain, use.declared.path)
        for (domain, _), use in trace.uses.items()
        if use.declared is not None
    }
    return tuple(
        UnmetRule(domain.name, rule.path, str(rule.source))
        for domain in trace.snapshot.domains.values()
        for rule in domain.rules
        if (domain.name, rule.path) not in matched
    )


def _plot(timeline: Timeline) -> Plot:
    spans = tuple(timeline.spans(_SPANS))
    return Plot(timeline.width_us // 1_000_000, spans)


def _notes(replay: Replay) -> list[str]:
    notes = []
    if replay.late:
        notes.append(
            f"{replay.late:,} requests stood more than 10,000 lines too late in their log: "
            "they were asked at the time that the replay had come to"
        )
    if lost := replay.new.lost + (replay.old.lost if replay.old else 0):
        notes.append(
            f"{lost:,} counters had to make room for others while they still counted, so fewer "
            "requests were denied than should be: raise --max-counters"
        )
    return notes
