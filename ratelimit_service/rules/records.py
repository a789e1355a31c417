"""Trees as records, for their way from one process to another: written and read slice by slice.

Reading a large tree in one go would hold the interpreter for as long as it takes, and in the
meantime Envoy would let requests through. So it is written as records, children before their
parents, a few of which are put together between two batches of requests. Tallies are named in
it, not contained: those that count stay in their process. What the other process has had before,
and is the same node here, is named, too: a change among many rules is a few records.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from io import BytesIO
from itertools import islice
from typing import NamedTuple

import ratelimit_service.rules.matchers.registry  # noqa: F401 -- a record must not import its kind
from ratelimit_service.containers.spread import SpreadList
from ratelimit_service.model import FailurePolicy, Limit, zone
from ratelimit_service.observability.stats import Tallies
from ratelimit_service.rules.matchers.matcher import Matcher
from ratelimit_service.rules.paths import Source
from ratelimit_service.rules.times import Times
from ratelimit_service.rules.tree import (
    OVERRIDES,
    UNMATCHED,
    Domain,
    Level,
    LevelBuilder,
    Node,
    Rule,
    TalliesOf,
    walk,
)

__all__ = ["Assembly", "packed"]

_SLICE = 40
"""Nodes put together at once: about a millisecond's worth."""

_LIKE_ONE_NODE = 10
"""So many values of a node take as long to put together as one more node."""

_UNCHANGED_SLICE = 500
"""Nodes that were kept and are only put into their place: so many take as long as a slice of
others."""


class _Begun(NamedTuple):
    """A domain of which the other process has had an earlier state."""

    domain: str


class _UnchangedDomain(NamedTuple):
    """A domain that is as it was."""

    domain: str


class _Unchanged(NamedTuple):
    """Nodes of the level that is open, with all below them, as they were before.

    They are told by their numbers in a walk through the domain's former tree.
    """

    numbers: tuple[int, ...]


class _Opened(NamedTuple):
    """The nodes up to the matching `_Closed` are one level."""


class _Items(NamedTuple):
    """Some of what the matcher of the next `_Leaf` is made of, if that is a lot."""

    items: tuple[object, ...]


class _Leaf(NamedTuple):
    """A node of the level that is open, `node.children` left out."""

    node: Node
    has_children: bool
    """Whether the level closed last is its children's."""
    made_of_parts: type[Matcher] | None = None
    """The kind of its matcher, if the `_Items`s before it are to be put together to one."""


_Name = tuple[str, str, Matcher | None, str, int, int, int, int]
"""A node's key and value, its matcher, its rule's path, and in which lines and columns it and its
rule stand. It is no class of its own, as to read that takes twice as long."""


class _Alike(NamedTuple):
    """Nodes that differ from that of the last `_Leaf` only in their names."""

    names: tuple[_Name, ...]
    weight: int


class _Closed(NamedTuple):
    """The level is complete."""


class _Root(NamedTuple):
    """The level closed last is the root of a domain."""

    domain: str
    shard_by: frozenset[str] | None
    policies: frozenset[FailurePolicy | None]
    times: Times | None
    enqueues: bool
    leased: frozenset[Limit]


_Record = (
    _Begun | _UnchangedDomain | _Unchanged | _Opened | _Items | _Leaf | _Alike | _Closed | _Root
)


def packed(domains: Iterable[Domain], former: Mapping[str, Domain] = {}) -> Iterator[bytes]:
    """The domains' trees in slices, each to be given to `Assembly.add` in this order.

    `former` are the domains that the other process has, as they are here.
    """
    records = (record for each in domains for record in _of_domain(each, former.get(each.name)))
    part: list[_Record] = []
    weight = 0
    for record in records:
        part.append(record)
        weight += _weight(record)
        if weight >= _SLICE:
            yield _dump(part)
            part, weight = [], 0
    if part:
        yield _dump(part)


def _weight(record: _Record) -> int:
    """How long it takes to put together, where a small node takes 1."""
    if isinstance(record, _Items):
        return _SLICE
    if isinstance(record, _Alike):
        return record.weight
    return _weight_of(record.node.matcher) if isinstance(record, _Leaf) else 1


def _weight_of(matcher: Matcher | None) -> int:
    return 1 if matcher is None else 1 + len(matcher.literals) // _LIKE_ONE_NODE


