"""What a decision by failure policy costs beside a counted one, in functions that are called."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from ratelimit_service import compiled, wire
from ratelimit_service.model import FailurePolicy, Request
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.stores import NEVER
from ratelimit_service.stores.redis import RedisStore
from tests.servers.redis import RedisServer
from tests.service.asking import Asking, descriptor
from tests.stores.redis_store import GENEROUS_US, started
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.skipif(compiled(), reason="functions of Python are counted")

PAST_US = 0
"""A deadline that is over."""

CALLS, TIMES = 64, 5
"""So many calls are a batch, and so many batches are looked at."""

LOCAL_COST = 1.4
"""What a decision by `local` may cost beside a counted one: it is a decision by policy, and a count
in memory besides."""

RULES = """
domain: edge
descriptors:
  - key: tenant
    rate_limit: {{unit: day, requests_per_unit: 9000000, failure_policy: {policy}}}
  - key: user
    rate_limit: {{unit: day, requests_per_unit: 9000000, failure_policy: {policy}}}
"""


async def functions(asking: Asking, deadline_us: int = NEVER) -> int:
    """How many functions are called for a batch of calls that have all been made before."""
    bodies = [
        wire.encode_request(
            Request("edge", (descriptor(f"tenant={number}"), descriptor(f"user={number}")))
        )
        for number in range(CALLS)
    ]
    found = []
    for _ in range(TIMES):
        called = 0

        def count(_: object, event: str, __: object) -> None:
            nonlocal called
            called += event in ("call", "c_call")

        sys.setprofile(count)
        try:
            await asking.service.decide(bodies, deadline_us)
        finally:
            sys.setprofile(None)
        found.append(called)
    return min(found[1:])


@pytest.mark.parametrize("policy", FailurePolicy)
async def test_a_decision_by_policy_costs_no_more_than_a_counted_one(
    tmp_path: Path, own_redis: RedisServer, policy: FailurePolicy
) -> None:
    """Neither if there is no time, nor if the server is gone. So the service is no slower then.

    `local` costs somewhat more, since it counts in this process.
    """
    stats, health = Stats(), Health()
    store = RedisStore(own_redis.url, GENEROUS_US, stats, health)
    await started(store)
    asking = Asking(tmp_path, RULES.format(policy=policy.value), store=store)

    counted = await functions(asking)
    assert not asking.stats.policy_decisions
    without_time = await functions(asking, PAST_US)
    own_redis.kill()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while store.shard_states()[0].address:
            await asyncio.sleep(0)
    gone = await functions(asking)
    each = 1 if policy is FailurePolicy.ERROR else 2  # it ends a request, others a descriptor
    assert asking.stats.policy_decisions == {policy: 2 * TIMES * CALLS * each}
    await store.close()

    bound = LOCAL_COST * counted if policy is FailurePolicy.LOCAL else counted
    assert without_time <= bound
    assert gone <= bound
