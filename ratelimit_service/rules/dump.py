"""The rules that hold now as text, for `/rlconfig`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ratelimit_service.model import WEEKDAYS, Anchor, Calendar, Limit, Unit
from ratelimit_service.rules.tree import Node, Rule, Snapshot

__all__ = ["dump"]


def dump(snapshot: Snapshot) -> Iterator[str]:
    """One line a rule, domains by name, rules as declared.

    It begins as envoyproxy/ratelimit's does: the joined key, unit, requests_per_unit and the
    shadow and quota flags; the rest of what a rule says follows, where it says it.
    """
    for name in sorted(snapshot.domains):
        for key, rule in _rules(snapshot.domains[name].root.nodes, name):
            yield _line(key, rule) + "\n"
    for name in sorted(snapshot.unserved):
        yield f"{name}: not served, its rules never loaded\n"


def _rules(nodes: Iterable[Node], above: str) -> Iterator[tuple[str, Rule]]:
    for node in nodes:
        key = f"{above}.{node.key}_{node.value}" if node.value else f"{above}.{node.key}"
        if node.rule:
            yield key, node.rule
        if node.children:
            yield from _rules(node.children.nodes, key)


def _line(key: str, rule: Rule) -> str:
    if rule.unlimited:
        parts = [f"{key}: unlimited: true"]
    else:
        first, *others = rule.limits
        parts = [
            f"{key}: unit={first.unit.name} requests_per_unit={first.requests_per_unit}",
            f"shadow_mode: {str(rule.shadow_mode).lower()}",
            f"quota_mode: {str(rule.quota_mode).lower()}",
            *_rest(first),
        ]
        for other in others:
            parts.append(f"and unit={other.unit.name} requests_per_unit={other.requests_per_unit}")
            parts += _rest(other)
    if rule.unlimited and rule.names:
        parts.append(f"name: {' '.join(sorted(rule.names))}")
    if rule.replaces:
        parts.append(f"replaces: {' '.join(sorted(rule.replaces))}")
    if rule.failure_policy:
        parts.append(f"failure_policy: {rule.failure_policy}")
    parts.append(f"at {rule.source}")
    return ", ".join(parts)


def _rest(limit: Limit) -> Iterator[str]:
    """What a limit says beside its number and unit, by the names of the rule files."""
    if limit.multiplier != 1:
        yield f"unit_multiplier: {limit.multiplier}"
    yield f"algorithm: {limit.algorithm}"
    if isinstance(limit.anchor, Calendar):
        yield "per: calendar"
        yield f"time_zone: {limit.anchor.time_zone}"
        if limit.unit is Unit.WEEK:
            yield f"week_start: {WEEKDAYS[limit.anchor.week_start]}"
    elif limit.anchor is not Anchor.CLOCK:
        yield f"anchor: {limit.anchor}"
    if limit.burst is not None:
        yield f"burst: {limit.burst}"
    if limit.stepped:
        yield "refill: stepped"
    if limit.buckets:
        yield f"buckets: {limit.buckets}"
    if limit.max_wait_us:
        yield f"max_wait: {limit.max_wait_us // 1_000}ms"
    if limit.soft_ppm:
        yield f"soft: {limit.soft_ppm / 10_000:g}%"
    if limit.count_denied:
        yield "count_denied: true"
    if limit.name:
        yield f"name: {limit.name}"