def _of_domain(domain: Domain, former: Domain | None) -> Iterator[_Record]:
    if domain is former:
        yield _UnchangedDomain(domain.name)
        return
    numbers: dict[Node, int] = {}
    if former is not None:
        yield _Begun(domain.name)
        numbers = {node: number for number, node in enumerate(walk(former.root.nodes))}
    yield from _of_level(domain.root, numbers)
    yield _Root(
        domain.name,
        domain.shard_by,
        domain.policies,
        domain.times,
        domain.enqueues,
        domain.leased,
    )


def _of_level(level: Level, numbers: Mapping[Node, int]) -> Iterator[_Record]:
    yield _Opened()
    unchanged: list[int] = []
    last: Node | None = None
    alike: list[_Name] = []
    weight = 0
    for node in level.nodes:
        number = numbers.get(node)
        if unchanged and (number is None or len(unchanged) == _UNCHANGED_SLICE):
            yield _Unchanged(tuple(unchanged))
            unchanged.clear()
        more = number is None and last is not None and _are_alike(last, node)
        if alike and (not more or weight >= _SLICE):
            yield _Alike(tuple(alike), weight)
            alike.clear()
            weight = 0
        if number is not None:
            unchanged.append(number)
        elif more:
            alike.append(_name(node))
            weight += _weight_of(node.matcher)
        else:
            if node.children:
                yield from _of_level(node.children, numbers)
            leaf, kind = replace(node, children=None) if node.children else node, None
            if node.matcher is not None and node.matcher.parts:
                yield from map(_Items, node.matcher.parts)
                leaf, kind = replace(leaf, matcher=None), type(node.matcher)
            yield _Leaf(leaf, node.children is not None, kind)
            last = node
    if unchanged:
        yield _Unchanged(tuple(unchanged))
    if alike:
        yield _Alike(tuple(alike), weight)
    yield _Closed()


def _name(node: Node) -> _Name:
    rule, source = node.rule, node.source
    assert rule is not None  # noqa: S101 -- else it is like no other
    _, line, column = source
    _, rule_line, rule_column = rule.source
    return (
        node.key,
        str(node.value),
        node.matcher,
        rule.path,
        line,
        column,
        rule_line,
        rule_column,
    )


def _are_alike(one: Node, other: Node) -> bool:
    """Whether nodes, also those of lists, differ only in what `_name` tells of them."""
    rule, policy, matcher = one.rule, other.rule, other.matcher
    if rule is None or policy is None or rule.limits is not policy.limits:
        return False
    return (
        type(one.matcher) is type(matcher)
        and type(one.value) is type(other.value)
        and not (matcher is not None and matcher.parts)
        and one.children is other.children is None
        and one.source.file == other.source.file == rule.source.file == policy.source.file
        and one.grouping is other.grouping
        and rule.names is policy.names
        and rule.replaces is policy.replaces
        and rule.metadata is policy.metadata
        and rule.answer is policy.answer
        and _flags(one, rule) == _flags(other, policy)
    )


def _flags(node: Node, rule: Rule) -> tuple[object, ...]:
    return (
        node.share_threshold,
        node.value_to_metric,
        node.valid_until,
        rule.shadow_mode,
        rule.quota_mode,
        rule.failure_policy,
        rule.detailed_metric,
        rule.enqueue,
        rule.in_turn,
    )


