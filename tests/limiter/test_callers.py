"""Callers that are over, near or busy: what is noted of them beside decisions."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ratelimit_service.limiter.callers import MOST_CALLERS, MOST_RULES, RuleCallers, TopCallers
from ratelimit_service.service import Service
from ratelimit_service.settings import Settings
from ratelimit_service.stores.keys import entries_of
from tests.service.asking import Asking

RULES = """\
domain: edge
descriptors:
  - key: user
    rate_limit: {requests_per_unit: 10, unit: hour}
  - key: path
    rate_limit: {requests_per_unit: 5, unit: hour}
    shadow_mode: true
  - key: both
    rate_limits:
      - {requests_per_unit: 100, unit: minute}
      - {requests_per_unit: 4, unit: hour}
  - key: free
    rate_limit: {unlimited: true}
"""


def callers_of(service: Service) -> TopCallers:
    assert service.callers is not None
    return service.callers


def noted(asking: Asking, path: str) -> RuleCallers:
    """What is known of one rule's callers."""
    (found,) = [
        each for rule, each in callers_of(asking.service).rules.items() if rule.path == path
    ]
    return found


def by_name(counts: dict[bytes, int]) -> dict[str, int]:
    """By the value of the last entry."""
    found = {}
    for key, times in counts.items():
        entries = entries_of(key, "edge")
        assert entries is not None
        found[entries[-1][1]] = times
    return found


@pytest.fixture
def asking(tmp_path: Path) -> Asking:
    return Asking(tmp_path, RULES)


async def test_every_hit_over_or_near_is_noted(asking: Asking) -> None:
    """While there are few, who was over, near or asked at all is known hit by hit."""
    for _ in range(13):
        await asking.ask("user=ann")
    for _ in range(9):
        await asking.ask("user=bob")
    await asking.ask("user=cy", hits=3)

    found = noted(asking, "user")

    assert by_name(found.over.counts) == {"ann": 3}
    assert by_name(found.near.counts) == {"ann": 2, "bob": 1}
    assert by_name(found.hits.counts) == {"ann": 13, "bob": 9, "cy": 3}
    assert found.over.error == found.near.error == found.hits.error == 0
    seen = {key.decode(): each for key, each in found.notes.items()}
    (ann,) = [each for key, each in seen.items() if "ann" in key]
    (bob,) = [each for key, each in seen.items() if "bob" in key]
    assert (ann.capacity, ann.remaining) == (10, 0)
    assert (bob.capacity, bob.remaining) == (10, 1)


async def test_shadows_and_second_limits_are_noted(asking: Asking) -> None:
    """Who is over in shadow mode is over; of several limits the one that speaks is noted."""
    await asking.ask("path=/a", hits=6)
    await asking.ask("both=x", "free=y", hits=5)

    assert by_name(noted(asking, "path").over.counts) == {"/a": 6}
    found = noted(asking, "both")
    assert by_name(found.over.counts) == {"x": 5}
    assert [each.capacity for each in found.notes.values()] == [4]
    assert len(callers_of(asking.service).rules) == 2


async def test_long_names_are_known_by_a_request(asking: Asking) -> None:
    """Where the key of a counter is a digest, a request that has charged it is kept."""
    long = "n" * 200
    for _ in range(11):
        await asking.ask(f"user={long}")

    (key,) = noted(asking, "user").over.counts
    assert entries_of(key, "edge") is None
    body, place = callers_of(asking.service).bodies[key]
    assert long.encode() in body
    assert place == 0
    assert not callers_of(asking.service).unnamed


async def test_sample_stands_for_those_passed_over(asking: Asking) -> None:
    """Beyond some thousands only a part is looked at, and stands for the others."""
    random.seed(1)
    for _ in range(40):
        await asking.ask(*["user=ann"] * 200)  # denials, 8,000 of them

    found = noted(asking, "user")
    ((_, over),) = found.over.counts.items()
    assert 6_000 < over < 10_000


async def test_near_outcomes_are_sampled_one_by_one(tmp_path: Path) -> None:
    """Of requests with many descriptors that are near, all are noted at first, then a part."""
    random.seed(2)
    asking = Asking(
        tmp_path, RULES.replace("10", "100000"), settings=Settings(near_limit_ratio=0.0)
    )
    for _ in range(10):
        await asking.ask("user=ann", "user=bob", "user=ann")
    found = noted(asking, "user")
    assert by_name(found.near.counts) == {"ann": 20, "bob": 10}

    for _ in range(40):
        await asking.ask(*["user=ann", "user=bob"] * 100)

    near = by_name(found.near.counts)
    assert 2_500 < near["ann"] < 5_500
    assert 2_500 < near["bob"] < 5_500


async def test_memory_is_bounded(tmp_path: Path) -> None:
    """However many rules and callers there are, so many are held, and all others are counted."""
    rules = "".join(
        f"  - key: k{number}\n    rate_limit: {{requests_per_unit: 0, unit: hour}}\n"
        for number in range(MOST_RULES + 8)
    )
    asking = Asking(tmp_path, f"domain: edge\ndescriptors:\n{rules}")
    callers = callers_of(asking.service)
    for caller in range(3 * MOST_CALLERS):
        await asking.ask(f"k0={caller}")
    assert len(noted(asking, "k0").over.counts) <= 2 * MOST_CALLERS
    for number in range(MOST_RULES + 8):
        await asking.ask(*[f"k{number}={caller}" for caller in range(3)])

    held = callers.rules.values()
    assert len(held) == MOST_RULES
    assert callers.left_out > 0
    for each in held:
        each.over.purge()
        assert each.over.most * MOST_RULES <= MOST_CALLERS * MOST_RULES // 8
        assert len(each.over.counts) <= each.over.most

    callers.clear()
    await asking.ask("k515=x")
    assert [rule.path for rule in callers.rules] == ["k515"]
    assert callers.left_out == 0


async def test_none_are_kept_if_not_wanted(tmp_path: Path) -> None:
    """With --no-callers nothing is noted."""
    asking = Asking(tmp_path, RULES, settings=Settings(no_callers=True))
    await asking.ask("user=ann", hits=11)
    assert asking.service.callers is None
