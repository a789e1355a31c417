"""What a reload has changed, for the log: rules that have come, gone and become others.

It looks at a few rules at a time, so that no request waits for it. Which callers meet another rule
is no part of it (`compare`): that would take too long beside requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ratelimit_service.containers.spread import SpreadTable
from ratelimit_service.eventloop.slices import slowly, stepwise
from ratelimit_service.rule_lab.comparison.changes import Detail
from ratelimit_service.rule_lab.comparison.policies import PlacedRule, details
from ratelimit_service.rules.reload_log import ReloadDifference
from ratelimit_service.rules.tree import Domain, ways

__all__ = ["difference"]

_MOST_EXAMPLES = 3

_COMPARED = 8
"""Rules that are compared at once: what has changed in one takes 0.1 ms to find."""

_WALKED = 200
"""Rules that are looked at at once, most of which have not changed."""


async def difference(old: Mapping[str, Domain], new: Mapping[str, Domain]) -> ReloadDifference:
    """What is another in meaning, in numbers, with the first changes in words."""
    added = removed = changed = 0
    examples: list[str] = []
    for name in (*new, *(gone for gone in old if gone not in new)):
        if old.get(name) is new.get(name):
            continue
        before: SpreadTable[str, PlacedRule] = SpreadTable()
        async for rule in slowly(_rules(old.get(name)), _WALKED):
            before[rule.rule.path] = rule
        come: list[tuple[PlacedRule, PlacedRule]] = []
        async for rule in slowly(_rules(new.get(name)), _WALKED):
            former = before.pop(rule.rule.path)
            if former is None:
                added += 1
            elif not _untouched(former, rule):
                come.append((former, rule))
        come.reverse()
        async for _ in slowly(range(len(come)), _COMPARED):
            former, rule = come.pop()  # one by one: to free them all at once would take long
            if changes := details(former, rule):
                changed += 1
                if len(examples) < _MOST_EXAMPLES:
                    texts = ", ".join(map(_text, changes))
                    examples.append(f"{name}: {rule.rule.path} {texts}")
        removed += len(before)
        await stepwise(before.emptying())
    return ReloadDifference(added, removed, changed, tuple(examples))


def _untouched(old: PlacedRule, new: PlacedRule) -> bool:
    """Whether nothing on the way to a rule was read again."""
    return all(one is other for one, other in zip(old.way, new.way, strict=True))


def _rules(domain: Domain | None) -> Iterator[PlacedRule]:
    for way in ways(domain.root.nodes) if domain else ():
        rule = way[-1].rule
        if rule is not None:
            yield PlacedRule(rule, way)


def _text(detail: Detail) -> str:
    """`5 → 20 per minute`, where only the number is another; else both sides in full."""
    before, _, unit = detail.old.partition(" ")
    after, _, other_unit = detail.new.partition(" ")
    if unit and unit == other_unit and before.isdigit() and after.isdigit():
        return f"{before} → {after} {unit}"
    return f"{detail.old or 'nothing'} → {detail.new or 'nothing'}"
