"""What is told of changes of any rules, held against what callers really meet and charge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import count, product

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ratelimit_service.limiter import Planner
from ratelimit_service.model import Descriptor, Entry, Request
from ratelimit_service.rule_lab.comparison import compare
from ratelimit_service.rules.match import match
from ratelimit_service.rules.tree import Domain, Snapshot
from ratelimit_service.settings import Settings
from tests.examples import up_to
from tests.rule_lab.comparison.rule_files import (
    ADDED,
    CALLERS,
    END_MINUTE,
    REMOVED,
    File,
    domains,
    of,
)

_LIMITS = [
    {"unit": "second", "requests_per_unit": 5},
    {"unit": "second", "requests_per_unit": 9},
    {"unit": "minute", "requests_per_unit": 5},
    {"unit": "minute", "requests_per_unit": 5, "algorithm": "sliding_window"},
    {"unit": "minute", "requests_per_unit": 5, "algorithm": "sliding_window", "buckets": 6},
    {"unit": "minute", "requests_per_unit": 5, "algorithm": "token_bucket", "burst": 7},
    {"unit": "day", "requests_per_unit": 5, "per": "calendar"},
    {"unit": "minute", "requests_per_unit": 5, "anchor": "first_hit", "soft": "20%"},
    {"unit": "minute", "requests_per_unit": 5, "when": {"days": "thu"}},  # as on 1970-01-01
    {"unit": "minute", "requests_per_unit": 5, "when": {"to": "23:00"}},
    {"unit": "hour", "requests_per_unit": 5, "pool": "p", "reserve": "20%"},
    {"unit": "hour", "requests_per_unit": 5},
]
_KEYS = ("k", "m")
_VALUES = ("a", "b", "ab", "aab", "b*", "a*", "*a", "a*b", "*")
_ASKED = ("a", "b", "ab", "ba", "aab", "abb", "aaa", "z", "a*", "*", "")


def _limits() -> st.SearchStrategy[File]:
    one = st.sampled_from(_LIMITS)
    return st.one_of(
        st.just({}),
        st.just({"rate_limit": {"unlimited": True}}),
        st.fixed_dictionaries({"rate_limit": one}),
        st.fixed_dictionaries(
            {
                "rate_limits": st.lists(
                    st.sampled_from(_LIMITS[1:]), min_size=1, max_size=3, unique_by=str
                )
            }
        ),
    )


@st.composite
def _level(draw: st.DrawFn, depth: int) -> list[File]:
    nodes = []
    key_values = st.tuples(st.sampled_from(_KEYS), st.sampled_from([*_VALUES, None]))
    for key, value in draw(st.lists(key_values, max_size=4, unique=True)):
        node: File = {"key": key, **draw(_limits())}
        if value is not None:
            node["value"] = value
            if "*" in value and draw(st.booleans()):
                node["share_threshold"] = True
            if draw(st.sampled_from([False, False, True])):
                node["valid_until"] = "2027-01-31T18:00Z"
        if depth and draw(st.booleans()):
            node["descriptors"] = draw(_level(depth - 1))
        nodes.append(node)
    return nodes


@st.composite
def files(draw: st.DrawFn) -> File:
    """A rule file of one domain."""
    shard_by: File = draw(st.sampled_from([{}, {}, {"shard_by": ["k"]}, {"shard_by": "domain"}]))
    return {"domain": "d", **shard_by, "descriptors": draw(_level(1))}


@cache
def requests() -> list[tuple[Entry, ...]]:
    """Every descriptor of up to two entries."""
    entries = [Entry(key, value) for key in _KEYS for value in _ASKED]
    fewer = [Entry(key, value) for key in _KEYS for value in ("a", "ab", "b", "z")]
    return [(entry,) for entry in entries] + list(product(fewer, fewer))


PLANNER = Planner(Settings())
NUMBERS = count(1)


def rule_met(tree: Mapping[str, Domain], entries: Sequence[Entry]) -> str | None:
    rule = match(tree["d"], entries).rule
    return rule.path if rule else None


def keys(tree: Mapping[str, Domain], entries: Sequence[Entry]) -> set[bytes]:
    """The keys that the limiter would really charge."""
    request = Request("d", (Descriptor(tuple(entries)),))
    (plan,) = PLANNER.plan(request, Snapshot(next(NUMBERS), tree))
    return {hit.key for hit in plan.hits}


def reordered(nodes: list[File], draw: st.DataObject) -> list[File]:
    """The same nodes in another order, but for patterns of one key among themselves."""
    mixed = list(draw.draw(st.permutations(nodes)))
    for key in _KEYS:
        indices = [at for at, node in enumerate(mixed) if _is_pattern(node, key)]
        patterns = [node for node in nodes if _is_pattern(node, key)]
        for at, node in zip(indices, patterns, strict=True):
            mixed[at] = node
    return [
        node | {"descriptors": reordered(node["descriptors"], draw)}
        if "descriptors" in node
        else node
        for node in mixed
    ]


def _is_pattern(node: File, key: str) -> bool:
    return node["key"] == key and "*" in node.get("value", "")


@settings(max_examples=up_to(30))
@given(files(), st.data())
def test_the_same_in_other_words(file: File, data: st.DataObject) -> None:
    """Rules that are written in another form, order, or in two files are no change."""
    nodes = reordered(file["descriptors"], data)
    cut = data.draw(st.integers(0, len(nodes)))
    head = {name: file[name] for name in file if name != "descriptors"}
    block = yaml.safe_dump({"descriptors": nodes[:cut], **head}, sort_keys=data.draw(st.booleans()))
    flow = "# what else\n\n" + yaml.safe_dump(
        {"domain": "d", "descriptors": nodes[cut:]}, default_flow_style=True, width=30
    )

    assert compare(of(file), domains(block, flow)) == []
    assert compare(domains(block, flow), of(file)) == []


@settings(max_examples=up_to(25))
@given(files(), files())
def test_callers_who_meet_another_rule(old: File, new: File) -> None:
    """Whoever meets another rule is told of, by this move or as of a rule that came or went.

    And every example that is given meets the rules that it is said to meet.
    """
    before, after = of(old), of(new)
    changes = compare(before, after)
    moves = {
        (each.old.path if each.old else None, each.new.path if each.new else None)
        for change in changes
        for each in change.callers
    }
    come = {change.path for change in changes if change.kind is ADDED}
    gone = {change.path for change in changes if change.kind is REMOVED}

    for entries in requests():
        pair = rule_met(before, entries), rule_met(after, entries)
        if pair[0] != pair[1]:
            assert pair in moves or pair[0] in gone or pair[1] in come, entries
    for change in changes:
        for each in change.callers:
            assert rule_met(before, each.example) == (each.old.path if each.old else None)
            assert rule_met(after, each.example) == (each.new.path if each.new else None)
            one, other = keys(before, each.example), keys(after, each.example)
            assert each.anew == (bool(one and other) and not one & other)


@settings(max_examples=up_to(40))
@given(files(), files())
def test_counters_that_start_anew(old: File, new: File) -> None:
    """Counters of a rule that stays start anew just where this is told, with the reason."""
    before, after = of(old), of(new)
    changes = compare(before, after)
    by_path = {change.path: change for change in changes if change.kind is not CALLERS}
    moved = "".join(by_path[""].anew).partition(": ")[2].split(", ") if "" in by_path else []

    for entries in requests():
        path = rule_met(before, entries)
        if path is None or path != rule_met(after, entries):
            continue
        one, other = keys(before, entries), keys(after, entries)
        anew = len(one & other) < min(len(one), len(other))
        here = path in by_path and bool(by_path[path].anew)
        assert anew == (here or path in moved), (path, changes)


def _without_what_ends(nodes: Sequence[File]) -> list[File]:
    return [
        node | {"descriptors": _without_what_ends(node.get("descriptors", []))}
        for node in nodes
        if "valid_until" not in node
    ]


@settings(max_examples=up_to(30))
@given(files())
def test_what_has_ended_is_not_there(file: File) -> None:
    """To take out what has ended is no change, nor is to bring it."""
    without = file | {"descriptors": _without_what_ends(file["descriptors"])}

    assert compare(of(file), of(without), END_MINUTE) == []
    assert compare(of(without), of(file), END_MINUTE) == []
