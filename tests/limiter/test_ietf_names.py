"""Limits of equal names are told apart in the headers of the IETF's draft."""

from __future__ import annotations

from pathlib import Path

from tests.service.asking import Asking

RULES = """
domain: edge
descriptors:
- {key: a, answer: {headers: ietf}, rate_limit: {unit: day, requests_per_unit: 9, name: x}}
- {key: b, answer: {headers: ietf}, rate_limit: {unit: day, requests_per_unit: 9, name: x-2}}
"""


async def test_equal_names_have_numbers(tmp_path: Path) -> None:
    """The first has the name itself, others the next number that no name before has."""
    asking = Asking(tmp_path, RULES)

    decision = await asking.ask("a=1", "b=1", "a=2", "b=2", "a=3", "a=4")

    policy = next(each for each in decision.response_headers if each.key == "RateLimit-Policy")
    names = [item.partition(";")[0].strip('"') for item in policy.value.split(", ")]
    assert names == ["x", "x-2", "x-3", "x-2-2", "x-4", "x-5"]


async def test_hundreds_of_equal_names(tmp_path: Path) -> None:
    """Each descriptor of a large request has an item of its own."""
    asking = Asking(tmp_path, RULES)

    decision = await asking.ask(*(f"a={number}" for number in range(250)))

    policy = next(each for each in decision.response_headers if each.key == "RateLimit-Policy")
    names = [item.partition(";")[0].strip('"') for item in policy.value.split(", ")]
    assert names == ["x", *(f"x-{number}" for number in range(2, 251))]
