"""The rules as immutable values: what a load builds and every request walks.

Nothing here reads files, knows YAML or decides; `match` walks these, `schema` builds them.
"""

from __future__ import annotations

from bisect import insort_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ratelimit_service.model import FailurePolicy, Limit
from ratelimit_service.observer import Tallies
from ratelimit_service.rules.matchers.matcher import Matcher
from ratelimit_service.rules.paths import Source

__all__ = [
    "OVERRIDES",
    "Domain",
    "Level",
    "LevelBuilder",
    "Node",
    "Rule",
    "Snapshot",
    "TalliesOf",
    "walk",
    "ways",
]


OVERRIDES = ""
"""In place of a rule's path: the tallies of a domain's overrides."""

TalliesOf = Callable[[str, str], Tallies]
"""Gives the tallies of a rule by domain and path."""


_NOWHERE = Source("")


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """A node's policy. Without limits it is unlimited. Compared by identity.

    `path` names it for people, unique in its domain (`path_text`). `tallies` is the one
    mutable part: it outlives reloads as long as domain and path stay.
    """

    domain: str
    path: str
    limits: tuple[Limit, ...]
    names: frozenset[str] = frozenset()
    """Its limits' names as written; callers may see them otherwise."""
    replaces: frozenset[str] = frozenset()
    shadow_mode: bool = False
    quota_mode: bool = False
    failure_policy: FailurePolicy | None = None
    detailed_metric: bool = False
    metadata: Mapping[str, object] | None = None
    source: Source = _NOWHERE
    tallies: Tallies = field(default_factory=Tallies)

    @property
    def unlimited(self) -> bool:
        """Whether requests that match are counted in metrics only."""
        return not self.limits


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One descriptor of a rule file: an entry to match, a policy if it has one, its children.

    `value` is the one that it takes, "" for any. If a `matcher` tells, it is the matcher's name.
    """

    key: str
    value: str
    matcher: Matcher | None
    rule: Rule | None
    children: Level | None
    share_threshold: bool = False
    value_to_metric: bool = False
    source: Source = _NOWHERE

    @property
    def takes(self) -> tuple[str, str, bool]:
        """What it takes; no two nodes of a level take the same."""
        return (self.key, self.value, self.matcher is None)

    def with_children(self, children: Level | None) -> Node:
        """The same with other children."""
        return Node(
            self.key,
            self.value,
            self.matcher,
            self.rule,
            children,
            self.share_threshold,
            self.value_to_metric,
            self.source,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """The nodes below one node, arranged for look-up: exact, then matchers, then key alone.

    `exact` holds, for each key, its nodes by value, and by their matchers' literals; `matching`
    those with a matcher, in the order in which they are asked. `nodes` are all, as declared.
    """

    nodes: tuple[Node, ...]
    exact: Mapping[str, Mapping[str, Node]]
    matching: Mapping[str, Sequence[Node]]
    default: Mapping[str, Node]

    @classmethod
    def of(cls, nodes: Iterable[Node]) -> Level:
        """Arranges nodes of which no two have the same key and value."""
        builder = LevelBuilder()
        for node in nodes:
            builder.add(node)
        return builder.level()


class LevelBuilder:
    """Arranges one node after the other."""

    def __init__(self) -> None:
        self._nodes: list[Node] = []
        self._exact: dict[str, dict[str, Node]] = {}
        self._matching: dict[str, list[Node]] = {}
        self._default: dict[str, Node] = {}

    def add(self, node: Node) -> None:
        """Adds the next node as declared."""
        self._nodes.append(node)
        if node.matcher is not None:
            asked = self._matching.setdefault(node.key, [])
            if asked and _rank(node) < _rank(asked[-1]):
                insort_right(asked, node, key=_rank)
            else:
                asked.append(node)
            for value in node.matcher.literals:
                self._exact.setdefault(node.key, {}).setdefault(value, node)
        elif node.value:
            self._exact.setdefault(node.key, {})[node.value] = node
        else:
            self._default[node.key] = node

    def level(self) -> Level:
        """The level; nothing may be added afterwards."""
        return Level(tuple(self._nodes), self._exact, self._matching, self._default)


def _rank(node: Node) -> int:
    return node.matcher.rank if node.matcher is not None else 0


@dataclass(frozen=True, slots=True, eq=False)
class Domain:
    """One domain's tree. `overrides` tallies the limits that callers bring along.

    `shard_by` are the keys of the entries that place a counter in a shard, none for the domain
    alone; None for all of a descriptor's entries.
    """

    name: str
    root: Level
    overrides: Tallies = field(default_factory=Tallies)
    shard_by: frozenset[str] | None = None
    policies: frozenset[FailurePolicy | None] = frozenset()
    """The failure policies of its rules; None stands for rules that name none."""

    @property
    def rules(self) -> Iterator[Rule]:
        """Every rule of the tree, parents before children, as declared."""
        return (node.rule for node in walk(self.root.nodes) if node.rule)


def walk(nodes: Iterable[Node]) -> Iterator[Node]:
    """The nodes and all below them, parents first, as declared."""
    for node in nodes:
        yield node
        if node.children:
            yield from walk(node.children.nodes)


def ways(nodes: Iterable[Node], above: tuple[Node, ...] = ()) -> Iterator[tuple[Node, ...]]:
    """To each node with a rule: the nodes from the root on, itself the last."""
    for node in nodes:
        way = (*above, node)
        if node.rule:
            yield way
        if node.children:
            yield from ways(node.children.nodes, way)


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """All rules at one moment; replaced as a whole by a reload, never changed.

    `unserved` are the domains that files name but that never had a good version: their
    requests follow the failure policy. `emptied` says that there are no rules on purpose.
    """

    number: int
    domains: Mapping[str, Domain]
    unserved: frozenset[str] = frozenset()
    emptied: bool = False

    def never_loaded(self, domain: str) -> bool:
        """Whether a domain has no rules because they cannot be read, not because there are none.

        Where no file could be read that holds for every domain: nobody knows what they say.
        """
        return domain in self.unserved or not (self.domains or self.emptied)
