"""The rules as immutable values: what a load builds and every request walks.

Nothing here reads files, knows YAML or decides; `match` walks these, `schema` builds them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ratelimit_service.containers.spread import LARGE, SpreadList, Table, parts_of, spread
from ratelimit_service.model import AnswerStyle, FailurePolicy, Grouping, Limit
from ratelimit_service.observability.stats import Tallies, Tally
from ratelimit_service.rules.matchers.cidr import Networks
from ratelimit_service.rules.matchers.derived import derived_matchers
from ratelimit_service.rules.matchers.matcher import Matcher
from ratelimit_service.rules.matchers.search import Search
from ratelimit_service.rules.paths import Source
from ratelimit_service.rules.times import Times

__all__ = [
    "DETAILED",
    "ENDS",
    "NO_RULE",
    "OVERRIDES",
    "REPLACES",
    "SPECIAL",
    "UNMATCHED",
    "Domain",
    "LastView",
    "Level",
    "LevelBuilder",
    "MatchedNode",
    "MatcherNodes",
    "Node",
    "Rule",
    "Snapshot",
    "TalliesOf",
    "walk",
    "ways",
]


OVERRIDES = ""
"""Stands for a rule's path in the tallies of a domain's overrides."""

UNMATCHED = "(unmatched)"
"""Stands for a rule's path in the tallies of a domain's descriptors that no rule matches."""

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
    answer: AnswerStyle | None = None
    enqueue: bool = False
    """Whether requests that it denies go into its queue."""
    in_turn: bool = False
    """Whether its limits pay in turn: the first that has room is charged, and no other."""
    source: Source = _NOWHERE
    tallies: Tallies = field(default_factory=Tallies)

    def __reduce__(self) -> tuple[type[Rule], tuple[Any, ...]]:
        """How it is pickled: a dataclass's own way takes longer, and serving waits for it."""
        return Rule, self._given(self.path, self.tallies, self.source)

    def elsewhere(self, path: str, tallies: Tallies, source: Source) -> Rule:
        """The same policy on another path of the domain."""
        return Rule(*self._given(path, tallies, source))

    def _given(self, path: str, tallies: Tallies, source: Source) -> tuple[Any, ...]:
        """All fields in order, so that a new one cannot be forgotten in one place."""
        return (
            self.domain,
            path,
            self.limits,
            self.names,
            self.replaces,
            self.shadow_mode,
            self.quota_mode,
            self.failure_policy,
            self.detailed_metric,
            self.metadata,
            self.answer,
            self.enqueue,
            self.in_turn,
            source,
            tallies,
        )

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
    grouping: Grouping | None = None
    valid_until: int | None = None
    """The minute, from the Unix epoch, in which it ends; None if it never does."""

    @property
    def takes(self) -> tuple[tuple[str, str, bool], ...]:
        """What it takes. No two nodes of a level may take the same."""
        matcher = self.matcher
        if matcher is None:
            return ((self.key, self.value, True),)
        return (
            (self.key, self.value, False),
            *((self.key, each, True) for each in matcher.literals),
            *((self.key, each, False) for each in matcher.claims),
        )

    def elsewhere(
        self, key: str, value: str, matcher: Matcher | None, rule: Rule | None, source: Source
    ) -> Node:
        """The same for other entries, with another rule."""
        return Node(*self._given(key, value, matcher, rule, source))

    def __reduce__(self) -> tuple[type[Node], tuple[Any, ...]]:
        """How it is pickled: a dataclass's own way takes longer, and serving waits for it."""
        return Node, self._given(self.key, self.value, self.matcher, self.rule, self.source)

    def _given(
        self, key: str, value: str, matcher: Matcher | None, rule: Rule | None, source: Source
    ) -> tuple[Any, ...]:
        """All fields in order, so that a new one cannot be forgotten in one place."""
        return (
            key,
            value,
            matcher,
            rule,
            self.children,
            self.share_threshold,
            self.value_to_metric,
            source,
            self.grouping,
            self.valid_until,
        )

    def lasts(self, minute: int) -> bool:
        """Whether it has not ended in a minute from the Unix epoch."""
        return self.valid_until is None or minute < self.valid_until

    def counted_value(self, value: str) -> str | None:
        """What is matched and counted of an entry's value; None if it should be an address."""
        return value if self.grouping is None else self.grouping.of(value)


NO_RULE: Final = 1
SPECIAL: Final = 2
DETAILED: Final = 4
REPLACES: Final = 8
ENDS: Final = 16
"""What a request must know of a node. It has no rule (`NO_RULE`). Not the entry's own value is
counted, or shown in metrics (`SPECIAL`). Its rule has detailed metrics (`DETAILED`), or replaces
others (`REPLACES`). It ends by `valid_until` (`ENDS`)."""


