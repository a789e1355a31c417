"""Random walks over every store, step by step against the model of the documents.

`MACHINE_STEPS` is how many steps each store walks, `MACHINE_SEED` where chance begins. A walk that
fails is made shorter, which takes minutes: where CI is set only with `MACHINE_SHRINK=1`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase
from hypothesis.stateful import (
    run_state_machine_as_test,
)

from tests.machine.answers import Asked
from tests.machine.conftest import WALKED
from tests.machine.crowds import CrowdedCluster, CrowdedRedis, CrowdedRing, CrowdMachine
from tests.machine.in_redis import (
    Cached,
    InCluster,
    InRedis,
    InRing,
)
from tests.machine.losing import Failing, LosingNodes, LosingShards
from tests.machine.machine import Machine
from tests.machine.machines import (
    CachedMachine,
    FailingReservingMachine,
    FullMachine,
    LosingMachine,
)
from tests.machine.meaning import Override, Rule, Settings
from tests.machine.reservations import ReservingMachine
from tests.machine.terms import SECOND
from tests.machine.world import FullMemory, Memory, World
from tests.servers.cluster import SharedCluster
from tests.servers.redis import SharedRedis

pytestmark = pytest.mark.timeout(0)

STEPS = int(os.environ.get("MACHINE_STEPS", "400"))
SEED = int(os.environ.get("MACHINE_SEED", "1"))
SHRINK = os.environ.get("MACHINE_SHRINK", "0" if os.environ.get("CI") else "1") == "1"
STEPS_A_WALK = 50


def run(world: World, machine: type[Machine] = Machine) -> None:
    """Walks until `STEPS` steps have done something and were held against the model."""
    seed = SEED
    try:
        while world.steps < STEPS:
            walk_on(world, machine, seed, STEPS - world.steps)
            assert world.stalls <= STEPS // 10 + 10, "the machine is too busy"
            seed += 1_000_000
    except Exception as error:
        again = f"MACHINE_SEED={SEED} MACHINE_STEPS={STEPS} make test ARGS=tests/machine"
        error.add_note(f"shorter, in some minutes: MACHINE_SHRINK=1 {again}")
        raise
    finally:
        WALKED.append(world.walked)


def walk_on(world: World, machine: type[Machine], seed: int, steps: int) -> None:
    """Walks at most so many steps: those that do nothing, and those cut off by a stall, count."""

    @hypothesis.seed(seed)
    class Walk(machine):  # type: ignore[valid-type, misc]
        pass

    Walk.world = world
    run_state_machine_as_test(
        Walk,
        settings=hypothesis.settings(
            # The first one is always the simplest, which does nothing.
            max_examples=1 - (-steps // STEPS_A_WALK),
            stateful_step_count=STEPS_A_WALK,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate] + [Phase.shrink] * SHRINK,
            print_blob=False,
            report_multiple_bugs=False,
        ),
    )


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def test_memory(loop: asyncio.AbstractEventLoop) -> None:
    """In memory every answer of a walk is the model's."""
    run(Memory(loop), ReservingMachine)


def test_full_memory(loop: asyncio.AbstractEventLoop) -> None:
    """A full memory forgets as many counters as it tells, and of all others nothing."""
    run(FullMemory(loop), FullMachine)


def test_redis(loop: asyncio.AbstractEventLoop, redis_server: SharedRedis) -> None:
    """In one Redis, which two processes share, every answer of a walk is the model's."""
    with closing(InRedis(loop, redis_server.url, [redis_server.url])) as world:
        run(world, ReservingMachine)


def test_ring(loop: asyncio.AbstractEventLoop, redis_server: SharedRedis, ring_url: str) -> None:
    """In a ring, which two processes share, every answer of a walk is the model's."""
    shards = [redis_server.url.removesuffix("0") + str(number) for number in range(3)]
    with closing(InRing(loop, ring_url, shards)) as world:
        run(world, ReservingMachine)


def test_local_cache(
    loop: asyncio.AbstractEventLoop, redis_server: SharedRedis, ring_url: str
) -> None:
    """Processes that remember what is over deny nothing for longer than the documents say."""
    shards = [redis_server.url.removesuffix("0") + str(number) for number in range(3)]
    with closing(Cached(loop, ring_url, shards)) as world:
        run(world, CachedMachine)


def test_known_denial_beside_what_asks_nothing(
    loop: asyncio.AbstractEventLoop, redis_server: SharedRedis, ring_url: str
) -> None:
    """What is known to be over denies beside descriptors that have nothing to ask."""
    never = {"anchor": "first_hit", "unit": "minute", "requests_per_unit": 0}
    rules: list[Rule] = [
        {"key": "over", "rate_limit": {**never, "replaces": [{"name": "replaced"}]}},
        {"key": "shadow", "shadow_mode": True, "rate_limit": {**never, "name": "replaced"}},
        {"key": "quota", "quota_mode": True, "rate_limit": {"unlimited": True}},
    ]
    over, shadow, quota = [Asked(((rule["key"], "a"),), 1) for rule in rules]
    refund = Asked((("no rule", "a"),), 100, negative=True)
    shards = [redis_server.url.removesuffix("0") + str(number) for number in range(3)]
    with closing(Cached(loop, ring_url, shards)) as world:
        walk = CachedMachine()
        walk.world = world
        walk.begin(Settings(), "local", rules)
        for asked in ([over], [refund, over], [shadow, over], [quota, over]):
            walk.decide([(asked, 0)], 0)
        assert world.cached == 3


