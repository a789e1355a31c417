"""What answers and counters carry of a rule is bounded, from files and over xDS alike."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ratelimit_service.observability.stats import Tallies
from ratelimit_service.rules.overlay import NO_OVERLAY
from ratelimit_service.rules.resource import parse_resource, resource_bytes
from ratelimit_service.rules.schema import RuleFile, parse


def texts(what: str, count: int) -> dict[str, Any]:
    """A descriptor with a text of so many characters."""
    limit: dict[str, Any] = {"unit": "day", "requests_per_unit": 10}
    text = "n" * count
    if what in {"key", "value"}:
        return {"key": "k", "rate_limit": limit, what: text}
    if what == "one_of":
        return {"key": "k", "rate_limit": limit, "one_of": ["a", text]}
    if what == "metadata":
        return {"key": "k", "rate_limit": limit, "metadata": {"m": text}}
    if what == "replaces":
        return {"key": "k", "rate_limit": limit | {"replaces": [{"name": text}]}}
    return {"key": "k", "rate_limit": limit | {what: text}}


def from_file(descriptor: dict[str, Any]) -> RuleFile:
    document = {"domain": "edge", "descriptors": [descriptor]}
    return parse("rules.yaml", json.dumps(document).encode())


def from_server(descriptor: dict[str, Any]) -> RuleFile:
    document = {"domain": "edge", "descriptors": [descriptor]}
    resource = resource_bytes("7", json.dumps(document).encode())
    return parse_resource("rules", resource, Tallies, NO_OVERLAY)


BOUNDS = {
    "name": (256, "name has 257 characters: 256 are allowed"),
    "pool": (256, "pool has 257 characters: 256 are allowed"),
    "replaces": (256, "name has 257 characters: 256 are allowed"),
    "key": (4_096, "key has 4097 characters: 4096 are allowed"),
    "value": (4_096, "value has 4097 characters: 4096 are allowed"),
    "one_of": (4_096, "a value has 4097 characters: 4096 are allowed"),
    "metadata": (4_087, "metadata has 4097 characters as JSON: 4096 are allowed"),
}


@pytest.mark.parametrize("what", BOUNDS)
def test_texts_of_files(what: str) -> None:
    """A text may be as long as its bound, and the error about a longer one says the bound."""
    most, message = BOUNDS[what]

    assert [str(each) for each in from_file(texts(what, most)).problems] == []
    (problem,) = from_file(texts(what, most + 1)).problems
    assert problem.message == message
    assert from_file(texts(what, most + 1)).bad


@pytest.mark.parametrize("what", ["name", "key", "value"])
def test_texts_of_a_management_server(what: str) -> None:
    """The same over xDS."""
    most, message = BOUNDS[what]

    assert not from_server(texts(what, most)).problems
    (problem,) = from_server(texts(what, most + 1)).problems
    assert problem.message == message


def test_a_later_descriptor_is_bounded_as_the_first() -> None:
    """A descriptor that differs from one before only in its value is not read, but bounded."""
    limit = {"unit": "day", "requests_per_unit": 10}
    each = [{"key": "k", "value": "v" * count, "rate_limit": limit} for count in (1, 2, 5_000)]
    document = {"domain": "edge", "descriptors": each}

    (problem,) = parse("rules.yaml", json.dumps(document).encode()).problems

    assert problem.message == "value has 5000 characters: 4096 are allowed"


def test_an_unlimited_rule_has_a_bounded_name_too() -> None:
    """Names are shown of each rule."""
    rule = {"key": "k", "rate_limit": {"unlimited": True, "name": "n" * 1_000}}

    (problem,) = from_file(rule).problems

    assert problem.message == "name has 1000 characters: 256 are allowed"


def test_a_domain_is_bounded() -> None:
    """A domain has at most as many characters as a request may ask for."""
    rule = {"key": "k", "rate_limit": {"unit": "day", "requests_per_unit": 10}}
    short, long = [
        parse("rules.yaml", json.dumps({"domain": "d" * count, "descriptors": [rule]}).encode())
        for count in (4_096, 4_097)
    ]

    assert not short.problems
    (problem,) = long.problems
    assert problem.message == "domain has 4097 characters: 4096 are allowed"
