"""What people are told of the rules: explain and the dump of /rlconfig."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.rules.dump import dump
from ratelimit_service.rules.explain import explain
from ratelimit_service.rules.lint import lint
from ratelimit_service.rules.load import Rules
from ratelimit_service.rules.paths import parse_path, path_text
from ratelimit_service.rules.tree import Snapshot
from tests.service.asking import descriptor

RULES = """domain: edge
descriptors:
  - key: path
    rate_limit: {unit: second, requests_per_unit: 9, name: any}
  - key: path
    value: /a/*
    rate_limit: {unit: minute, unit_multiplier: 5, requests_per_unit: 3, replaces: [{name: any}]}
  - {key: path, value: /*/b}
  - key: path
    value: /login
    shadow_mode: true
    descriptors:
      - key: user
        quota_mode: true
        rate_limit: {unit: day, requests_per_unit: 2, count_denied: true, failure_policy: error}
      - {key: free, rate_limit: {unlimited: true}}
"""


@pytest.fixture
def snapshot(tmp_path: Path) -> Snapshot:
    (tmp_path / "edge.yaml").write_text(RULES)
    (tmp_path / "bad.yaml").write_text("domain: bad\ndescriptors: 3\n")
    rules = Rules(tmp_path, stats=Stats(), health=Health())
    rules.load()
    return rules.snapshot


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "path=/a/b",
            """path=/a/b: the pattern matches: path=/a/* at edge.yaml:5:5
  passed over path at edge.yaml:3:5: it is less specific
  passed over path=/*/b at edge.yaml:8:5: its pattern matches too, but was declared later
  passed over path=/login at edge.yaml:9:5: its value differs
rule path=/a/* at edge.yaml:7:5: 3 per 5 minutes""",
        ),
        (
            "path=/login,user=x",
            """path=/login: the exact value matches: path=/login at edge.yaml:9:5
  passed over path at edge.yaml:3:5: it is less specific
  passed over path=/a/* at edge.yaml:5:5: its pattern does not match
  passed over path=/*/b at edge.yaml:8:5: its pattern does not match
user=x: the key alone matches: user at edge.yaml:13:9
rule path=/login > user at edge.yaml:15:9: 2 per day, denied hits count""",
        ),
        (
            "path=/x/b",
            """path=/x/b: the pattern matches: path=/*/b at edge.yaml:8:5
  passed over path at edge.yaml:3:5: it is less specific
  passed over path=/a/* at edge.yaml:5:5: its pattern does not match
  passed over path=/login at edge.yaml:9:5: its value differs
no rule: the descriptor ends at path=/*/b, which has no rate_limit of its own; a rule applies \
to descriptors exactly as deep as it""",
        ),
        (
            "pth=/login",
            """pth=/login: no such key at this level; did you mean 'path'?
no rule: stopped at pth=/login, no such key at this level; did you mean 'path'?""",
        ),
        (
            "path=/a/x,user=1",
            """path=/a/x: the pattern matches: path=/a/* at edge.yaml:5:5
  passed over path at edge.yaml:3:5: it is less specific
  passed over path=/*/b at edge.yaml:8:5: its pattern does not match
  passed over path=/login at edge.yaml:9:5: its value differs
