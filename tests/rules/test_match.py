"""Which rule a descriptor meets, and what its counter counts."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.model import Entry
from ratelimit_service.observability.stats import MAX_VALUE_BYTES, OTHER, Tallies
from ratelimit_service.rules.match import Match, find, match, may_match
from ratelimit_service.rules.matchers.pattern import Pattern
from ratelimit_service.rules.paths import path_text
from ratelimit_service.rules.records import Assembly, packed
from ratelimit_service.rules.schema import parse
from ratelimit_service.rules.tree import Domain, Level, Node
from tests.service.asking import descriptor


def domain(text: str) -> Domain:
    """The domain of a rule file without problems."""
    file = parse("f", text.encode())
    assert not file.problems, file.problems
    return Domain(file.domain, Level.of(file.nodes))


def carried(tree: Domain) -> Domain:
    """The domain after its way from one process to another."""
    assembly = Assembly(Tallies)
    for part in packed([tree]):
        assembly.add(part)
    return assembly.domains[tree.name]


def matched_rule(tree: Domain, text: str) -> str | None:
    rule = match(tree, descriptor(text).entries).rule
    return rule.path if rule else None


LIMIT = "rate_limit: {unit: day, requests_per_unit: 1}"
TREE = f"""
domain: edge
descriptors:
  - {{key: a, {LIMIT}}}
  - {{key: a, value: b, {LIMIT}}}
  - {{key: a, value: w*d, {LIMIT}}}
  - {{key: a, value: w*, {LIMIT}}}
  - {{key: a, value: w**, {LIMIT}}}
  - {{key: a, value: white}}
  - {{key: a, value: deep, {LIMIT}, descriptors: [{{key: c, {LIMIT}}}, {{key: e, value: f}}]}}
  - {{key: p, value: '*', descriptors: [{{key: q, {LIMIT}}}]}}
  - {{key: 'star*', value: x, {LIMIT}}}
  - {{key: plain, value: x, {LIMIT}}}
"""


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("a=b", "a=b"),
        ("a=other", "a"),
        ("a=", "a"),
        ("a=word", "a=w*d"),
        ("a=wd", "a=w*d"),
        ("a=work", "a=w*"),
        ("a=w*", "a=w*"),
        ("a=w*d", "a=w*d"),
        ("a=w**", "a=w**"),
        ("a=w*x*d", "a=w*d"),
        ("a=B", "a"),
        ("A=b", None),
        ("a=white", None),
        ("a=b,c=d", None),
        ("a=deep", "a=deep"),
        ("a=deep,c=x", "a=deep > c"),
        ("a=deep,e=f", None),
        ("a=deep,e=g", None),
        ("a=deep,x=y", None),
        ("c=x,a=deep", None),
        ("p=", None),
        ("p=,q=", "p=* > q"),
        ("star*=x", "star*=x"),
        ("starry=x", None),
        ("plain=y", None),
        ("", None),
    ],
)
def test_specificity(text: str, rule: str | None) -> None:
    """Exact before pattern before key; as declared; exact depth; no turning back; case matters."""
    assert matched_rule(domain(TREE), text) == rule


@pytest.mark.parametrize("text", ["a_b=c", "a=b_c", "a_=b", "user_id=7"])
def test_keys_and_values_are_never_joined(text: str) -> None:
    """Rules for one entry are not met by another that reads alike when joined."""
    tree = domain(
        f"domain: edge\ndescriptors:\n  - {{key: a, value: b, {LIMIT}}}\n"
        f"  - {{key: user, value: '*', {LIMIT}}}\n  - {{key: a_b_c, {LIMIT}}}\n"
    )

    assert matched_rule(tree, text) is None


SHARED = f"""
domain: edge
descriptors:
  - key: a
    value: x*
    share_threshold: true
    {LIMIT}
    descriptors:
      - {{key: b, {LIMIT}}}
      - {{key: b, value: y*, {LIMIT}}}
  - {{key: a, value: xact, {LIMIT}}}
  - {{key: a, value: x1*, share_threshold: true, {LIMIT}}}
"""


@pytest.mark.parametrize(
    ("text", "identity"),
    [
        ("a=x1", (("a", "x*", True),)),
        ("a=x*", (("a", "x*", True),)),
        ("a=x1*", (("a", "x1*", True),)),
        ("a=xact", (("a", "xact", False),)),
        ("a=x1,b=2", (("a", "x*", True), ("b", "2", False))),
        ("a=x1,b=y2", (("a", "x*", True), ("b", "y2", False))),
    ],
)
def test_identity(text: str, identity: tuple[tuple[str, str, bool], ...]) -> None:
    """share_threshold puts the pattern in the value's place, also above the limited node."""
    result = match(domain(SHARED), descriptor(text).entries)

    typed = [(*entry, index in result.shared) for index, entry in enumerate(result.identity)]
    assert tuple(typed) == identity


