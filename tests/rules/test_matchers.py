"""A matcher is one file and one line: held by one that is not shipped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ratelimit_service.algorithms import spec_of
from ratelimit_service.model import Code
from ratelimit_service.rules.dump import dump
from ratelimit_service.rules.explain import explain
from ratelimit_service.rules.match import match, match_any_value
from ratelimit_service.rules.matchers.registry import MATCHERS
from ratelimit_service.rules.paths import parse_path
from ratelimit_service.rules.schema import parse
from ratelimit_service.rules.tree import Snapshot
from ratelimit_service.stores.keys import CounterNames
from tests.rules.prefix import Prefix
from tests.rules.test_match import LIMIT, carried, domain, matched_rule
from tests.service.asking import Asking, descriptor

RULES = f"""
domain: edge
descriptors:
  - {{key: path, {LIMIT}}}
  - {{key: path, value: /a/*, {LIMIT}}}
  - {{key: path, prefix: /a, share_threshold: true, value_to_metric: true, {LIMIT}}}
  - {{key: path, prefix: /a/b, {LIMIT}}}
  - {{key: path, value: /a/b/c, {LIMIT}}}
  - {{key: path, value: "prefix(/a)", {LIMIT}}}
  - {{key: path, prefix: "/x y*", share_threshold: true, {LIMIT}}}
  - {{key: path, value: "prefix(/x y*)", share_threshold: true, {LIMIT}}}
  - {{key: other, {LIMIT}}}
"""


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    if Prefix in MATCHERS:  # where the example is built
        yield
        return
    MATCHERS.append(Prefix)  # the one line
    yield
    MATCHERS.remove(Prefix)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("path=/a/b/c", "path=/a/b/c"),
        ("path=/a/b/d", "path=prefix(/a/b)"),
        ("path=/a/c", "path=prefix(/a)"),
        ("path=/a/*", "path=/a/*"),
        ("path=/b", "path"),
        ("path=prefix(/a)", 'path="prefix(/a)"'),
        ("path=/x y*z", 'path=prefix("/x y\\u002a")'),
    ],
)
def test_order(text: str, rule: str) -> None:
    """Exact values first, then matchers by rank, then the key alone; also after a reload's way."""
    tree = domain(RULES)

    assert matched_rule(tree, text) == rule
    assert matched_rule(carried(tree), text) == rule


def test_names_are_apart() -> None:
    """What reads like a matcher has other counters and another path than the matcher."""
    tree = domain(RULES)
    rules = list(tree.rules)
    matches = [
        match(tree, descriptor(f"path={value}").entries)
        for value in ("/ab", "/a", "prefix(/a)", "/x y*", "prefix(/x yz)")
    ]
    names = CounterNames("edge", spec_of(rules[0].limits[0]), None)
    keys = [names.key(each.identity, each.shared) for each in matches]

    assert len({rule.path for rule in rules}) == len(rules)
    assert [parse_path(rule.path)[0][0] for rule in rules] == ["path"] * 8 + ["other"]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 4


def test_last_value_of_any_kind() -> None:
    """Plans are remembered for all values of an entry only where no matcher may take them."""
    tree = domain(RULES)

    assert match_any_value(tree, descriptor("path=/b").entries) is None
    assert match_any_value(tree, descriptor("other=x").entries) is not None


async def test_decisions(tmp_path: Path) -> None:
    """Callers are counted by it, and metrics show it, like any other descriptor."""
    asking = Asking(tmp_path, RULES)

    answers = [
        await asking.ask(f"path={value}")
        for value in ("/ab", "/ac", "/a/b1", "/a/b2", "/a/b1", "/z1", "/z2")
    ]

    ok, over = Code.OK, Code.OVER_LIMIT
    assert [answer.code for answer in answers] == [ok, over, ok, ok, over, ok, ok]
    shown = asking.tally("path=prefix(/a)", "path=prefix(/a)")
    assert (shown.within, shown.over) == (1, 1)


def test_told() -> None:
    """Explain says why it was taken or not, and /rlconfig shows it."""
    snapshot = Snapshot(1, {"edge": domain(RULES)})
    shown = str(explain(snapshot, "edge", descriptor("path=/a/b/d")))

    assert "path=/a/b/d: the prefix matches: path=prefix(/a/b) at f:7:5" in shown
    assert (
        "passed over path=/a/* at f:5:5: its pattern matches too, but a prefix goes before" in shown
    )
    assert "passed over path=/a/b/c at f:8:5: its value differs" in shown
    assert "passed over path=prefix(/a) at f:6:5: its prefix matches too, but a prefix" in shown
    shared = str(explain(snapshot, "edge", descriptor("path=/ab")))
    assert "the shared prefix matches: path=prefix(/a)" in shared
    assert any(line.startswith("edge.path_prefix(/a/b): unit=DAY") for line in dump(snapshot))


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ("prefix: ~", "prefix is empty: say what it takes, or leave it out"),
        ("prefix: ''", "prefix must be a text: leave it out to take any value"),
        ("prefix: [a]", "prefix must be text"),
        ("prefix: a, value: b", "value and prefix exclude each other: write a descriptor for each"),
        ("prfix: a", "did you mean 'prefix'?"),
        ("prefix: a, descriptors: [{key: b, prefix: 1}, {key: b, prefix: '1'}]", "the same key"),
        (
            "share_threshold: true",
            "share_threshold needs a `*` in value, one_of, cidr, regex or prefix",
        ),
    ],
)
def test_problems(keys: str, problem: str) -> None:
    """What cannot be read is a problem at its place."""
    file = parse("f", f"domain: edge\ndescriptors:\n  - {{key: k, {keys}, {LIMIT}}}".encode())

    assert file.bad
    assert any(problem in each.message for each in file.problems)
    assert all(each.source.line == 3 for each in file.problems)
