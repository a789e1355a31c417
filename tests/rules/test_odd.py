"""Whatever stands in a rule file is read or is a problem at its line; nothing else comes of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratelimit_service.model import Limit
from ratelimit_service.observability.stats import Tallies
from ratelimit_service.rules import limits, schema
from ratelimit_service.rules.build import Version, build
from ratelimit_service.rules.fields import Fields
from ratelimit_service.rules.lint import lint
from ratelimit_service.rules.schema import parse
from tests.examples import up_to

_NUMBERS = [
    *("0x_", "0b", "0b_", "0o7", "0x", "-", "+", "_", "1_000", "1__0", "010", "08", "-1", "1.5"),
    *("4294967296", "1e400", "1.0e+400", ".inf", "-.inf", ".nan", "1:30", "1:99", "1:30.5"),
    *("999999999999999999999s", "90s", "10%", "1000%", "٣", "٣s", "10٣%"),
]
_LONG = [
    "9" * 5_000,
    "9" * 400,
    f"{'9' * 400}.0",
    f"0x{'f' * 5_000}",
    "1:" * 100_000 + "1",
    f"{'9' * 5_000}s",
    f"'{'a' * 20_000}'",
    f"'{'*' * 20_000}'",
]
_TAGGED = [
    f"!!{tag} {value}"
    for tag in ("int", "float", "bool", "null", "str", "binary", "merge", "set", "timestamp")
    for value in ("''", "x", "-", "_", "[1]", "{a: 1}")
] + ["!!python/object:os.system x", "!mine x", "!<tag:x> x"]
_TEXTS = [
    *("~", "null", "''", "=", "<<", "on", "2024-01-01", "2024-99-99", "2001-12-14t21:59:43.10Z"),
    *('"\\0"', '"\\ud800"', '"\\uDFFF"', '"\\r\\n"', '"\\u202e"', "\u202e", "a\u2028b", "\u00a0"),
    *("../../etc/passwd", "/etc/passwd", "Europe", "? x", "- a", "*nobody", "&a b", "%x", "@x"),
]
_STRUCTURES = [
    *("[]", "{}", "[[]]", "[{}]", "{a: 1}", "{[a]: b}", "{{a: b}: c}", "[~]", "[1, [2]]", "{~: 1}"),
    *("&x [*x]", "&x {a: *x}", "&x {<<: *x}", "{<<: 1}", "{<<: [1]}", "{<<: [[{a: 1}]]}"),
    *("{<<: {unit: day}}", "{a: &x {b: 1}, <<: *x}", "{<<: ~}", "{<<: []}"),
]
STRANGE_VALUES = [*_NUMBERS, *_LONG, *_TAGGED, *_TEXTS, *_STRUCTURES]

_LIMITS = [
    *("unit: @, requests_per_unit: 1", "unit: day, requests_per_unit: @"),
    *("window: @, requests_per_unit: 1", "window: 9s, requests_per_unit: @"),
    *(
        f"unit: day, requests_per_unit: 1, {rest}"
        for rest in (
            *("unit_multiplier: @", "unlimited: @", "name: @", "algorithm: @", "count_denied: @"),
            *("replaces: @", "replaces: [@]", "replaces: [{name: @}]", "failure_policy: @"),
            *("per: @", "per: calendar, time_zone: @", "per: calendar, week_start: @"),
            *("anchor: @", "soft: @", "@: 1", "pool: @", "pool: p, reserve: @", "group: @"),
            *("when: @", "when: {from: '08:00', days: @}", "when: {from: @}"),
            "when: {days: fri, time_zone: @}",
            "algorithm: token_bucket, burst: @",
            "algorithm: token_bucket, refill: @",
            "algorithm: sliding_window, buckets: @",
            "algorithm: leaky_bucket, max_wait: @",
        )
    ),
]
_FLAGS = [
    *("shadow_mode", "quota_mode", "share_threshold", "detailed_metric", "value_to_metric"),
    *("metadata", "on_limit"),
]
_DESCRIPTORS = [
    *("value: @", "rate_limit: @", "rate_limits: @", "rate_limits: [@]", "descriptors: @", "@: 1"),
    *("descriptors: [@]", "descriptors: [{key: @}]", "group: @", "group: {ipv4: @}"),
    *("one_of: @", "one_of: [@]", "cidr: @", "cidr: [@]", "regex: @", "valid_until: @"),
    *(
        f"{flag}, rate_limit: {{unlimited: true}}"
        for flag in (
            *(f"{flag}: @" for flag in _FLAGS),
            *("metadata: {a: @}", "metadata: {@: 1}", "metadata: {a: [@]}"),
        )
    ),
    *(f"rate_limit: {{{limit}}}" for limit in _LIMITS),
]
TEMPLATES = [
    *("@", "@: edge", "domain: @"),
    *(
        f"domain: edge\n{rest}"
        for rest in (
            *("shard_by: @", "shard_by: [@]", "descriptors: @", "descriptors: [@]"),
            *(f"answer: {{{each}: @}}" for each in ("headers", "body", "template", "link")),
            *("answer: @", "answer: {description: @}", "answer: {template: x, content_type: @}"),
            *("descriptors: [{key: @}]",),
            *(f"descriptors:\n- {{key: k, {each}}}" for each in _DESCRIPTORS),
        )
    ),
]
"""Every place of the rule language; `@` is what stands there."""


def problem_lines(text: str) -> list[str]:
    """What is said of a file with this text, and of all rules made of it."""
    data = text.encode()
    built = build([Version("f", data, None)], Tallies, strict=False)
    problems = (*built.files[0].problems, *built.conflicts)
    assert problems or built.domains
    return [str(problem) for problem in problems]


@pytest.mark.parametrize("template", TEMPLATES)
def test_every_odd_value_at_every_place(template: str) -> None:
    """A value is read, or is a problem of one short line with its place; never an exception."""
    for value in STRANGE_VALUES:
        for line in problem_lines(template.replace("@", value)):
            assert "\n" not in line
            assert len(line) < 500 or value in _LONG, line
            assert "[internal]" not in line, (value, line)


@settings(max_examples=up_to(300))
@given(
    st.sampled_from(TEMPLATES),
    st.text(
        st.sampled_from("0123456789_xbo:.-+eE~!&*[]{}<>?'\"\\ \n,#|%@`azZ\0\u202e"), max_size=12
    ),
)
def test_any_value_at_any_place(template: str, value: str) -> None:
    """The same holds for whatever else can be typed."""
    assert not any("[internal]" in line for line in problem_lines(template.replace("@", value)))


@settings(max_examples=up_to(300))
@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    """Any bytes at all are a file with problems, or without."""
    assert not any(problem.kind == "internal" for problem in parse("f", data).problems)


@pytest.mark.parametrize("number", ["0x_", "0b_", "9" * 5_000, "!!int ''", "!!int x", "!!float x"])
def test_what_only_looks_like_a_number(tmp_path: Path, number: str) -> None:
    """What YAML takes for a number and nobody can read is a problem at its place, in lint too."""
    path = tmp_path / "odd.yaml"
    path.write_text(
        "domain: edge\ndescriptors:\n- key: user\n  rate_limit:\n    unit: day\n"
        f"    requests_per_unit: {number}\n"
    )

    (problem,) = lint([path]).problems

    assert str(problem) == (
        f"{path}:6:24: user: requests_per_unit must be a whole number from 0 to 4294967295, "
        "without quotes [number]"
    )


@pytest.mark.parametrize("word", ["~", "null", "!!null x"])
def test_nothing_in_place_of_a_word(word: str) -> None:
    """A key without a value means what its absence means."""
    limit = f"unit: day, requests_per_unit: 1, algorithm: {word}, anchor: {word}, name: {word}"

    file = parse("f", f"domain: d\ndescriptors: [{{key: k, rate_limit: {{{limit}}}}}]".encode())

    assert file.problems == ()
    (node,) = file.nodes
    assert node.rule
    assert node.rule.limits[0].algorithm == "fixed_window"
    assert node.rule.names == frozenset()


def test_fault_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Should reading fail all the same, it is a problem of that file, and of no other."""
    read = limits.read_limit

    def failing(fields: Fields, around: Fields, key: str | None, *, reserves: bool) -> Limit | None:
        if fields.source().file == "bad":
            raise RecursionError("too deep")
        return read(fields, around, key, reserves=reserves)

    monkeypatch.setattr(schema, "read_limit", failing)
    text = "domain: {}\ndescriptors: [{{key: k, rate_limit: {{unit: day, requests_per_unit: 1}}}}]"
    versions = [Version(name, text.format(name).encode(), None) for name in ("bad", "good")]

    built = build(versions, Tallies, strict=False)

    assert (list(built.domains), built.never_good) == (["good"], frozenset({"bad"}))
    (problem,) = built.files[0].problems
    assert "a fault in reading this file, please report it: test_odd.py:" in str(problem)
    assert "RecursionError('too deep')" in str(problem)
