"""Rules over xDS mean what the same YAML means; our own keys come from metadata or an overlay."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf import json_format

from ratelimit_service.observability.stats import Tallies
from ratelimit_service.rules.overlay import NO_OVERLAY, Overlay, parse_overlay
from ratelimit_service.rules.resource import parse_resource, resource_bytes
from ratelimit_service.rules.schema import RuleFile, parse
from ratelimit_service.rules.tree import Rule, walk
from ratelimit_service.wire.discovery import TYPE_URL, RateLimitConfig, decode_resource

NAME = "xds://server:18000/edge"


def sent(config: dict[str, Any], overlay: Overlay = NO_OVERLAY) -> RuleFile:
    """A resource as it is after its way from the server."""
    message = json_format.ParseDict(config, RateLimitConfig())
    _, values = decode_resource(TYPE_URL, message.SerializeToString())
    return parse_resource(NAME, resource_bytes("7", json.dumps(values).encode()), Tallies, overlay)


def one(rate_limit: dict[str, Any] | None, **others: Any) -> dict[str, Any]:
    descriptor = {"key": "user", **others}
    if rate_limit is not None:
        descriptor["rate_limit"] = rate_limit
    return {"name": "edge", "domain": "edge", "descriptors": [descriptor]}


def meaning(file: RuleFile) -> list[object]:
    """All that rules say, but for where they stand."""
    meaning: list[object] = [file.domain, file.shard_by.keys if file.shard_by else None]
    for node in walk(file.nodes):
        rule = node.rule
        meaning.append((node.key, node.value, node.share_threshold, node.value_to_metric))
        if rule is not None:
            meaning.append(shown(rule))
    return meaning


def shown(rule: Rule) -> tuple[object, ...]:
    return (
        rule.path,
        rule.limits,
        rule.names,
        rule.replaces,
        rule.shadow_mode,
        rule.quota_mode,
        rule.failure_policy,
        rule.detailed_metric,
        rule.enqueue,
        rule.metadata,
    )


EVERY_FIELD = """
domain: edge
descriptors:
  - key: user
    value: "al*ce"
    shadow_mode: true
    detailed_metric: true
    quota_mode: true
    metadata: {text: a, number: 1.5, whole: 3, on: true, none: null, list: [a, 1], deep: {er: b}}
    rate_limit: {unit: minute, requests_per_unit: 5, name: first, replaces: [{name: other}]}
    descriptors:
      - {key: path, rate_limit: {unit: week, requests_per_unit: 4294967295}}
      - {key: free, value: "yes", rate_limit: {unlimited: true, name: free}}
      - {key: nothing, value: "12:30"}
  - {key: none, rate_limit: {unit: year, requests_per_unit: 0}}