class MatchedNode:
    """A node of a level as a request matches it: what it reads of it, and nothing else.

    Among 100,000 rules a request waits for memory more than for instructions. So all that it reads
    of a node is in one small object, which the look-up finds. What rules have in common is
    elsewhere, and shared. One without a node is for a limit that a caller brings: it has a tally,
    too.
    """

    __slots__ = ("children", "compiled", "flags", "node", "tally")

    def __init__(self, node: Node | None = None, tally: Tally | None = None) -> None:
        self.node: Final = node
        self.children: Level | None = None
        """The node's."""
        self.flags = NO_RULE
        """Bits, as above, so that a request need not read the node."""
        self.tally = tally
        """Where its hits are tallied, once its rule is compiled."""
        self.compiled: object = None
        """What `limiter.compiler` has worked out of its rule. Nobody else looks at it."""
        if node is not None:
            self.children = node.children
            self.flags = _flags_of(node)

    def lasts(self, minute: int) -> bool:
        """Whether it has not ended in a minute from the Unix epoch."""
        node = self.node if self.flags & ENDS else None
        return node is None or node.lasts(minute)

    @property
    def declared(self) -> Rule | None:
        """Its rule as the file has it."""
        return None if self.node is None else self.node.rule


def _flags_of(node: Node) -> int:
    flags = 0
    rule = node.rule
    if rule is None:
        flags = NO_RULE
    else:
        if rule.detailed_metric:
            flags = DETAILED
        if rule.replaces:
            flags |= REPLACES
    if node.share_threshold or node.value_to_metric or node.grouping is not None:
        flags |= SPECIAL
    if node.valid_until is not None:
        flags |= ENDS
    return flags


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """The nodes below one node, arranged for look-up: exact, then matchers, then key alone.

    What is found is the `MatchedNode` of a node, the same one wherever its node is found. `exact`
    holds, for each key, its nodes by value, and by their matchers' literals; `matching` those whose
    matchers are to be asked. `nodes` are all, as declared. Nobody changes them. What can be large
    is in parts (`spread`), so that to grow it, or to drop it, holds up no request.
    """

    nodes: Sequence[Node]
    exact: Table[str, Table[str, MatchedNode]]
    matching: Table[str, MatcherNodes]
    default: Table[str, MatchedNode]

    @classmethod
    def of(cls, nodes: Iterable[Node]) -> Level:
        """Arranges nodes of which no two have the same key and value."""
        builder = LevelBuilder()
        for node in nodes:
            builder.add(node)
        for _ in builder.completing():
            pass
        return builder.level()

    @classmethod
    def listed(cls, nodes: Sequence[Node]) -> Level:
        """A level in which nothing can be looked up, as one that is only sent to another process.

        To arrange many nodes takes long.
        """
        return cls(nodes, {}, {}, {})

    def parts(self) -> Iterator[object]:
        """The parts of all large tables, but not the nodes themselves.

        A caller that holds the parts can drop the level first, and then one part at a time.
        """
        yield from parts_of(self.exact)
        for nodes in self.exact.values():
            yield from parts_of(nodes)
        yield from parts_of(self.matching)
        for matchers in self.matching.values():
            yield from matchers.parts()
        yield from parts_of(self.default)
        yield from parts_of(self.nodes)


