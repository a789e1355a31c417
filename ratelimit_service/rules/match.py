"""Which rule a descriptor meets. Pure, and the same walk for deciding and explaining.

Entry by entry, as envoyproxy/ratelimit: the exact value (one of a list and a pattern's text are
such, too), else the matcher that the value goes to, else the key alone; no turning back, and the
last entry's node must hold the rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from ratelimit_service.model import Entry, new_tuple
from ratelimit_service.observer import MAX_VALUE_BYTES, OTHER
from ratelimit_service.rules.paths import path_text
from ratelimit_service.rules.tree import Domain, Level, Node, Rule
from ratelimit_service.spread import PLACES

__all__ = ["Match", "find", "match", "match_any_value"]


class Match(NamedTuple):
    """The node whose rule is met, if any, and what its counter counts.

    `identity` are the entries, with a matcher's name in place of the value where `shared` names the
    entry's place; `metric_value` selects the rule's tally, "" its own. Where addresses are grouped
    the network is the value, and `shared` too. It is `stray` if a value is no address.
    """

    node: Node | None
    identity: Sequence[tuple[str, str]] = ()
    shared: tuple[int, ...] = ()
    metric_value: str = ""
    stray: bool = False

    @property
    def rule(self) -> Rule | None:
        """The rule that is met."""
        return None if self.node is None else self.node.rule


_NO_RULE: Final = Match(None)


def find(level: Level, entry: Entry, minute: int = 0) -> Node | None:
    """The node of a level that an entry goes to, in a minute from the Unix epoch."""
    key, value = entry
    by_value = level.exact.get(key)
    if by_value is not None:
        if isinstance(by_value, dict):
            node = by_value.get(value)
        else:
            node = by_value.parts[hash(value) & PLACES].get(value)
        if node is not None:
            return node
    asked = level.matching.get(key)
    if asked is not None:
        node = asked.find(value, minute)
        if node is not None:
            return node
    return level.default.get(key)


def match(domain: Domain, entries: Sequence[Entry], minute: int = 0) -> Match:
    """The rule that limits a descriptor with these entries, in a minute from the Unix epoch."""
    level: Level | None = domain.root
    nodes: list[Node] = []
    special = False
    node = None
    for entry in entries:
        node = find(level, entry, minute) if level else None
        if node is None:
            return _NO_RULE
        if node.special:
            special = True
        nodes.append(node)
        level = node.children
    if node is None or not node.has_rule:
        return _NO_RULE
    if special or node.detailed:
        return _special(nodes, entries)
    return new_tuple(Match, (node, entries, (), "", False))


def match_any_value(domain: Domain, entries: Sequence[Entry], minute: int = 0) -> Node | None:
    """The node whose rule descriptors with these entries meet, whatever the last one's value.

    None if that value matters, even if only to metrics.
    """
    level: Level | None = domain.root
    node = None
    for place, entry in enumerate(entries, 1):
        if level is None:
            return None
        if place < len(entries):
            node = find(level, entry, minute)
        elif entry.key not in level.exact and entry.key not in level.matching:
            node = level.default.get(entry.key)
        else:
            return None
        if node is None or node.special:
            return None
        level = node.children
    return None if node is None or not node.has_rule or node.detailed else node


def _special(nodes: Sequence[Node], entries: Sequence[Entry]) -> Match:
    """A match with shared thresholds, or whose values are shown in metrics.

    What metrics show of a shared value is its matcher's name.
    """
    shared: list[int] = []
    identity: list[tuple[str, str]] = []
    stray = False
    for place, (node, entry) in enumerate(zip(nodes, entries, strict=True)):
        key, value = entry
        if node.share_threshold:
            shared.append(place)
            value = node.value
        elif node.grouping is not None:
            grouped = node.grouping.of(value)
            if grouped is None:
                stray = True
            else:
                value = grouped
                if "/" in grouped:  # another caller may send this very text as its value
                    shared.append(place)
        identity.append((key, value))
    shown = [
        entry
        for node, entry in zip(nodes, identity, strict=True)
        # An exact value is in the rule's path already.
        if nodes[-1].detailed
        or (node.value_to_metric and (node.matcher is not None or not node.value))
    ]
    if sum([len(key) + len(value) for key, value in shown]) > MAX_VALUE_BYTES:
        metric_value = OTHER  # as it would be counted, but cheaper
    else:
        metric_value = path_text(shown) if shown else ""
    return Match(nodes[-1], tuple(identity), tuple(shared), metric_value, stray)