def test_known_denial_beside_several_hits_on_one_key(
    loop: asyncio.AbstractEventLoop, redis_server: SharedRedis, ring_url: str
) -> None:
    """Of a request with several hits on one key a process learns nothing: it knows what it knew."""
    rules: list[Rule] = [{"key": "r0", "rate_limit": {"unit": "second", "requests_per_unit": 1}}]
    over = Asked((("r0", "a"),), 1)
    shards = [redis_server.url.removesuffix("0") + str(number) for number in range(3)]
    with closing(Cached(loop, ring_url, shards)) as world:
        walk = CachedMachine()
        walk.world = world
        walk.begin(Settings(), "local", rules)
        walk.set_clock(walk.now + SECOND // 2)
        for _ in range(2):
            walk.decide([([over], 0)], 0)
        walk.set_clock(walk.now - SECOND // 3)
        for asked in ([over, over], [over]):
            walk.decide([(asked, 0)], 0)
        assert world.cached == 1


def test_one_bucket_by_two_rates(
    loop: asyncio.AbstractEventLoop, redis_server: SharedRedis, ring_url: str
) -> None:
    """What has leaked from a bucket where a charge was given back stays so for another rate.

    "What has leaked stays so, also if the rate changes afterwards": an override changes it for the
    descriptor itself, but not for the one that gives back a lease.
    """
    bucket = {"algorithm": "token_bucket", "unit": "minute", "requests_per_unit": 5}
    leases = {"algorithm": "concurrency", "unit": "second", "requests_per_unit": 100}
    rules: list[Rule] = [{"key": "r0", "rate_limits": [bucket, leases]}]
    one, many = Asked((("r0", "a"),), 1), Asked((("r0", "b"),), 40)
    lease = Asked((("r0", "a"), ("lease", "00")), 1, negative=True)
    shards = [redis_server.url.removesuffix("0") + str(number) for number in range(3)]
    with closing(InRing(loop, ring_url, shards)) as world:
        walk = Machine()
        walk.world = world
        walk.begin(Settings(), "local", rules)
        override = Override("limit", (("r0", "a"),), 20, 1)
        walk.model.overrides.append(override)
        world.override(override)
        walk.decide([([one], 0)], 0)
        walk.set_clock(walk.now + 2 * SECOND)
        for asked in ([one, many], [one, many, lease], [lease]):
            walk.decide([(asked, 0)], 0)


def test_bucket_given_back_by_a_lowered_rate(
    loop: asyncio.AbstractEventLoop, redis_server: SharedRedis, ring_url: str
) -> None:
    """A bucket from which a charge was given back starts as new by the rate of that moment.

    "The bucket was used then": by the old rate it would be as new after a day, by the new one not.
    """
    bucket = {"algorithm": "leaky_bucket", "unit": "day", "requests_per_unit": 5, "burst": 10}
    lowered = {"key": "r0", "rate_limit": {**bucket, "requests_per_unit": 3}}
    one, many = Asked((("r0", "a"),), 5), Asked((("r0", "b"),), 40)
    shards = [redis_server.url.removesuffix("0") + str(number) for number in range(3)]
    with closing(InRing(loop, ring_url, shards)) as world:
        walk = Machine()
        walk.world = world
        walk.begin(Settings(), "local", [{"key": "r0", "rate_limit": bucket}])
        walk.decide([([one], 0)], 0)
        walk.load([lowered])
        walk.decide([([one, many], 0)], 0)
        walk.set_clock(walk.now + 32 * 3_600 * SECOND)
        (told,) = world.run(world.processes[0].decide([([one._replace(addend=0)], 0)]))
        assert told.answer.counted[0].remaining == 9, "5, less 4 in a day and a third"
        walk.decide([([one], 0)], 0)


def test_cluster(loop: asyncio.AbstractEventLoop, redis_cluster: SharedCluster) -> None:
    """In a cluster, which two processes share, every answer of a walk is the model's."""
    nodes = [server.url for server in redis_cluster.servers]
    with closing(InCluster(loop, redis_cluster.url, nodes)) as world:
        run(world, ReservingMachine)


def test_lost_and_found(loop: asyncio.AbstractEventLoop, redis_server: SharedRedis) -> None:
    """Processes that lose their Redis answer by policy, and tell it later what they counted."""
    with closing(Failing(loop, redis_server)) as world:
        run(world, FailingReservingMachine)


def test_lost_shards(
    loop: asyncio.AbstractEventLoop, redis_server: SharedRedis, tmp_path: Path
) -> None:
    """What lies in a shard that a process has lost is decided by policy, all else is counted.

    Under `local` each process counts for each shard by itself, and tells it when it is back.
    """
    with closing(LosingShards(loop, redis_server, tmp_path)) as world:
        run(world, LosingMachine)


def test_lost_nodes(loop: asyncio.AbstractEventLoop, redis_cluster: SharedCluster) -> None:
    """So it is with the nodes of a cluster."""
    with closing(LosingNodes(loop, redis_cluster)) as world:
        run(world, LosingMachine)


def test_redis_with_many_under_way(
    loop: asyncio.AbstractEventLoop, redis_server: SharedRedis
) -> None:
    """Of calls that are under way together in one Redis no more is counted than was told."""
    with closing(CrowdedRedis(loop, redis_server)) as world:
        run(world, CrowdMachine)


def test_ring_with_many_under_way(
    loop: asyncio.AbstractEventLoop, redis_server: SharedRedis, tmp_path: Path
) -> None:
    """So it is in a ring."""
    with closing(CrowdedRing(loop, redis_server, tmp_path)) as world:
        run(world, CrowdMachine)


def test_cluster_with_many_under_way(
    loop: asyncio.AbstractEventLoop, redis_cluster: SharedCluster
) -> None:
    """So it is in a cluster, also while slots are on their way."""
    with closing(CrowdedCluster(loop, redis_cluster)) as world:
        run(world, CrowdMachine)