class Assembly:
    """Puts trees together again."""

    def __init__(self, tallies: TalliesOf, former: Mapping[str, Domain] = {}) -> None:
        """`tallies` gives this process's tallies of a rule, `former` is what it had before."""
        self._tallies = tallies
        self._former = former
        self._former_nodes: SpreadList[Node] = SpreadList()
        """The former nodes of the domain that is being put together."""
        self._open: list[LevelBuilder] = []
        self._closed: Level | None = None
        self._parts: list[tuple[object, ...]] = []
        """Of the matcher of the next `_Leaf`."""
        self._last: Node | None = None
        """The node of the last `_Leaf`."""
        self._zones: set[str] = set()
        """Time zones that have been read."""
        self.domains: dict[str, Domain] = {}
        """Those that are complete."""

    def add(self, data: bytes) -> None:
        """Takes the next slice at once."""
        for _ in self.adding(data):
            pass

    def adding(self, data: bytes) -> Generator[None, None, None]:
        """Takes the next slice in steps: one that ends a level of many networks has a lot to do."""
        for record in _load(data, self._tallies):
            if isinstance(record, (_Leaf, _Items, _Alike, _Unchanged)):
                yield from self._adding_nodes(record)
            elif isinstance(record, _Opened):
                self._open.append(LevelBuilder())
            elif isinstance(record, _Closed):
                builder = self._open.pop()
                yield from builder.completing()
                self._closed = builder.level()
            elif isinstance(record, _Root):
                self._complete(record)
                yield from self._former_nodes.emptying()
            elif isinstance(record, _UnchangedDomain):
                self.domains[record.domain] = self._former[record.domain]
            else:
                yield from self._begin(self._former[record.domain])

    def _adding_nodes(
        self, record: _Leaf | _Items | _Alike | _Unchanged
    ) -> Generator[None, None, None]:
        """Adds nodes to the level that is open, or takes in what the next one is made of."""
        if isinstance(record, _Leaf):
            yield from self._adding_leaf(record)
            return
        if isinstance(record, _Items):
            self._parts.append(record.items)
        elif isinstance(record, _Alike):
            self._add_alike(record)
        else:
            for number in record.numbers:
                self._open[-1].add(self._former_nodes[number])
        yield

    def _adding_leaf(self, record: _Leaf) -> Generator[None, None, None]:
        node = record.node
        if record.has_children:
            node = replace(node, children=self._closed)
        if record.made_of_parts is not None:
            node = replace(node, matcher=record.made_of_parts.made_of(self._parts))
            self._parts = []
        if node.rule is not None:
            yield from self._reading_zones(node.rule.limits)
        yield from self._open[-1].adding(node)
        self._last = node

    def _reading_zones(self, limits: Iterable[Limit]) -> Generator[None, None, None]:
        """Reads a file for each time zone, in a step: else the first request would read all."""
        for limit in limits:
            for name in limit.time_zones:
                if name not in self._zones:
                    self._zones.add(name)
                    zone(name)
                    yield

    def _add_alike(self, record: _Alike) -> None:
        like = self._last
        assert like is not None  # noqa: S101 -- it comes first
        rule = like.rule
        assert rule is not None  # noqa: S101 -- it has a path
        add, tallies, domain, file = (
            self._open[-1].add,
            self._tallies,
            rule.domain,
            like.source.file,
        )
        value_of = type(like.value)
        for key, value, matcher, path, line, column, rule_line, rule_column in record.names:
            other = rule.elsewhere(
                path, tallies(domain, path), Source(file, rule_line, rule_column)
            )
            source = Source(file, line, column)
            add(like.elsewhere(key, value_of(value), matcher, other, source))

    def _begin(self, former: Domain) -> Generator[None, None, None]:
        nodes = walk(former.root.nodes)
        while part := list(islice(nodes, _UNCHANGED_SLICE)):
            for node in part:
                self._former_nodes.append(node)
            yield

    def _complete(self, root: _Root) -> None:
        assert self._closed is not None  # noqa: S101 -- its level comes first
        self.domains[root.domain] = Domain(
            root.domain,
            self._closed,
            self._tallies(root.domain, OVERRIDES),
            root.shard_by,
            root.policies,
            root.times,
            self._tallies(root.domain, UNMATCHED),
            root.enqueues,
            root.leased,
        )


def _no_tallies(domain: str, path: str) -> Tallies:
    """What stands for tallies in a slice. Reading it puts those of the process in their place."""
    raise AssertionError(f"{domain}: the tallies of {path} are named, not carried")


def _name_of(tallies: Tallies) -> tuple[Callable[[str, str], Tallies], tuple[str, str]]:
    return _no_tallies, (tallies.domain, tallies.path)


class _Unpickler(pickle.Unpickler):
    tallies: TalliesOf

    def find_class(self, module: str, name: str) -> object:
        return self.tallies if name == _no_tallies.__name__ else super().find_class(module, name)


def _dump(records: Sequence[_Record]) -> bytes:
    out = BytesIO()
    pickler = pickle.Pickler(out, pickle.HIGHEST_PROTOCOL)
    # A method `persistent_id` would be asked for every object, and take as long as all else.
    pickler.dispatch_table = {Tallies: _name_of}
    pickler.dump(records)
    return out.getvalue()


def _load(data: bytes, tallies: TalliesOf) -> Iterable[_Record]:
    unpickler = _Unpickler(BytesIO(data))
    unpickler.tallies = tallies
    records: Iterable[_Record] = unpickler.load()
    return records
