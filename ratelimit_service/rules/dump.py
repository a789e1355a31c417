"""The rules that hold now as text, for `/rlconfig`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

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
    limit = rule.limit
    if limit is None:
        parts = [f"{key}: unlimited: true"]
    else:
        parts = [
            f"{key}: unit={limit.unit.name} requests_per_unit={limit.requests_per_unit}",
            f"shadow_mode: {str(rule.shadow_mode).lower()}",
            f"quota_mode: {str(rule.quota_mode).lower()}",
        ]
        if limit.multiplier != 1:
            parts.append(f"unit_multiplier: {limit.multiplier}")
        parts.append(f"algorithm: {rule.algorithm}")
    if rule.name:
        parts.append(f"name: {rule.name}")
    if rule.replaces:
        parts.append(f"replaces: {' '.join(sorted(rule.replaces))}")
    if rule.count_denied:
        parts.append("count_denied: true")
    if rule.failure_policy:
        parts.append(f"failure_policy: {rule.failure_policy}")
    parts.append(f"at {rule.source}")
    return ", ".join(parts)
