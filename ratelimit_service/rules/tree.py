"""The rules as immutable values: what a load builds and every request walks.

Nothing here reads files, knows YAML or decides; `match` walks these, `schema` builds them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ratelimit_service.model import AnswerStyle, FailurePolicy, Grouping, Limit, Schedule
from ratelimit_service.observer import Tallies
from ratelimit_service.rules.matchers.cidr import Networks
from ratelimit_service.rules.matchers.matcher import Matcher
from ratelimit_service.rules.matchers.search import Search
from ratelimit_service.rules.matchers.stand_ins import stand_ins
from ratelimit_service.rules.met import MetNode
from ratelimit_service.rules.paths import Source
from ratelimit_service.spread import LARGE, SpreadList, Table, parts_of, spread

__all__ = [
    "OVERRIDES",
    "UNMATCHED",
    "Domain",
    "Level",
    "LevelBuilder",
    "MatcherNodes",
    "Node",
    "Rule",
    "Snapshot",
    "TalliesOf",
    "Times",
    "walk",
    "ways",
]


OVERRIDES = ""
"""In place of a rule's path: the tallies of a domain's overrides."""

UNMATCHED = "(unmatched)"
"""In place of a rule's path: the tallies of a domain's descriptors that no rule matches."""

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

    def with_children(self, children: Level | None) -> Node:
        """The same with other children."""
        return self if children is self.children else Node(*self._given(children))

    def with_matcher(self, matcher: Matcher | None) -> Node:
        """The same with another matcher of the same name."""
        return replace(self, matcher=matcher)

    def elsewhere(
        self, key: str, value: str, matcher: Matcher | None, rule: Rule | None, source: Source
    ) -> Node:
        """The same for other entries, with another rule."""
        return Node(
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

    def __reduce__(self) -> tuple[type[Node], tuple[object, ...]]:
        """How it is pickled: a dataclass's own way takes longer, and serving waits for it."""
        return Node, self._given(self.children)

    def _given(
        self, children: Level | None
    ) -> tuple[
        str,
        str,
        Matcher | None,
        Rule | None,
        Level | None,
        bool,
        bool,
        Source,
        Grouping | None,
        int | None,
    ]:
        return (
            self.key,
            self.value,
            self.matcher,
            self.rule,
            children,
            self.share_threshold,
            self.value_to_metric,
            self.source,
            self.grouping,
            self.valid_until,
        )

    def counted_value(self, value: str) -> str | None:
        """What is matched and counted of an entry's value; None if it should be an address."""
        return value if self.grouping is None else self.grouping.of(value)


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """The nodes below one node, arranged for look-up: exact, then matchers, then key alone.

    What is found is a node as requests meet it, the same `MetNode` wherever its node is found.
    `exact` holds, for each key, its nodes by value, and by their matchers' literals; `matching`
    those whose matchers are to be asked. `nodes` are all, as declared. Nobody changes them. What
    can be large is in parts (`spread`), so that to grow it, or to drop it, holds up no request.
    """

    nodes: Sequence[Node]
    exact: Table[str, Table[str, MetNode]]
    matching: Table[str, MatcherNodes]
    default: Table[str, MetNode]

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
        """The parts of what is large, but for the nodes themselves.

        Who holds these can drop the level first, and then one part at a time.
        """
        yield from parts_of(self.exact)
        for nodes in self.exact.values():
            yield from parts_of(nodes)
        yield from parts_of(self.matching)
        for asked in self.matching.values():
            yield from asked.parts()
        yield from parts_of(self.default)
        yield from parts_of(self.nodes)


class MatcherNodes:
    """The nodes of one key on a level whose matchers are asked whether they take a value."""

    __slots__ = ("_nodes", "_search")

    def __init__(self) -> None:
        self._nodes: SpreadList[MetNode] = SpreadList()
        self._search = Search()

    def add(self, met: MetNode, matcher: Matcher) -> None:
        """Adds the next node as declared."""
        self._nodes.append(met)
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
        return any(self._nodes[place].node is node for place in self._search.all(value))

    def find(self, value: str, minute: int = 0) -> MetNode | None:
        """The node that a value goes to in a minute."""
        place = self._search.first(value)
        if place < 0:
            return None
        met = self._nodes[place]
        if met.lasts(minute):
            return met
        for other in self._search.all(value):
            met = self._nodes[other]
            if met.lasts(minute):
                return met
        return None