"""


def test_every_field_means_what_it_means_in_yaml() -> None:
    """Every field of RateLimitConfig, at every depth, makes the same rules as YAML."""
    low = {"key": "path", "rate_limit": {"unit": "WEEK", "requests_per_unit": 4294967295}}
    free = {"key": "free", "value": "yes", "rate_limit": {"unlimited": True, "name": "free"}}
    user = {
        "key": "user",
        "value": "al*ce",
        "shadow_mode": True,
        "detailed_metric": True,
        "quota_mode": True,
        "metadata": {
            "text": "a",
            "number": 1.5,
            "whole": 3,
            "on": True,
            "none": None,
            "list": ["a", 1],
            "deep": {"er": "b"},
        },
        "rate_limit": {
            "unit": "MINUTE",
            "requests_per_unit": 5,
            "name": "first",
            "replaces": [{"name": "other"}],
        },
        "descriptors": [low, free, {"key": "nothing", "value": "12:30"}],
    }
    none = {"key": "none", "rate_limit": {"unit": "YEAR"}}
    file = sent({"name": "edge", "domain": "edge", "descriptors": [user, none]})

    assert file.problems == ()
    assert meaning(file) == meaning(parse("x", EVERY_FIELD.encode()))


@pytest.mark.parametrize("unit", ["second", "minute", "hour", "day", "week", "month", "year"])
def test_units(unit: str) -> None:
    """Every unit of the protocol is the unit of that name."""
    yaml = f"domain: edge\ndescriptors: [{{key: user, rate_limit: {{unit: {unit}, "
    yaml += "requests_per_unit: 1}}]"

    file = sent(one({"unit": unit.upper(), "requests_per_unit": 1}))

    assert meaning(file) == meaning(parse("x", yaml.encode()))


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (one({"requests_per_unit": 1}), "user: unit is missing: allowed are "),
        (one({"unit": 9, "requests_per_unit": 1}), "user: unit '9' is unknown: allowed are "),
        (one({"unit": "DAY", "unlimited": True}), "user: unit and unlimited: true exclude each"),
        ({"name": "edge", "domain": ""}, "domain is empty: name what callers ask for [no_domain]"),
        (one(None, key=""), "key is missing or empty: every descriptor needs one [no_key]"),
        (
            {"name": "edge", "domain": "edge", "descriptors": [{"key": "a"}, {"key": "a"}]},
            f"a: the same key and value stand at {NAME}@7: merge the two [duplicate]",
        ),
        (
            one({"unit": "DAY", "name": "a", "replaces": [{"name": "a"}]}),
            "user: 'a' cannot replace itself [replaces]",
        ),
    ],
)
def test_problems_are_those_of_yaml(config: dict[str, Any], problem: str) -> None:
    """What is wrong is said in the words of lint, with server, resource and version before it."""
    file = sent(config)

    assert file.bad
    assert f"{NAME}@7: {problem}" in "\n".join(map(str, file.problems))


HOW = {
    "algorithm": "token_bucket",
    "burst": 900,
    "refill": "stepped",
    "unit_multiplier": 5,
    "share_threshold": True,
}


def test_metadata_says_how_to_count() -> None:
    """`metadata.ratelimit` sets our keys, and callers see nothing of it."""
    yaml = b"""
domain: edge
descriptors:
  - key: user
    value: "*"
    share_threshold: true
    metadata: {plan: gold}
    rate_limit:
      {unit: minute, requests_per_unit: 500, unit_multiplier: 5, algorithm: token_bucket,
       burst: 900, refill: stepped}
"""
    limit = {"unit": "MINUTE", "requests_per_unit": 500}

    both = sent(one(limit, value="*", metadata={"ratelimit": HOW, "plan": "gold"}))
    alone = sent(one(limit, value="*", metadata={"ratelimit": HOW}))

    assert both.problems == alone.problems == ()
    assert meaning(both) == meaning(parse("x", yaml))
    assert [node.rule.metadata for node in alone.nodes if node.rule] == [None]


@pytest.mark.parametrize(
    ("metadata", "problem"),
    [
        ({"requests_per_unit": 5}, "'requests_per_unit' is no key of metadata.ratelimit: allowed"),
        ({"unlimited": True}, "'unlimited' is no key of metadata.ratelimit"),
        ({"name": "x"}, "'name' is no key of metadata.ratelimit"),
        ({"failure_policy": "closed"}, "'failure_policy' is no key of metadata.ratelimit"),
        ({"algoritm": "x"}, "of metadata.ratelimit: did you mean 'algorithm'? Allowed are "),
        ({"algorithm": "tokens"}, "algorithm 'tokens' is unknown: allowed are "),
        ({"burst": 1.5, "algorithm": "token_bucket"}, "burst must be a whole number from "),
        ("token_bucket", "metadata.ratelimit must be a mapping of "),
    ],
)
def test_metadata_that_does_not_say_how_to_count(metadata: object, problem: str) -> None:
    """Only keys that say how to count are taken, with values that are allowed."""
    limit = {"unit": "MINUTE", "requests_per_unit": 5}

    file = sent(one(limit, metadata={"ratelimit": metadata}))

    assert file.bad
    assert problem in "\n".join(map(str, file.problems))


def test_metadata_says_what_is_taken() -> None:
    """`metadata.ratelimit` can hold what a descriptor takes, with a limit or without one."""
    yaml = parse(
        "f",
        b"""
