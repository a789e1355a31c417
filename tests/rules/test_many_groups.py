"""Many ways to group addresses within one level: each value goes where one by one it would."""

from __future__ import annotations

from functools import partial
from random import Random

from ratelimit_service.model import Entry, Grouping
from ratelimit_service.rules.match import find
from ratelimit_service.rules.matchers.pattern import Pattern
from ratelimit_service.rules.tree import Level, Node
from tests.grpc.counted_work import work_of

ADDRESSES = ["10.1.2.3", "10.1.255.7", "::ffff:10.1.2.3", "2001:db8::1", "2001:db8:0:1::2", "none"]


def takes(node: Node, value: str) -> bool:
    """Whether a node takes a value, by itself."""
    grouping, matcher = node.grouping, node.matcher
    text = (grouping.of(value) or value) if grouping is not None else value
    return text == node.value if matcher is None else matcher.matches(text)


def test_a_value_goes_to_the_first_that_takes_its_network() -> None:
    """Exact values come before patterns, and of each kind the one that is declared first."""
    chance = Random(7)
    for _ in range(40):
        nodes = []
        for _ in range(40):
            grouping = Grouping(chance.choice([0, 8, 16, 24, 32]), chance.choice([0, 32, 64, 128]))
            value = grouping.of(chance.choice(ADDRESSES)) or "none"
            if chance.random() < 0.4:
                value = value[: chance.randint(0, len(value))] + "*"
            matcher = Pattern.of(value) if "*" in value else None
            nodes.append(Node("k", value, matcher, None, None, grouping=grouping))
        nodes.sort(key=lambda node: node.matcher is not None)
        level = Level.of(nodes)
        for value in ADDRESSES:
            expected = next((node for node in nodes if takes(node, value)), None)
            assert find(level, Entry("k", value)) is expected


def test_more_ways_to_group_cost_no_more() -> None:
    """A value is looked up once for each length of a prefix, however many ways to group use it."""

    def level(count: int) -> Level:
        return Level.of(
            Node("k", f"10.{at % 250}.0.0/{at % 32}", None, None, None, grouping=grouping)
            for at in range(count)
            for grouping in [Grouping(at % 32, at // 32)]
        )

    few, many = level(32), level(3_200)

    for value in ("10.1.2.3", "2001:db8::1", "none"):
        work = work_of(partial(find, many, Entry("k", value)))
        assert work <= 2 * work_of(partial(find, few, Entry("k", value))) + 20
