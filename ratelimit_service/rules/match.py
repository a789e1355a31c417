"""Which rule a descriptor meets. Pure, and the same walk for deciding and explaining.

Entry by entry, as envoyproxy/ratelimit: the exact value, else the first pattern declared
that matches, else the key alone; no turning back, and the last entry's node must hold the rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ratelimit_service.model import Entry
from ratelimit_service.rules.tree import Domain, Level, Node, Rule, path_text

__all__ = ["Match", "find", "match"]


class Match(NamedTuple):
    """The rule met, if any, and what its counter counts.

    `identity` is (key, value, whether the value is a shared pattern) for each entry;
    `metric_value` selects the rule's tally, "" its own.
    """

    rule: Rule | None
    identity: tuple[tuple[str, str, bool], ...] = ()
    metric_value: str = ""


_NO_RULE = Match(None)


def find(level: Level, entry: Entry) -> Node | None:
    """The node of a level that an entry goes to."""
    node = level.exact.get(entry)
    if node is not None:
        return node
    for node in level.patterns.get(entry.key, ()):
        if node.pattern and node.pattern.matches(entry.value):
            return node
    return level.default.get(entry.key)


def match(domain: Domain, entries: Sequence[Entry]) -> Match:
    """The rule that limits a descriptor with these entries."""
    level: Level | None = domain.root
    nodes: list[Node] = []
    identity: list[tuple[str, str, bool]] = []
    node = None
    for entry in entries:
        node = find(level, entry) if level else None
        if node is None:
            return _NO_RULE
        key, value = entry
        identity.append((key, node.value, True) if node.share_threshold else (key, value, False))
        nodes.append(node)
        level = node.children
    rule = node.rule if node else None
    if rule is None:
        return _NO_RULE
    return Match(rule, tuple(identity), _metric_value(rule, nodes, identity))


def _metric_value(
    rule: Rule, nodes: Sequence[Node], identity: Sequence[tuple[str, str, bool]]
) -> str:
    """The entries whose runtime values the rule's metrics show; a shared one shows its pattern."""
    if rule.detailed_metric:
        return path_text([(key, value) for key, value, _ in identity])
    shown = []
    for node, (key, value, _) in zip(nodes, identity, strict=True):
        # An exact value is in the rule's path already.
        if node.value_to_metric and (node.pattern or not node.value):
            shown.append((key, value))
    return path_text(shown) if shown else ""