METRICS = f"""
domain: edge
descriptors:
  - {{key: plain, {LIMIT}}}
  - {{key: value, value_to_metric: true, {LIMIT}}}
  - {{key: value, value: exact, value_to_metric: true, {LIMIT}}}
  - {{key: all, detailed_metric: true, {LIMIT}}}
  - key: outer
    descriptors:
      - {{key: inner, value_to_metric: true, {LIMIT}}}
      - {{key: all, detailed_metric: true, {LIMIT}}}
  - {{key: shared, value: x*, share_threshold: true, value_to_metric: true, {LIMIT}}}
"""


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("plain=x", ""),
        ("value=x", "value=x"),
        ("value=", "value"),
        ("value=exact", ""),
        ("all=x", "all=x"),
        ("outer=1,inner=2", "inner=2"),
        ("outer=1,all=2", "outer=1 > all=2"),
        ("shared=x1", "shared=x*"),
    ],
)
def test_metric_value(text: str, value: str) -> None:
    """Only rules that opt in show runtime values, and never those that share a counter."""
    assert match(domain(METRICS), descriptor(text).entries).metric_value == value


def test_metric_value_that_is_too_long() -> None:
    """What is too long for a series of its own is counted with all others, whatever it says."""
    for key in ("all", "value"):
        entries = descriptor(f"{key}=" + "x" * MAX_VALUE_BYTES).entries

        assert match(domain(METRICS), entries).metric_value == OTHER


@given(st.lists(st.text("ab", max_size=2), min_size=2, max_size=5).map("*".join), st.text("ab"))
def test_patterns(text: str, value: str) -> None:
    """Each `*` stands for any characters or none, and the whole value must match."""
    naive = "".join(".*" if c == "*" else re.escape(c) for c in text)

    assert Pattern.of(text).matches(value) == bool(re.fullmatch(naive, value))


def test_hostile_value_is_matched_in_linear_time() -> None:
    """A long value cannot make a pattern with many `*` run away."""
    assert not Pattern.of("*a" * 50 + "b").matches("a" * 60_000)


ENTRY = st.tuples(
    st.text('ab=> "\\*\n', min_size=1, max_size=4), st.text('ab=> "\\*\n', max_size=4)
)


@given(st.lists(ENTRY, max_size=3), st.lists(ENTRY, max_size=3))
def test_paths_are_unique(one: list[tuple[str, str]], other: list[tuple[str, str]]) -> None:
    """Two nodes never read the same, so that a rule has its own metrics."""
    assert (path_text(one) == path_text(other)) == (one == other)


@pytest.mark.parametrize(
    ("pattern", "paths"),
    [
        ("a=*", ["a", "a=b", "a=w*d", "a=w*", "a=w**", "a=deep"]),
        ("a=z*", ["a", "a=w*d", "a=w*", "a=w**"]),
        ("a=d*,c=*", ["a=deep > c"]),
        ("a=d*,e=*", []),
        ("p=*,q=x", ["p=* > q"]),
        ("a=x*,c=*", []),
        ("c=*", []),
    ],
)
def test_what_a_pattern_may_meet(pattern: str, paths: list[str]) -> None:
    """It is what its descriptors meet, whatever stands for its `*`, and no rule of other keys."""
    tree = domain(TREE)
    matched = [rule.path for rule in may_match(tree.root, descriptor(pattern).entries) if rule]
    assert matched == paths
    for text in ("b", "deep", "white", "wind", "z", ""):
        rule = matched_rule(tree, pattern.replace("*", text))
        assert rule is None or rule in matched


@pytest.mark.parametrize("ends", ["", ", valid_until: 2030-01-01T00:00Z"])
@pytest.mark.parametrize("taken", ["value: 10.0.0.0/24", "one_of: [10.0.0.0/24]"])
def test_an_exception_from_a_group(taken: str, ends: str) -> None:
    """An exact address goes before the network that it is grouped to, also while it may end."""
    tree = domain(
        f"""
domain: edge
descriptors:
  - {{key: a, {taken}, group: {{ipv4: 24}}, {LIMIT}}}
  - {{key: a, value: 10.0.0.7{ends}}}
  - {{key: a, one_of: [10.0.0.8, 10.0.0.9]{ends}, {LIMIT}}}
"""
    )
    name = "10.0.0.0/24" if taken.startswith("value") else "one_of(10.0.0.0/24)"

    matched = [matched_rule(tree, f"a=10.0.0.{last}") for last in (6, 7, 8)]
    assert matched == [f"a={name}", None, "a=one_of(10.0.0.8,10.0.0.9)"]


def test_no_entries() -> None:
    """A descriptor without entries meets no rule."""
    assert match(domain(TREE), ()) == Match(None)


def test_many_values() -> None:
    """Each of very many values of a level finds its own node, and others the key alone."""
    nodes = [Node("k", f"v{number}", None, None, None) for number in range(20_000)]
    alone = Node("k", "", None, None, None)

    level = Level.of([*nodes, alone])

    assert all(find(level, Entry("k", node.value)) is node for node in nodes)
    assert find(level, Entry("k", "v20000")) is alone
    assert find(level, Entry("other", "v1")) is None
    assert list(level.nodes) == [*nodes, alone]
