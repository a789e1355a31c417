"""Which rule a descriptor meets. Pure, and the same walk for deciding and explaining.

Entry by entry, as envoyproxy/ratelimit: the exact value (one of a list and a pattern's text are
such, too), else the matcher that the value goes to, else the key alone; no turning back, and the
last entry's node must hold the rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from ratelimit_service.containers.spread import PARTS
from ratelimit_service.model import Entry, new_tuple
from ratelimit_service.observability.stats import MAX_VALUE_BYTES, OTHER
from ratelimit_service.rules.matchers.pattern import Pattern
from ratelimit_service.rules.paths import path_text
from ratelimit_service.rules.tree import (
    DETAILED,
    NO_RULE,
    SPECIAL,
    Domain,
    Level,
    MatchedNode,
    Node,
    Rule,
)

__all__ = ["Match", "find", "look_up", "match", "match_any_value", "may_match"]


class Match(NamedTuple):
    """The node whose rule is met, if any, and what its counter counts.

    `identity` are the entries, with a matcher's name in place of the value where `shared` names the
    entry's index; `metric_value` selects the rule's tally, "" its own. Where addresses are grouped
    the network is the value, and `shared` too. It is `stray` if a value is no address.
    """

    node: MatchedNode | None
    identity: Sequence[tuple[str, str]] = ()
    shared: tuple[int, ...] = ()
    metric_value: str = ""
    stray: bool = False

    @property
    def rule(self) -> Rule | None:
        """The rule that is met."""
        return None if self.node is None else self.node.declared


_NO_RULE: Final = Match(None)


def find(level: Level, entry: Entry, minute: int = 0) -> Node | None:
    """The node of a level that an entry goes to, in a minute from the Unix epoch."""
    matched = look_up(level, entry, minute)
    return None if matched is None else matched.node


def look_up(level: Level, entry: Entry, minute: int = 0) -> MatchedNode | None:
    """As `find`, the node as a request matches it."""
    key, value = entry
    by_value = level.exact.get(key)
    if by_value is not None:
        if isinstance(by_value, dict):
            matched = by_value.get(value)
        else:
            matched = by_value.parts[hash(value) % PARTS].get(value)
        if matched is not None:
            return matched
    matchers = level.matching.get(key)
    if matchers is not None:
        matched = matchers.find(value, minute)
        if matched is not None:
            return matched
    return level.default.get(key)


def match(domain: Domain, entries: Sequence[Entry], minute: int = 0) -> Match:
    """The rule that limits a descriptor with these entries, in a minute from the Unix epoch."""
    level: Level | None = domain.root
    way: list[MatchedNode] = []
    flags = 0
    all_flags = 0
    matched = None
    for entry in entries:
        matched = look_up(level, entry, minute) if level else None
        if matched is None:
            return _NO_RULE
        flags = matched.flags
        all_flags |= flags
        way.append(matched)
        level = matched.children
    if matched is None or flags & NO_RULE:
        return _NO_RULE
    if all_flags & SPECIAL or flags & DETAILED:
        return _special(way, entries)
    return new_tuple(Match, (matched, entries, (), "", False))


def match_any_value(
    domain: Domain, entries: Sequence[Entry], minute: int = 0
) -> MatchedNode | None:
    """The node whose rule descriptors with these entries meet, whatever the last one's value.

    None if that value matters, even if only to metrics.
    """
    level: Level | None = domain.root
    matched = None
    for index, entry in enumerate(entries, 1):
        if level is None:
            return None
        if index < len(entries):
            matched = look_up(level, entry, minute)
        elif entry.key not in level.exact and entry.key not in level.matching:
            matched = level.default.get(entry.key)
        else:
            return None
        if matched is None or matched.flags & SPECIAL:
            return None
        level = matched.children
    return None if matched is None or matched.flags & (NO_RULE | DETAILED) else matched


def may_match(level: Level, entries: Sequence[Entry]) -> Iterator[Rule | None]:
    """The rules that descriptors can meet of which these are the entries, with a `*` for any text.

    Perhaps some more: what a matcher takes is not compared with a `*`. None stands for each node
    without such a rule, so that whoever walks many of them can pause there.
    """
    (key, text), *rest = entries
    pattern = Pattern.of(text) if "*" in text else None
    for node in level.nodes:
        taken = node.key == key and (
            node.matcher is not None
            or node.value in {"", text}
            or (pattern is not None and pattern.matches(node.value))
        )
        yield node.rule if taken and not rest else None
        if taken and rest and node.children is not None:
            yield from may_match(node.children, rest)


def _special(way: Sequence[MatchedNode], entries: Sequence[Entry]) -> Match:
    """A match with shared thresholds, or whose values are shown in metrics.

    What metrics show of a shared value is its matcher's name.
    """
    shared: list[int] = []
    identity: list[tuple[str, str]] = []
    stray = False
    nodes = [matched.node for matched in way if matched.node is not None]
    for index, (node, entry) in enumerate(zip(nodes, entries, strict=True)):
        key, value = entry
        if node.share_threshold:
            shared.append(index)
            value = node.value
        elif node.grouping is not None:
            grouped = node.grouping.of(value)
            if grouped is None:
                stray = True
            else:
                value = grouped
                if "/" in grouped:  # another caller may send this very text as its value
                    shared.append(index)
        identity.append((key, value))
    shown = [
        entry
        for node, entry in zip(nodes, identity, strict=True)
        # An exact value is in the rule's path already.
        if way[-1].flags & DETAILED
        or (node.value_to_metric and (node.matcher is not None or not node.value))
    ]
    if sum([len(key) + len(value) for key, value in shown]) > MAX_VALUE_BYTES:
        metric_value = OTHER  # as it would be counted, but cheaper
    else:
        metric_value = path_text(shown) if shown else ""
    return Match(way[-1], tuple(identity), tuple(shared), metric_value, stray)