class LevelBuilder:
    """Arranges one node after the other."""

    def __init__(self) -> None:
        self._nodes: SpreadList[Node] = SpreadList()
        self._exact: Table[str, Table[str, MetNode]] = {}
        self._matching: Table[str, MatcherNodes] = {}
        self._default: Table[str, MetNode] = {}

    def add(self, node: Node) -> None:
        """Adds the next node as declared."""
        for _ in self.adding(node):
            pass

    def adding(self, node: Node) -> Iterator[None]:
        """As `add`, in steps if the node takes a long list of values."""
        self._nodes.append(node)
        met = MetNode(node)
        odd = node.valid_until is not None or (node.grouping is not None and node.value)
        if odd and not isinstance(node.matcher, Networks):
            for matcher in stand_ins(node.value, node.matcher, node.grouping):
                self._ask(met, node.key, matcher)
        elif node.matcher is not None:
            if node.matcher.asked:
                self._ask(met, node.key, node.matcher)
            for number, value in enumerate(node.matcher.literals, 1):
                self._look_up(node.key, value, met)
                if number % LARGE == 0:
                    yield
        elif node.value:
            self._look_up(node.key, node.value, met)
        else:
            self._default[node.key] = met
            self._default = spread(self._default)

    def _look_up(self, key: str, value: str, met: MetNode) -> None:
        nodes = self._exact.get(key)
        if nodes is None:
            nodes = self._exact[key] = {}
            self._exact = spread(self._exact)
        nodes.setdefault(value, met)
        spreading = spread(nodes)
        if spreading is not nodes:
            self._exact[key] = spreading

    def _ask(self, met: MetNode, key: str, matcher: Matcher) -> None:
        asked = self._matching.get(key)
        if asked is None:
            asked = self._matching[key] = MatcherNodes()
            self._matching = spread(self._matching)
        asked.add(met, matcher)

    def completing(self) -> Iterator[None]:
        """Does what is left to do when all have been added, a step at a time."""
        for asked in self._matching.values():
            yield from asked.completing()

    def level(self) -> Level:
        """The level, when it is complete."""
        return Level(self._nodes, self._exact, self._matching, self._default)


_MOST_TIMES = 1_000
"""Where more times matter, other rules may hold in any minute."""


class Times:
    """The times at which other rules hold than before.

    Those of a snapshot keep it as it was last looked at (`moment`): `now`, in which `minute`, and
    what `held` then.
    """

    def __init__(self) -> None:
        self.now: Snapshot | None = None
        self.minute = -1
        self.held: object = None
        self._schedules: dict[Schedule, None] = {}
        self._ends: dict[int, None] = {}

    def __bool__(self) -> bool:
        return bool(self._schedules or self._ends)

    def __getstate__(self) -> tuple[dict[Schedule, None], dict[int, None]]:
        """How they are pickled: without the snapshot that they keep."""
        return self._schedules, self._ends

    def __setstate__(self, state: tuple[dict[Schedule, None], dict[int, None]]) -> None:
        Times.__init__(self)
        self._schedules, self._ends = state

    def add(self, node: Node) -> None:
        """Adds those of a node."""
        if node.valid_until is not None:
            self._ends[node.valid_until] = None
        if node.rule is not None:
            for limit in node.rule.limits:
                if limit.schedule is not None:
                    self._schedules[limit.schedule] = None

    def merge(self, other: Times) -> None:
        """Adds those of another domain."""
        self._schedules |= other._schedules
        self._ends |= other._ends

    def phase(self, minute: int) -> object:
        """What tells one minute from another in which other rules hold."""
        if len(self._schedules) + len(self._ends) > _MOST_TIMES:
            return minute
        held = tuple(schedule.holds(minute) for schedule in self._schedules)
        return held, sum(end <= minute for end in self._ends)


@dataclass(frozen=True, slots=True, eq=False)
class Domain:
    """One domain's tree.

    `overrides` tallies the limits that callers bring along, `unmatched` the descriptors that
    no rule matches.
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
    minute: int = 0
    """The minute from the Unix epoch in which it is looked at, where rules depend on the time."""
    times: Times | None = field(init=False, default=None)
    """Where rules depend on the time, and it is not yet looked at in a minute."""

    def __post_init__(self) -> None:
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
