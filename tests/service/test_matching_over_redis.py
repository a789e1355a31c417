"""`when`, `valid_until`, `group` and pools where several processes count in one Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ratelimit_service.model import Code
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.stores.redis import RedisStore
from tests.servers.cluster import SharedCluster
from tests.servers.redis import SharedRedis
from tests.service.asking import Asking
from tests.service.test_times import us
from tests.stores.conftest import Time
from tests.stores.redis_store import started

RULES = """
domain: edge
descriptors:
  - key: office
    rate_limit: {unit: day, requests_per_unit: 5,
      when: {days: [tue], from: "08:00", to: "18:00", time_zone: Europe/Berlin}}
  - {key: user, rate_limit: {unit: year, requests_per_unit: 6}}
  - {key: user, value: "a*", valid_until: 2026-03-03T08:00+01:00,
     rate_limit: {unit: year, requests_per_unit: 3}}
  - {key: ip, group: {ipv4: 24, ipv6: 64}, rate_limit: {unit: year, requests_per_unit: 4}}
  - key: net
    rate_limits:
      - {unit: year, requests_per_unit: 4, group: {ipv6: 64}}
      - {unit: year, requests_per_unit: 6, group: {ipv6: 48}}
  - {key: level, value: high, rate_limit: {unit: year, requests_per_unit: 6, pool: p}}
  - {key: level, rate_limit: {unit: year, requests_per_unit: 6, pool: p, reserve: 50%}}
  - {key: tier, value: high, rate_limit: {unit: year, requests_per_unit: 4, pool: q}}
  - {key: tier, rate_limit: {unit: year, requests_per_unit: 4, pool: q, reserve: 25%}}
"""
EIGHT = us("2026-03-03T08:00")


class Process:
    """A service with a store, a clock and rules of its own."""

    def __init__(self, directory: Path, url: str) -> None:
        self.clock = Time()
        self.clock.now_us = EIGHT
        self.store = RedisStore(url, 10_000_000, Stats(), Health(), self.clock)
        self.asking = Asking(directory, RULES, store=self.store, clock=self.clock)

    async def ask(self, *texts: str) -> str:
        """`+` for each request that passes, and `-` for each that is denied."""
        codes = [(await self.asking.ask(*one.split(";"))).code for one in texts]
        return "".join("+" if code is Code.OK else "-" for code in codes)


Both = tuple[Process, Process]


@pytest.fixture(params=["redis", "ring", "cluster"])
async def both(
    request: pytest.FixtureRequest, redis_server: SharedRedis, ring_url: str, tmp_path: Path
) -> AsyncIterator[Both]:
    url = ring_url if request.param == "ring" else redis_server.url
    if request.param == "cluster":
        cluster: SharedCluster = request.getfixturevalue("redis_cluster")
        cluster.flush()
        url = cluster.url
    redis_server.flush()
    one, other = (Process(tmp_path / name, url) for name in ("one", "other"))
    for each in (one, other):
        await started(each.store)
    yield one, other
    for each in (one, other):
        await each.store.close()


async def test_when(both: Both) -> None:
    """A limit holds from its minute on in each process, by the process's clock, on one counter."""
    one, other = both
    one.clock.now_us = EIGHT - 1
    office = ["office=x"] * 4

    assert (await one.ask(*office), await other.ask(*office[:2])) == ("++++", "++")
    one.clock.now_us = EIGHT
    assert (await one.ask(*office), await other.ask("office=x")) == ("+++-", "-")
    other.clock.now_us = EIGHT - 1  # a clock that steps back
    assert (await other.ask(*office), await one.ask("office=x")) == ("++++", "-")
    one.clock.now_us = other.clock.now_us = us("2026-03-03T18:00")
    assert (await one.ask("office=x"), await other.ask("office=x")) == ("+", "+")


async def test_valid_until(both: Both) -> None:
    """A descriptor ends in its minute in each process; the next one counts the same caller."""
    one, other = both
    one.clock.now_us = other.clock.now_us = EIGHT - 1
    alice = ["user=alice"] * 4

    assert (await one.ask(*alice[:2]), await other.ask(*alice[:2])) == ("++", "+-")
    one.clock.now_us = EIGHT
    # What is counted is alice, so the rule for all users finds what was counted before.
    assert (await one.ask(*alice), await other.ask("user=alice")) == ("+++-", "-")
    one.clock.now_us = EIGHT - 1
    assert await one.ask("user=alice", "user=bob") == "-+"


async def test_groups(both: Both) -> None:
    """Addresses of one network are one caller, whichever process they ask."""
    one, other = both

    assert await one.ask("ip=10.1.2.3", "ip=10.1.2.4", "ip=::ffff:10.1.2.5") == "+++"
    assert await other.ask("ip=10.1.2.6", "ip=10.1.2.7", "ip=10.1.3.7") == "+-+"
    assert await one.ask("ip=10.1.2.3", "ip=10.1.2.0/24") == "-+"
    first, second = "net=2001:db8:1:1::", "net=2001:db8:1:2::"
    assert await one.ask(*[f"{first}{place}" for place in range(3)]) == "+++"
    assert await other.ask(*[f"{first}{place}" for place in range(3)]) == "+--"
    assert await other.ask(*[f"{second}{place}" for place in range(2)]) == "++"
    # The /48 is used up; a denied request charges the /64 nothing.
    assert await one.ask(f"{second}9", "net=2001:db8:2:1::1") == "-+"


async def test_pools(both: Both) -> None:
    """Low priority leaves the reserve in all processes. A request takes of two pools or of none."""
    one, other = both
    low = "level=x;tier=y"

    assert (await one.ask(low, low), await other.ask(low, low)) == ("++", "+-")
    assert await other.ask("tier=y", "tier=high", "tier=high") == "-+-"
    # The pool of levels has room for high priority, but that of tiers has none.
    assert await one.ask("level=high;tier=high") == "-"
    assert await one.ask("level=y", *["level=high"] * 4) == "-+++-"
