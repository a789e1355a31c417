"""A large tree comes and goes in small steps, so that no request waits for one."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from itertools import chain
from zoneinfo import available_timezones

import pytest

from ratelimit_service.containers.spread import LARGE, spread_tuple
from ratelimit_service.eventloop.slices import stepwise
from ratelimit_service.limiter.compiler import Compiler
from ratelimit_service.model import (
    Descriptor,
    Entry,
    Grouping,
    Limit,
    Network,
    Request,
    Unit,
    zone,
)
from ratelimit_service.observability.stats import Tallies
from ratelimit_service.rule_lab.comparison.reloads import difference
from ratelimit_service.rule_lab.simulation.simulator import Simulator
from ratelimit_service.rules.build import Version, build
from ratelimit_service.rules.match import find, look_up
from ratelimit_service.rules.matchers.cidr import Networks
from ratelimit_service.rules.matchers.matcher import Matcher
from ratelimit_service.rules.matchers.one_of import OneOf
from ratelimit_service.rules.matchers.pattern import Pattern
from ratelimit_service.rules.matchers.regex import Regex
from ratelimit_service.rules.records import Assembly, packed
from ratelimit_service.rules.rulebook import Rulebook
from ratelimit_service.rules.tree import (
    Domain,
    Level,
    LevelBuilder,
    MatchedNode,
    Node,
    Rule,
    Snapshot,
    TalliesOf,
)
from ratelimit_service.settings import Settings

MANY = 3 * LARGE

MOST_BLOCKS = 2_000
"""Blocks of memory that may be taken or given back in one turn: a rule takes some 20."""


def node(number: int, matcher: Matcher | None = None, limit: int = 5) -> Node:
    value = f"v{number}" if matcher is None else matcher.name
    limits = (Limit(limit, Unit.DAY),)
    path = f"k={value}"
    return Node("k", value, matcher, Rule("d", path, limits, tallies=Tallies("d", path)), None)


def network(number: int, family: int) -> Networks:
    return Networks(
        (
            Network(
                family,
                (10 << 16 if family == 4 else 0x20010DB80000) + number,
                24 if family == 4 else 48,
            ),
        )
    )


NODES: dict[str, Callable[[int], Node]] = {
    "value": node,
    "one_of": lambda number: node(number, OneOf((f"a{number}", f"b{number}"))),
    "cidr of IPv4": lambda number: node(number, network(number, 4)),
    "cidr of IPv6": lambda number: node(number, network(number, 6)),
    "patterns": lambda number: node(number, Pattern.of(f"v{number}*")),
    "keys": lambda number: Node(f"k{number}", "", None, None, None),
    "keys with values": lambda number: Node(f"k{number}", "v", None, None, None),
    "keys with patterns": lambda number: Node(f"k{number}", "v*", Pattern.of("v*"), None, None),
    "values that end": lambda number: Node("k", f"v{number}", None, None, None, valid_until=9),
    "groups": lambda number: Node("k", f"v{number}", None, None, None, grouping=Grouping(24, 128)),
}


def containers(level: Level) -> Iterator[list[object] | dict[object, object]]:
    """Every list and dict that a level is made of, without what its nodes are made of."""
    seen: set[int] = set()
    rest: list[object] = [level]
    while rest:
        each = rest.pop()
        if id(each) in seen or isinstance(each, (type, Node)):
            continue
        seen.add(id(each))
        if isinstance(each, (list, dict)):
            yield each
        rest += gc.get_referents(each)


@pytest.mark.parametrize("kind", NODES)
def test_in_parts(kind: str) -> None:
    """No list and no table of a large level is large, and who drops it can hold each of them."""
    level = Level.of(map(NODES[kind], range(MANY)))

    sizes = {id(each): len(each) for each in containers(level)}
    held = {id(part) for part in level.parts()}

    assert sum(sizes.values()) >= MANY
    assert max(sizes.values()) <= LARGE
    assert sum(size for each, size in sizes.items() if size > 1 and each not in held) <= LARGE


async def most_at_once(work: Awaitable[object]) -> int:
    """The most blocks of memory that are taken or given back between two turns of others."""
    most, running = 0, True

    async def others() -> None:
        nonlocal most
        before = sys.getallocatedblocks()
        while running:
            await asyncio.sleep(0)
            now = sys.getallocatedblocks()
            most = max(most, abs(now - before))
            before = now

    beside = asyncio.create_task(others())
    await work
    running = False
    await beside
    return most


async def arrive(frames: list[bytes], tallies: TalliesOf, domains: dict[str, Domain]) -> None:
    assembly = Assembly(tallies)
    while frames:
        await stepwise(assembly.adding(frames.pop(0)))
        await asyncio.sleep(0)
    domains |= assembly.domains


@pytest.mark.parametrize("kind", ["value", "one_of", "cidr of IPv6"])
async def test_in_steps(kind: str) -> None:
    """No turn takes or gives back much memory while rules come, are compared, and go.

    It is all given back without the garbage collector, which does not run in what serves, also if
    requests have met the rules.
    """
    gc.collect()
    gc.disable()
    living = of_rules()
    book = Rulebook()
    domain = Domain("d", Level.of(map(NODES[kind], range(MANY))))
    frames = list(packed([domain]))
    del domain
    come: dict[str, Domain] = {}
    before = sys.getallocatedblocks()

    arriving = await most_at_once(arrive(frames, book.tallies_of, come))
    taken = sys.getallocatedblocks() - before
    compiler = Compiler(Settings())
    for each in come["d"].root.nodes:
        value = each.matcher.example if each.matcher else each.value
        matched = look_up(come["d"].root, Entry(each.key, value))
        assert matched is not None
        compiler.rule(come["d"], matched)
    book.swap(come.copy(), frozenset())
    old = [book.swap({}, frozenset())]
    come.clear()
    del each, matched, compiler
    comparing = await most_at_once(difference(old[0].domains, {}))
    going = await most_at_once(_let_go(book, old))
    remaining = of_rules()
    gc.enable()

    assert taken > 5 * MANY
    assert remaining == living
    assert max(arriving, comparing, going) <= MOST_BLOCKS


def one_list(kind: str) -> Node:
    """One descriptor with as many values as all rules of the other tests have."""
    values = range(MANY)
    matcher: Matcher = OneOf(spread_tuple([f"a{number}" for number in values]))
    if kind == "cidr":
        matcher = Networks(spread_tuple([network(number, 4).networks[0] for number in values]))
    return node(0, matcher)


@pytest.mark.parametrize("kind", ["one_of", "cidr"])
async def test_one_long_list_in_steps(kind: str) -> None:
    """A descriptor with very many values comes, is compared and goes in small steps, too."""
    gc.collect()
    gc.disable()
    book = Rulebook()
    domain = Domain("d", Level.of([one_list(kind)]))
    frames = list(packed([domain]))
    come: dict[str, Domain] = {}

    arriving = await most_at_once(arrive(frames.copy(), book.tallies_of, come))
    (arrived,) = come["d"].root.nodes
    same = arrived.matcher == domain.root.nodes[0].matcher
    del domain, arrived
    book.swap(come.copy(), frozenset())
    old = [book.swap({}, frozenset())]
    come.clear()
    comparing = await most_at_once(difference(old[0].domains, {}))
    going = await most_at_once(_let_go(book, old))
    gc.enable()

    assert same
    assert max(map(len, frames)) < 40_000
    assert max(arriving, comparing, going) <= MOST_BLOCKS


class Hashed(str):
    """A text that counts how often anybody looks for its place in a table."""

    __slots__ = ()
    times = 0

    def __hash__(self) -> int:
        Hashed.times += 1
        return super().__hash__()


@pytest.mark.parametrize(
    ("grouping", "valid_until"), [(None, None), (Grouping(24, 128), None), (None, 9)]
)
def test_long_lists_are_indexed_in_steps(
    grouping: Grouping | None, valid_until: int | None
) -> None:
    """Of a long list little is indexed at once, also of one that is grouped, or that ends.

    Of two that take the same value the first declared one has it.
    """
    values = [Hashed(f"a{number}") for number in range(20 * LARGE)]
    nodes = [
        replace(node(number, OneOf(spread_tuple(each))), grouping=grouping, valid_until=valid_until)
        for number, each in enumerate((values, values[:LARGE], [Hashed("a7"), Hashed("b")]))
    ]
    builder = LevelBuilder()

    most, before = 0, Hashed.times
    for _ in chain(*map(builder.adding, nodes), builder.completing(), (None,)):
        most, before = max(most, Hashed.times - before), Hashed.times
    chosen = [find(builder.level(), Entry("k", value)) for value in ("a7", "a19999", "b", "c")]

    assert most <= 5 * LARGE
    assert chosen == [nodes[0], nodes[0], nodes[2], None]


def of_rules() -> int:
    """How many objects there are that each rule has of its own."""
    return sum(isinstance(each, (Node, Rule, MatchedNode)) for each in gc.get_objects())


async def _let_go(book: Rulebook, old: list[Snapshot]) -> None:
    await book.let_go(old.pop())


def test_expressions_in_steps() -> None:
    """What regular expressions may cost together is added up a few at a time."""
    builder = LevelBuilder()
    for number in range(LARGE):
        builder.add(node(number, Regex(f"/v{number}/[a-z]+")))

    assert sum(1 for _ in builder.completing()) > LARGE / 20


ALIKE = """domain: d
descriptors:
- {key: k, value: a, rate_limit: {unit: day, requests_per_unit: 5}}
- {key: k, value: b, rate_limit: {unit: day, requests_per_unit: 5}}
- key: other
  rate_limit: {unit: day, requests_per_unit: 5}
