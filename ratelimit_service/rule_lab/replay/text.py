"""A report as lines for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ratelimit_service.containers.sketches import Frequent
from ratelimit_service.rule_lab.replay.report import (
    ChangeReport,
    LimitReport,
    Report,
    RuleReport,
    side_changes,
)

__all__ = ["frequent", "headline", "lines_of", "part", "suggested"]

_SHOWN = 5
"""Names in a line."""


def lines_of(report: Report) -> Iterator[str]:
    """The whole report."""
    yield from headline(report)
    yield from _changes(report)
    for note in report.notes:
        yield f"  note: {note}"
    for rule in report.rules:
        yield ""
        yield from _rule(rule)
    for rule in report.removed:
        yield ""
        yield f"{rule.rule} of {rule.domain} ({rule.source}) was met in the old rules only"
        yield f"  asked {rule.asked:,}, denied {part(rule.denied, rule.asked)}"
    if report.unmet or report.unmatched:
        yield ""
    for unmet in report.unmet:
        yield f"{unmet.rule} of {unmet.domain} ({unmet.source}): no request met it"
    for domain, count in report.unmatched.items():
        yield f"domain {domain}: {_requests(count)} had a descriptor that met no rule"


def _changes(report: Report | RuleReport) -> Iterator[str]:
    for what, change in side_changes(report):
        yield f"  {changed(change)} {what}: {frequent(change.top[:_SHOWN])}"


def headline(report: Report) -> Iterator[str]:
    """What was asked, and what came of it, in a few sentences."""
    yield f"{_requests(report.requests)} from {report.first} to {report.last}"
    yield f"{report.new} denies {part(report.denied, report.requests)}"
    if report.denied_before is not None:
        yield f"{report.old} denies {part(report.denied_before, report.requests)}"
        if not report.changes:
            yield "no request changes side"
    if report.recorded:
        recorded = sum(report.recorded.values())
        denied = report.recorded.get("OVER_LIMIT", 0)
        yield f"the logs say that {part(denied, recorded)} were denied when they were recorded"


def changed(change: ChangeReport) -> str:
    """How many requests, of how many callers."""
    callers = f"{change.callers:,} caller{'' if change.callers == 1 else 's'}"
    verb = "is" if change.requests == 1 else "are"
    return f"{_requests(change.requests)} of {callers} {verb}"


def _requests(number: int) -> str:
    return f"{number:,} request{'' if number == 1 else 's'}"


def _rule(rule: RuleReport) -> Iterator[str]:
    mode = "" if rule.mode == "enforced" else f", {rule.mode}"
    source = f" ({rule.source})" if rule.source else ""
    yield f"{rule.rule} of {rule.domain}{source}{mode}"
    about = "" if rule.callers_exact else "about "
    callers = f"{about}{rule.callers:,} caller{'' if rule.callers == 1 else 's'}"
    yield f"  asked {rule.asked:,} by {callers}, denied {part(rule.denied, rule.asked)}"
    if rule.denied_before is not None and rule.denied_before != rule.denied:
        yield f"  denied {rule.denied_before:,} by the old rules"
    if rule.admitted_over:
        yield f"  over but let through {part(rule.admitted_over, rule.asked)}"
    if rule.held_back:
        yield f"  denied by other rules {part(rule.held_back, rule.asked)}"
    yield f"  busiest second {rule.busiest_second:,}, at {rule.busiest_second_at}"
    for limit in rule.limits:
        yield from _limit(limit)
    if rule.top_denied:
        names = frequent(rule.top_denied[:_SHOWN], rule.denials)
        yield f"  denied most often: {names}"
    yield from _changes(rule)
    for finding in rule.findings:
        yield f"  -> {finding.text}"


def _limit(limit: LimitReport) -> Iterator[str]:
    yield f"  {limit.text}"
    if limit.peak:
        share = f"{limit.peak_percent:g} %"
        yield f"    at most {limit.peak:,} used ({share}), by {limit.peak_caller}, {limit.peak_at}"
    if limit.suggestions:
        yield f"    {suggested(limit)}"


def suggested(limit: LimitReport) -> str:
    """The suggestions as one sentence."""
    parts = [
        f"{'more than ' if one.beyond else ''}{one.number:,} for {one.percent:g} %"
        for one in limit.suggestions
    ]
    key = limit.suggestions[0].key
    return f"smallest {key} that denies at most so many callers: {', '.join(parts)}"


def frequent(names: Sequence[Frequent], whole: int = 0) -> str:
    """Names with how often they came; one that is not sure has a mark."""
    return ", ".join(
        f"{each.name} {'~' if each.error else ''}{each.times:,}"
        + (f" ({100 * each.times / whole:.0f} %)" if whole else "")
        for each in names
    )


def part(number: int, whole: int) -> str:
    """A number, and what part of the whole it is."""
    return f"{number:,} ({100 * number / whole:.1f} %)" if whole else f"{number:,}"