class MatcherNodes:
    """The nodes of one key on a level whose matchers are asked whether they take a value."""

    __slots__ = ("_nodes", "_search")

    def __init__(self) -> None:
        self._nodes: SpreadList[MatchedNode] = SpreadList()
        self._search = Search()

    def add(self, matched: MatchedNode, matcher: Matcher) -> None:
        """Adds the next node as declared."""
        self._nodes.append(matched)
        self._search.add(matcher)

    def completing(self) -> Iterator[None]:
        """Does what is left to do when all have been added, a step at a time."""
        return self._search.completing()

    def parts(self) -> Iterator[object]:
        """The parts of what is large, as `Level.parts`."""
        yield from parts_of(self._nodes)
        yield from self._search.parts()

    def takes(self, node: Node, value: str) -> bool:
        """Whether a node is among those that take a value."""
        return any(self._nodes[position].node is node for position in self._search.all(value))

    def find(self, value: str, minute: int = 0) -> MatchedNode | None:
        """The node that a value goes to in a minute."""
        position = self._search.first(value)
        if position < 0:
            return None
        matched = self._nodes.parts[position // LARGE][position % LARGE]
        if matched.lasts(minute):
            return matched
        for other in self._search.all(value):
            matched = self._nodes[other]
            if matched.lasts(minute):
                return matched
        return None


class LevelBuilder:
    """Arranges one node after the other."""

    def __init__(self) -> None:
        self._nodes: SpreadList[Node] = SpreadList()
        self._exact: Table[str, Table[str, MatchedNode]] = {}
        self._matching: Table[str, MatcherNodes] = {}
        self._default: Table[str, MatchedNode] = {}

    def add(self, node: Node) -> None:
        """Adds the next node as declared."""
        for _ in self.adding(node):
            pass

    def adding(self, node: Node) -> Iterator[None]:
        """As `add`, in steps if the node takes a long list of values."""
        self._nodes.append(node)
        matched = MatchedNode(node)
        asked_in_turn = node.valid_until is not None or (node.grouping is not None and node.value)
        if asked_in_turn and not isinstance(node.matcher, Networks):
            for matcher in derived_matchers(node.value, node.matcher, node.grouping):
                self._add_to_matchers(matched, node.key, matcher)
        elif node.matcher is not None:
            if node.matcher.beyond_literals:
                self._add_to_matchers(matched, node.key, node.matcher)
            for number, value in enumerate(node.matcher.literals, 1):
                self._add_by_value(node.key, value, matched)
                if number % LARGE == 0:
                    yield
        elif node.value:
            self._add_by_value(node.key, node.value, matched)
        else:
            self._default[node.key] = matched
            self._default = spread(self._default)

    def _add_by_value(self, key: str, value: str, matched: MatchedNode) -> None:
        nodes = self._exact.get(key)
        if nodes is None:
            nodes = self._exact[key] = {}
            self._exact = spread(self._exact)
        nodes.setdefault(value, matched)
        spreading = spread(nodes)
        if spreading is not nodes:
            self._exact[key] = spreading

    def _add_to_matchers(self, matched: MatchedNode, key: str, matcher: Matcher) -> None:
        matchers = self._matching.get(key)
        if matchers is None:
            matchers = self._matching[key] = MatcherNodes()
            self._matching = spread(self._matching)
        matchers.add(matched, matcher)

    def completing(self) -> Iterator[None]:
        """Does what is left to do when all have been added, a step at a time."""
        for matchers in self._matching.values():
            yield from matchers.completing()

    def level(self) -> Level:
        """The level, when it is complete."""
        return Level(self._nodes, self._exact, self._matching, self._default)


@dataclass(frozen=True, slots=True, eq=False)
class Domain:
    """One domain's tree.

    `overrides` tallies limits that callers bring along, `unmatched` descriptors that meet no rule.
    `shard_by` are the keys of the entries that place a counter in a shard, none for the domain
    alone; None for all of a descriptor's entries.
    """

    name: str
    root: Level
    overrides: Tallies = field(default_factory=Tallies)
    shard_by: frozenset[str] | None = None
    policies: frozenset[FailurePolicy | None] = frozenset()
    """The failure policies of its rules; None stands for rules that name none."""
    times: Times | None = None
    """Where rules depend on the time."""
    unmatched: Tallies = field(default_factory=Tallies)
    enqueues: bool = False
    """Whether a rule of it puts denied requests into a queue."""
    leased: frozenset[Limit] = frozenset()
    """The limits of which processes hold counted parts."""

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


class LastView:
    """How a snapshot was last looked at (`moment`): as `now`, in which `minute`; what `held`."""

    def __init__(self) -> None:
        self.now: Snapshot | None = None
        self.minute = -1
        self.held: object = None


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
    minute: int = 0
    """The minute from the Unix epoch in which it is looked at, where rules depend on the time."""
    times: Times | None = field(init=False, default=None)
    """Where rules depend on the time, and it is not yet looked at in a minute."""
    last_view: LastView = field(init=False, default_factory=LastView)
    leases: bool = field(init=False, default=False)
    """Whether any limit is leased."""

    def __post_init__(self) -> None:
        if any(domain.leased for domain in self.domains.values()):
            object.__setattr__(self, "leases", True)
        timed = [domain.times for domain in self.domains.values() if domain.times]
        if timed and self.number >= 0:
            times = Times()
            for each in timed:
                times.merge(each)
            object.__setattr__(self, "times", times)

    def in_minute(self, minute: int, number: int) -> Snapshot:
        """The same as it is in a minute, under a number of its own, below 0."""
        return Snapshot(number, self.domains, self.unserved, self.emptied, minute)

    def never_loaded(self, domain: str) -> bool:
        """Whether a domain has no rules because they cannot be read, not because there are none.

        Where no file could be read that holds for every domain: nobody knows what they say.
        """
        return domain in self.unserved or not (self.domains or self.emptied)