domain: edge
descriptors:
- {key: k, cidr: [10.0.0.0/8], rate_limit: {unit: day, requests_per_unit: 1}}
- {key: k, one_of: [a, b], descriptors: [{key: l}]}
""",
    )
    limit = {"unit": "DAY", "requests_per_unit": 1}
    address = one(limit, metadata={"ratelimit": {"cidr": ["10.0.0.0/8"]}})
    values = one(None, metadata={"ratelimit": {"one_of": ["a", "b"]}}, descriptors=[{"key": "l"}])
    address["descriptors"] += values["descriptors"]

    file = sent(address)

    assert not file.problems
    assert [(node.value, node.matcher) for node in walk(file.nodes)] == [
        (node.value, node.matcher) for node in walk(yaml.nodes)
    ]


def test_metadata_of_files_stays_what_it_is() -> None:
    """In a file `metadata.ratelimit` is metadata as any other."""
    yaml = b"""
domain: edge
descriptors:
  - key: user
    metadata: {ratelimit: {algorithm: token_bucket}}
    rate_limit: {unit: minute, requests_per_unit: 5}
"""

    (node,) = parse("x", yaml).nodes

    assert node.rule is not None
    assert node.rule.metadata == {"ratelimit": {"algorithm": "token_bucket"}}
    assert node.rule.limits[0].algorithm == "fixed_window"


def overlay_of(text: str) -> Overlay:
    overlay, problems = parse_overlay("overlay.yaml", text.encode())
    assert problems == ()
    return overlay


def test_overlay() -> None:
    """Its keys are set on what its patterns match; the last entry that says a key counts."""
    overlay = overlay_of("""
overlay:
  - rate_limit: {algorithm: sliding_window, failure_policy: closed}
  - {domain: "ed*", key: "us*", rate_limit: {algorithm: token_bucket, burst: 9}}
  - {domain: "other", rate_limit: {algorithm: leaky_bucket}}
  - {key: path, share_threshold: true, value_to_metric: true, on_limit: enqueue}
  - {domain: edge, shard_by: [user]}
""")
    limit = {"unit": "MINUTE", "requests_per_unit": 5}
    path = {"key": "path", "value": "/*", "rate_limit": limit}

    how = {"ratelimit": {"algorithm": "sliding_log"}}
    file = sent(one(limit, descriptors=[path], metadata=how), overlay)

    yaml = b"""
domain: edge
shard_by: [user]
descriptors:
  - key: user
    rate_limit:
      {unit: minute, requests_per_unit: 5, algorithm: token_bucket, burst: 9,
       failure_policy: closed}
    descriptors:
      - key: path
        value: "/*"
        share_threshold: true
        value_to_metric: true
        on_limit: enqueue
        rate_limit:
          {unit: minute, requests_per_unit: 5, algorithm: sliding_window, failure_policy: closed}
"""
    assert file.problems == ()
    assert meaning(file) == meaning(parse("x", yaml))


def test_overlay_that_does_not_fit() -> None:
    """What an overlay makes wrong in a rule is said with the place in the overlay."""
    overlay = overlay_of("overlay:\n  - rate_limit: {burst: 9}\n")

    file = sent(one({"unit": "MINUTE", "requests_per_unit": 5}), overlay)

    (problem,) = file.problems
    assert str(problem).startswith("overlay.yaml:2:18: user: burst means nothing with fixed_window")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("overlay: [{rate_limit: {unit: day}}]", "overlay.yaml:1:25: 'unit' is no key"),
        ("overlay: [{keys: a}]", "'keys' is no key: did you mean 'key'? Allowed are domain, key, "),
        ("overlay: [{key: a}]", "this sets nothing"),
        ("overlay: [{key: a, shard_by: [a]}]", "shard_by is of a whole domain"),
        ("overlay: a", "overlay must be a list"),
        ("overlay: [", "this is no YAML"),
        ("", "the file is empty"),
    ],
)
def test_overlay_that_is_wrong(text: str, problem: str) -> None:
    """An overlay sets our own keys and nothing else; what is wrong is said as of rule files."""
    _, problems = parse_overlay("overlay.yaml", text.encode())

    assert problem in "\n".join(map(str, problems))
