"""What a rule file without problems means."""

from __future__ import annotations

import pytest

from ratelimit_service.model import FailurePolicy, Limit, Unit
from ratelimit_service.rules.schema import parse
from ratelimit_service.rules.tree import Node, Rule, walk

HEAD = "domain: edge\ndescriptors:\n"


def nodes(text: str) -> list[Node]:
    file = parse("f", text.encode())
    assert not file.problems, file.problems
    return list(walk(file.nodes))


def rule(limit: str, flags: str = "") -> Rule:
    """The rule of a file with one descriptor."""
    (node,) = nodes(f"{HEAD}  - {{key: k, {flags} rate_limit: {{{limit}}}}}")
    assert node.rule
    return node.rule


def test_all_of_a_limit() -> None:
    """Every key of rate_limit finds its place."""
    declared = rule(
        "unit: Minute, unit_multiplier: 5, requests_per_unit: 16, name: n, replaces: [{name: m}],"
        "algorithm: fixed_window, count_denied: yes, failure_policy: closed"
    )

    assert declared.limits == (Limit(16, Unit.MINUTE, 5, "n", count_denied=True),)
    assert (declared.domain, declared.path, declared.names, declared.replaces) == (
        "edge",
        "k",
        frozenset({"n"}),
        frozenset({"m"}),
    )
    assert declared.failure_policy is FailurePolicy.CLOSED
    assert str(declared.source) == "f:3:15"


def test_all_of_a_descriptor() -> None:
    """Every key of a descriptor finds its place."""
    (node,) = nodes(
        f"{HEAD}  - {{key: k, value: v*, share_threshold: true, value_to_metric: true,"
        " shadow_mode: true, quota_mode: on, detailed_metric: true,"
        " metadata: {a: {b: [1, x, ~, true, 2.5, 2020-01-01]}},"
        " rate_limit: {unlimited: true}}"
    )

    assert (node.key, node.value, node.share_threshold, node.value_to_metric) == (
        "k",
        "v*",
        True,
        True,
    )
    assert node.rule
    assert node.rule.unlimited
    assert (node.rule.shadow_mode, node.rule.quota_mode, node.rule.detailed_metric) == (
        True,
        True,
        True,
    )
    assert node.rule.metadata == {"a": {"b": [1, "x", None, True, 2.5, "2020-01-01"]}}


@pytest.mark.parametrize("unit", list(Unit))
def test_units(unit: Unit) -> None:
    """All seven units are known, in any case of letters."""
    for word in (unit.name, unit.name.lower(), unit.name.title()):
        assert rule(f"unit: {word}, requests_per_unit: 1").limits == (Limit(1, unit),)


@pytest.mark.parametrize(
    ("text", "number"), [("0", 0), ("4294967295", 4294967295), ("0x10", 16), ("010", 8)]
)
def test_numbers(text: str, number: int) -> None:
    """Numbers are read as YAML 1.1 does, as in envoyproxy/ratelimit."""
    (declared,) = rule(f"unit: day, requests_per_unit: {text}").limits

    assert declared.requests_per_unit == number


@pytest.mark.parametrize(
    "text", ["0x10", "on", "010", "12:30", "2020-01-01", "1.50", "12345678901234567890", "1e3"]
)
def test_values_keep_their_text(text: str) -> None:
    """A value is the text that stands in the file, whatever YAML takes it for."""
    (node,) = nodes(f"{HEAD}  - {{key: k, value: {text}}}")

    assert node.value == text


@pytest.mark.parametrize("value", ["", "null", "~", "''"])
def test_no_value(value: str) -> None:
    """No value, null and empty text are all the key alone."""
    (node,) = nodes(f"{HEAD}  - key: k\n    value: {value}")

    assert node.value == ""


def test_null_limit_is_none() -> None:
    """`rate_limit:` with nothing behind it is a placeholder, as without it."""
    (node,) = nodes(f"{HEAD}  - key: k\n    rate_limit:\n")

    assert node.rule is None


def test_no_descriptors() -> None:
    """A domain without descriptors is one."""
    assert parse("f", b"domain: edge").domain == "edge"
    assert nodes("domain: edge\ndescriptors:") == []


def test_anchors_and_merges() -> None:
    """Aliases and `<<` work; what stands here wins over what is merged in, the first over later."""
    first, second = nodes(
        f"{HEAD}  - key: a\n    rate_limit: &base {{unit: day, requests_per_unit: 1}}\n"
        "  - key: b\n    rate_limit:\n"
        "      <<: [*base, {unit: hour, name: n}]\n"
        "      requests_per_unit: 2\n"
    )

    assert first.rule
    assert first.rule.limits == (Limit(1, Unit.DAY),)
    assert second.rule
    assert second.rule.limits == (Limit(2, Unit.DAY, 1, "n"),)


def test_tolerated_files_have_the_meaning_of_the_reference() -> None:
    """The last of equal keys counts, the first document, and a missing number denies all."""
    file = parse(
        "f",
        b"domain: x\ndomain: edge\ndescriptors:\n  - {key: a, rate_limit: {unit: day}}\n"
        b"---\ndomain: other\n",
    )

    assert not file.bad
    assert file.domain == "edge"
    (node,) = file.nodes
    assert node.rule
    assert node.rule.limits == (Limit(0, Unit.DAY),)


def test_unsafe_name_is_shown_safely() -> None:
    """A name that would break a header is replaced where callers see it, and only there."""
    limit = "{unit: day, requests_per_unit: 1, name: 'ä\"'}"
    file = parse("f", f"{HEAD}  - {{key: a, rate_limit: {limit}}}".encode())

    (node,) = file.nodes
    assert node.rule
    (shown,) = node.rule.limits
    assert (node.rule.names, shown.name) == (frozenset({'ä"'}), "__")
