"""How changes of rules are shown: for people, for programs, and for a pull request's comment.

What must not live here: what is a change (`ratelimit_service.rule_lab.comparison`).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from ratelimit_service.rule_lab.comparison import Callers, Change, ChangeKind
from ratelimit_service.rule_lab.comparison.policies import policy_text
from ratelimit_service.rules.paths import path_text
from ratelimit_service.rules.tree import Rule
from ratelimit_service.text.display import count, printable

__all__ = ["FORMATS", "summary"]


def summary(changes: Sequence[Change]) -> str:
    """How many changes there are, and of which kinds."""
    if not changes:
        return "no changes"
    kinds = Counter(change.kind for change in changes)
    parts = [f"{kinds[kind]} {_KINDS[kind]}" for kind in ChangeKind if kinds[kind]]
    return f"{count(len(changes), 'change')}: {', '.join(parts)}"


_KINDS = {kind: str(kind) for kind in ChangeKind} | {ChangeKind.CALLERS: "of callers"}


def _text(changes: Sequence[Change]) -> Iterator[str]:
    for change in changes:
        yield f"{change.kind}: {_subject(change)}"
        for before, after in _sides(change):
            if before:
                yield f"  - {before}"
            if after:
                yield f"  + {after}"
        yield from (f"  {note}" for note in _notes(change))


def _subject(change: Change) -> str:
    where = change.path or "the whole domain"
    rule = change.new or change.old
    at = f" at {rule.source}" if rule and change.kind is not ChangeKind.CALLERS else ""
    return f"domain {change.domain}: {where}{at}"


def _sides(change: Change) -> Iterator[tuple[str, str]]:
    """What held and what holds, as pairs; "" where there is nothing to be said."""
    if change.details:
        yield from ((detail.old, detail.new) for detail in change.details)
    elif change.kind is ChangeKind.CALLERS:
        yield _rule_text(change.old), _rule_text(change.new)
    elif change.path:
        yield (
            policy_text(change.old) if change.old else "",
            policy_text(change.new) if change.new else "",
        )


def _notes(change: Change) -> Iterator[str]:
    """What a reader has to know beside both sides."""
    if not change.path and change.kind is ChangeKind.ADDED:
        yield "the domain is known now: limits that callers bring along are counted, too"
    if not change.path and change.kind is ChangeKind.REMOVED:
        yield "the domain is not known any more: its requests are allowed, and nothing is counted"
    for reason in change.anew:
        yield f"counters start anew: {reason}"
    for callers in change.callers:
        yield _callers_text(change, callers)


def _callers_text(change: Change, callers: Callers) -> str:
    anew = "; their counters start anew" if callers.anew else ""
    such = f"callers such as {path_text(callers.example)}"
    if change.kind is ChangeKind.ADDED:
        return f"{such} met {_rule_text(callers.old)}{anew}"
    if change.kind is ChangeKind.REMOVED:
        return f"{such} meet {_rule_text(callers.new)} now{anew}"
    return f"{such} meet another rule{anew}"


def _rule_text(rule: Rule | None) -> str:
    return f"rule {rule.path} ({policy_text(rule)})" if rule else "no rule"


def _json(changes: Sequence[Change]) -> Iterator[str]:
    yield json.dumps([_described(change) for change in changes], indent=2)


def _described(change: Change) -> dict[str, object]:
    return {
        "kind": change.kind,
        "domain": change.domain,
        "rule": change.path or None,
        "old": _rule(change.old),
        "new": _rule(change.new),
        "details": [
            {"kind": item.kind, "old": item.old or None, "new": item.new or None}
            for item in change.details
        ],
        "counters_start_anew": list(change.anew),
        "callers": [
            {
                "example": [list(entry) for entry in item.example],
                "old": _rule(item.old),
                "new": _rule(item.new),
                "counters_start_anew": item.anew,
            }
            for item in change.callers
        ],
    }


def _rule(rule: Rule | None) -> dict[str, object] | None:
    if rule is None:
        return None
    return {"rule": rule.path, "source": str(rule.source), "policy": policy_text(rule)}


def _markdown(changes: Sequence[Change]) -> Iterator[str]:
    """A table for a comment. Words of the files are code, never markup."""
    yield f"**Rules: {summary(changes)}.**"
    if not changes:
        return
    yield ""
    yield "| | domain | rule | before | after | |"
    yield "|---|---|---|---|---|---|"
    for change in changes:
        sides = list(_sides(change)) or [("", "")]
        cells = [
            f"**{change.kind}**",
            _code(change.domain),
            _code(change.path) or "the whole domain",
            "<br>".join(_code(before) or "—" for before, _ in sides),
            "<br>".join(_code(after) or "—" for _, after in sides),
            "<br>".join(_code(note) for note in _notes(change)),
        ]
        yield f"| {' | '.join(cells)} |"


def _code(text: str) -> str:
    """Text as code in a table's cell, whatever stands in it."""
    if not text:
        return ""
    text = printable(text).replace("|", "\\|")
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * (longest + 1)
    space = " " if "`" in text else ""
    return f"{fence}{space}{text}{space}{fence}"


FORMATS: Mapping[str, Callable[[Sequence[Change]], Iterator[str]]] = {
    "text": _text,
    "json": _json,
    "markdown": _markdown,
}
"""The ways to show changes, each as lines."""