- {key: k, value: "c*", rate_limit: {unit: day, requests_per_unit: 5}}
- {key: k, value: "d*", rate_limit: {unit: day, requests_per_unit: 5}}
- {key: k, one_of: [e, f], rate_limit: {unit: day, requests_per_unit: 5}}
- {key: l, one_of: [g, h], rate_limit: {unit: day, requests_per_unit: 5}}
- {key: k, cidr: 10.0.0.0/8, rate_limit: {unit: day, requests_per_unit: 5}}
- {key: k, cidr: [10.1.0.0/16, "fd00::/8"], rate_limit: {unit: day, requests_per_unit: 5}}
- {key: k, one_of: [i], rate_limit: {unit: day, requests_per_unit: 5}, shadow_mode: true}
- {key: k, one_of: [j], rate_limit: {unit: day, requests_per_unit: 5}, shadow_mode: true}
- {key: k, one_of: [m], group: {ipv4: 24}, rate_limit: {unit: day, requests_per_unit: 5}}
- {key: k, one_of: [n], rate_limit: {unit: day, requests_per_unit: 6}}
"""


def test_rules_that_are_alike_come_as_they_were() -> None:
    """Of rules that differ only in their names each has its own, with its place in the file."""
    (domain,) = build(
        [Version("d.yaml", ALIKE.encode(), None)], Tallies, strict=True
    ).domains.values()
    assembly = Assembly(Tallies)
    for frame in packed([domain]):
        assembly.add(frame)

    def shown(each: Domain) -> list[object]:
        return [
            (
                type(node.value),
                *(getattr(node, name) for name in NODE_FIELDS),
                *(getattr(node.rule, name) for name in RULE_FIELDS),
            )
            for node in each.root.nodes
        ]

    assert shown(assembly.domains["d"]) == shown(domain)


NODE_FIELDS = ("key", "value", "matcher", "share_threshold", "source", "grouping", "valid_until")
RULE_FIELDS = ("domain", "path", "limits", "names", "shadow_mode", "answer", "source")


async def test_many_lists_with_one_limit_in_steps() -> None:
    """Lists of several hundred values that share a limit come a few at a time."""
    gc.collect()
    gc.disable()
    like = node(0, OneOf(("a",)))
    rule = like.rule
    assert rule is not None
    lists = [OneOf(tuple(f"v{number}-{each}" for each in range(300))) for number in range(120)]
    nodes = [like.elsewhere("k", each.name, each, rule, like.source) for each in lists]
    frames = list(packed([Domain("d", Level.of(nodes))]))
    come: dict[str, Domain] = {}

    arriving = await most_at_once(arrive(frames, Tallies, come))
    gc.enable()

    assert [each.matcher for each in come["d"].root.nodes] == lists
    assert arriving <= MOST_BLOCKS


def test_time_zones_are_read_in_steps() -> None:
    """The file of a time zone is read before a limit needs its clocks, and one file in a step."""
    names = sorted(available_timezones())[:40]
    own = ["when: {{days: mon, time_zone: {}}}", "per: calendar, time_zone: {}"]
    nodes = [
        f"- {{key: k, value: {at}, "
        f"rate_limit: {{unit: day, requests_per_unit: 1, {own[at % 2].format(name)}}}}}\n"
        for at, name in enumerate(names)
    ]
    text = "domain: d\ndescriptors:\n" + "".join(nodes)
    built = build([Version("f", text.encode(), None)], Tallies, strict=True)
    assembly = Assembly(Tallies)
    zone.cache_clear()

    most, read = 0, 0
    for frame in packed(built.domains.values()):
        for _ in chain(assembly.adding(frame), (None,)):
            before, read = read, zone.cache_info().misses
            most = max(most, read - before)
    simulator = Simulator(Snapshot(1, assembly.domains), Settings())
    for at in range(len(names)):
        simulator.decide(Request("d", (Descriptor((Entry("k", str(at)),)),)), 9)

    assert (most, read) == (1, 40)
    assert zone.cache_info().misses == 40
