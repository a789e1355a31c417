"""Callers that are over, near or busy: what is noted of them beside decisions."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ratelimit_service import wire
from ratelimit_service.limiter import tally_sample
from ratelimit_service.limiter.callers import MOST_CALLERS, MOST_RULES, RuleCallers, TopCallers
from ratelimit_service.model import Request
from ratelimit_service.service import Service
from ratelimit_service.settings import Settings
from ratelimit_service.stores.keys import entries_of
from tests.service.asking import Asking, descriptor

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
    tally_sample(service.callers)
    return service.callers


def noted(asking: Asking, path: str) -> RuleCallers:
    """What is known of one rule's callers."""
    (callers,) = [
        each for rule, each in callers_of(asking.service).rules.items() if rule.path == path
    ]
    return callers


def by_name(counts: dict[bytes, int]) -> dict[str, int]:
    """By the value of the last entry."""
    counted = {}
    for key, times in counts.items():
        entries = entries_of(key, "edge")
        assert entries is not None
        counted[entries[-1][1]] = times
    return counted


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

    callers = noted(asking, "user")

    assert by_name(callers.over.counts) == {"ann": 3}
    assert by_name(callers.near.counts) == {"ann": 2, "bob": 1}
    assert by_name(callers.hits.counts) == {"ann": 13, "bob": 9, "cy": 3}
    assert callers.over.error == callers.near.error == callers.hits.error == 0
    standings = {key.decode(): each for key, each in callers.notes.items()}
    (ann,) = [each for key, each in standings.items() if "ann" in key]
    (bob,) = [each for key, each in standings.items() if "bob" in key]
    assert (ann.capacity, ann.remaining) == (10, 0)
    assert (bob.capacity, bob.remaining) == (10, 1)


async def test_who_only_looks_is_not_listed(asking: Asking) -> None:
    """A caller that asks with no hits is not busy."""
    await asking.ask(descriptor("user=ann", addend=0))
    await asking.ask("user=bob")

    assert by_name(noted(asking, "user").hits.counts) == {"bob": 1}


async def test_shadows_and_second_limits_are_noted(asking: Asking) -> None:
    """Who is over in shadow mode is over; of several limits the one that speaks is noted."""
    await asking.ask("path=/a", hits=6)
    await asking.ask("both=x", "free=y", hits=5)

    assert by_name(noted(asking, "path").over.counts) == {"/a": 6}
    callers = noted(asking, "both")
    assert by_name(callers.over.counts) == {"x": 5}
    assert [each.capacity for each in callers.notes.values()] == [4]
    assert len(callers_of(asking.service).rules) == 2


async def test_long_names_are_known_by_a_request(asking: Asking) -> None:
    """Where the key of a counter is a digest, a request that has charged it is kept."""
    long = "n" * 200
    for _ in range(11):
        await asking.ask(f"user={long}")

    (key,) = noted(asking, "user").over.counts
    assert entries_of(key, "edge") is None
    body, index = callers_of(asking.service).bodies[key]
    assert long.encode() in body
    assert index == 0
    assert not callers_of(asking.service).unnamed


async def test_long_names_of_one_batch_are_all_known(asking: Asking) -> None:
    """Also of requests that come in a batch with more than are kept for the sample."""
    bodies = [
        wire.encode_request(Request("edge", (descriptor(f"user={'n' * 200}{number}"),), 11))
        for number in range(48)
    ]
    await asking.service.decide(bodies)

    over = noted(asking, "user").over
    assert len(over.counts) == 48
    assert callers_of(asking.service).bodies.keys() == over.counts.keys()


async def ask_each(asking: Asking, users: list[str], times: int) -> None:
    """Each of them asks so many times, fifty requests of one descriptor in a batch."""
    bodies = [
        wire.encode_request(Request("edge", (descriptor(f"user={user}"),)))
        for _ in range(times)
        for user in users
    ]
    for at in range(0, len(bodies), 50):
        await asking.service.decide(bodies[at : at + 50])


async def test_estimates_are_as_far_off_as_the_documents_say(tmp_path: Path) -> None:
    """Beyond 2,000 outcomes and requests one request of 128 stands for the others.

    A caller with n of these requests is off by the root of 128 n as a standard deviation. Of over
    and near outcomes each is noted at first, and no request twice.
    """
    random.seed(3)
    rules = RULES.replace("10,", "30000,")
    asking = Asking(tmp_path, rules, settings=Settings(near_limit_ratio=0.0))
    await ask_each(asking, ["ann", "bob"], 1_000)
    callers = noted(asking, "user")
    assert (
        by_name(callers.near.counts) == by_name(callers.hits.counts) == {"ann": 1_000, "bob": 1_000}
    )

    await ask_each(asking, ["ann", "bob"], 30_000)
    off = 3 * (128 * 29_000) ** 0.5
    for counts in (callers.near.counts, callers.hits.counts):
        assert by_name(counts) == {
            "ann": pytest.approx(30_000, abs=off),
            "bob": pytest.approx(30_000, abs=off),
        }
    over = by_name(callers.over.counts)  # the last thousand of each
    assert over.keys() <= {"ann", "bob"}
    await ask_each(asking, ["bob"], 30_000)
    assert by_name(callers.over.counts)["bob"] == pytest.approx(31_000, abs=off)


async def test_few_that_are_over_are_all_noted_among_many_requests(tmp_path: Path) -> None:
    """Of many requests that are within their limits only some are looked at; of others each is."""
    rules = RULES.replace("10,", "100000,")
    asking = Asking(tmp_path, rules)
    for _ in range(10):
        await ask_each(asking, ["ann"], 1_000)
        await asking.ask("path=/a", hits=6)

    assert by_name(noted(asking, "path").over.counts) == {"/a": 60}
    assert noted(asking, "user").hits.total != 10_000


async def test_outcomes_cost_nothing_once_enough_were_noted(tmp_path: Path) -> None:
    """Then an outcome that is near or over is looked at only in a request of the sample."""
    rules = RULES.replace("10,", "100000,")
    asking = Asking(tmp_path, rules, settings=Settings(near_limit_ratio=0.0))
    await ask_each(asking, ["ann"], 3_000)
    callers, before = callers_of(asking.service), dict(noted(asking, "user").near.counts)
    callers.until = 10_000

    await ask_each(asking, ["ann"], 5_000)
    assert noted(asking, "user").near.counts == before

    callers.clear()
    await ask_each(asking, ["ann"], 7)
    assert by_name(noted(asking, "user").near.counts) == {"ann": 7}


async def test_large_requests_are_looked_at_whole(tmp_path: Path) -> None:
    """Of requests with many descriptors the first are noted with all that is near or over."""
    rules = RULES.replace("10,", "6000,")
    asking = Asking(tmp_path, rules, settings=Settings(near_limit_ratio=0.0))
    for _ in range(10):
        await asking.ask("user=ann", "user=bob", "user=ann")
    callers = noted(asking, "user")
    assert by_name(callers.near.counts) == {"ann": 20, "bob": 10}

    for _ in range(40):
        await asking.ask(*["user=ann", "user=bob"] * 100)
    for _ in range(20):
        await asking.ask(*["user=cy"] * 200)
    for _ in range(40):
        await asking.ask(*["user=cy"] * 200)

    assert by_name(callers.near.counts) == {"ann": 4_020, "bob": 4_010, "cy": 6_000}


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