user=1: the rules end before this entry
no rule: stopped at user=1, the rules end before this entry""",
        ),
        (
            "path=/*/b",
            """path=/*/b: the pattern matches: path=/*/b at edge.yaml:8:5
  passed over path at edge.yaml:3:5: it is less specific
  passed over path=/a/* at edge.yaml:5:5: its pattern does not match
  passed over path=/login at edge.yaml:9:5: its value differs
no rule: the descriptor ends at path=/*/b, which has no rate_limit of its own; a rule applies \
to descriptors exactly as deep as it""",
        ),
        ("", "no rule: the descriptor has no entries"),
    ],
)
def test_explain(snapshot: Snapshot, tmp_path: Path, text: str, shown: str) -> None:
    """Explain tells each step, what was passed over and why, and how it ends."""
    explanation = explain(snapshot, "edge", descriptor(text))

    assert str(explanation).replace(f"{tmp_path}/", "") == shown


def test_explain_tells_of_a_queue(tmp_path: Path) -> None:
    """Explain says where requests go that the rule denies."""
    path = tmp_path / "all.yaml"
    path.write_text(EVERYTHING)
    rules = Rules(path, stats=Stats(), health=Health())
    rules.load()

    shown = str(explain(rules.snapshot, "all", descriptor("path=/a/b,user=ann")))

    assert shown.endswith(": 2 per day; what is denied goes into its queue")


def test_explain_unknown_domain(snapshot: Snapshot) -> None:
    """A domain that is not there, or not served, is said to be so."""
    unknown = explain(snapshot, "edg", descriptor("a=b"))
    unserved = explain(snapshot, "bad", descriptor("a=b"))

    assert str(unknown) == "no rule: there is no domain 'edg', only edge; did you mean 'edge'?"
    assert str(unserved) == "domain 'bad' is not served: its rules have errors"


def test_explain_names_some_of_many_domains(snapshot: Snapshot) -> None:
    """Of many domains some are named, and one that is alike is found among those as long."""
    domains = {f"tenant-{number:05}": snapshot.domains["edge"] for number in range(10_000)}

    shown = str(
        explain(
            Snapshot(1, {**domains, "edge": domains["tenant-00000"]}), "edgy", descriptor("a=b")
        )
    )

    assert shown.endswith("tenant-00018 and 9981 more; did you mean 'edge'?")
    assert len(shown) < 500


def test_explain_without_rules() -> None:
    """If no file could be read, that is why there is no rule."""
    explanation = explain(Snapshot(1, {}), "edge", descriptor("a=b"))

    assert str(explanation) == "no domain is served: no rule file could be read"


def test_explain_a_pattern_as_value(tmp_path: Path) -> None:
    """A value that reads like a pattern meets that pattern, also if another is declared before."""
    path = tmp_path / "star.yaml"
    limit = "rate_limit: {unit: day, requests_per_unit: 1}"
    path.write_text(
        f"domain: star\ndescriptors:\n  - {{key: a, value: x*, {limit}}}\n"
        f"  - {{key: a, value: x*z, {limit}}}\n"
    )
    rules = Rules(path, stats=Stats(), health=Health())
    rules.load()

    shown = str(explain(rules.snapshot, "star", descriptor("a=x*z"))).replace(f"{tmp_path}/", "")

    assert shown.splitlines()[:2] == [
        "a=x*z: the pattern matches: a=x*z at star.yaml:4:5",
        "  passed over a=x* at star.yaml:3:5: "
        "its pattern matches too, but another has exactly this value",
    ]


def test_explain_values_of_groups(tmp_path: Path) -> None:
    """A network that takes the address, too, is passed over for what is true of it."""
    path = tmp_path / "group.yaml"
    group = "group: {ipv4: 24}, rate_limit: {unit: day, requests_per_unit: 1}"
    path.write_text(
        f"domain: d\ndescriptors:\n  - {{key: a, value: 10.*, {group}}}\n"
        f"  - {{key: a, one_of: [10.0.0.0/24, 10.0.1.0/24], {group}}}\n"
        f"  - {{key: a, value: 10.0.0.0/16, group: {{ipv4: 16}}}}\n"
        f"  - {{key: a, value: 10.0.2.0/24, {group}}}\n"
        "  - {key: a, value: 10.0.0.7}\n"
    )
    rules = Rules(path, stats=Stats(), health=Health())
    rules.load()

    def why(value: str) -> dict[int, str]:
        (step,) = explain(rules.snapshot, "d", descriptor(f"a={value}")).steps
        return {int(each.source.split(":")[1]): each.why for each in step.passed_over}

    assert why("10.0.0.7") == {
        3: "its pattern matches too, but another has exactly this value",
        4: "its list matches too, but another has exactly this value",
        5: "its value matches too, but another has exactly this value",
        6: "its value differs",
    }
    assert why("10.0.0.6") == {
        3: "its pattern matches too, but another has exactly this value",
        5: "its value matches too, but was declared later",
        6: "its value differs",
        7: "its value differs",
    }


def test_dump(snapshot: Snapshot, tmp_path: Path) -> None:
    """/rlconfig has a line a rule, in order, that begins as the reference's."""
    assert "".join(dump(snapshot)).replace(f"{tmp_path}/", "").splitlines() == [
        "edge.path: unit=SECOND requests_per_unit=9, shadow_mode: false, quota_mode: false, "
        "algorithm: fixed_window, name: any, at edge.yaml:4:5",
        "edge.path_/a/*: unit=MINUTE requests_per_unit=3, shadow_mode: false, quota_mode: false, "
        "unit_multiplier: 5, algorithm: fixed_window, replaces: any, at edge.yaml:7:5",
        "edge.path_/login.user: unit=DAY requests_per_unit=2, shadow_mode: false, "
        "quota_mode: true, algorithm: fixed_window, count_denied: true, failure_policy: error, "
        "at edge.yaml:15:9",
        "edge.path_/login.free: unlimited: true, at edge.yaml:16:21",
        "bad: not served, its rules never loaded",
    ]


EVERYTHING = """domain: all
shard_by: [path, user]
descriptors:
  - key: path
    value: /a/*
    share_threshold: true
    value_to_metric: true
    descriptors:
      - key: user
        value_to_metric: true
        detailed_metric: true
        metadata: {plan: gold, nested: {list: [1, true, "a\\nb"]}}
        on_limit: Enqueue
        rate_limit: {unit: day, requests_per_unit: 2}
      - {key: free, metadata: {why: public}, rate_limit: {unlimited: true}}
"""


def test_dump_leaves_nothing_out(tmp_path: Path) -> None:
    """/rlconfig shows what holds for a rule, also where a descriptor above it says so."""
    path = tmp_path / "all.yaml"
    path.write_text(EVERYTHING)
    rules = Rules(path, stats=Stats(), health=Health())
    rules.load()

    assert "".join(dump(rules.snapshot)).replace(f"{tmp_path}/", "").splitlines() == [
        "all.path_/a/*.user: unit=DAY requests_per_unit=2, shadow_mode: false, "
        "quota_mode: false, algorithm: fixed_window, detailed_metric: true, "
        'metadata: {"plan": "gold", "nested": {"list": [1.0, true, "a\\nb"]}}, on_limit: enqueue, '
        "share_threshold: path=/a/*, value_to_metric: path=/a/* user, shard_by: path user, "
        "at all.yaml:14:9",
        'all.path_/a/*.free: unlimited: true, metadata: {"why": "public"}, '
        "share_threshold: path=/a/*, value_to_metric: path=/a/*, shard_by: path user, "
        "at all.yaml:15:46",
    ]


def test_shipped_rules_lint_clean() -> None:
    """The rule files that ship have no problem."""
    assert lint([Path(__file__).parents[2] / "rules"]).problems == ()


@given(
    st.lists(
        st.tuples(st.text('ab="\\ > é', min_size=1, max_size=6), st.text('ab="\\ >*é', max_size=6)),
        min_size=1,
        max_size=4,
    )
)
def test_a_path_is_read_as_it_is_written(entries: list[tuple[str, str]]) -> None:
    """What a rule's path shows can be told apart again, whatever marks are in it."""
    assert parse_path(path_text(entries)) == entries
