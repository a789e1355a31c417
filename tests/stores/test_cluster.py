"""Redis Cluster: slots that move, nodes that are lost, and requests that need several slots."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path

import pytest

from ratelimit_service import compiled
from ratelimit_service.model import Hit
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.stores import Outcomes
from ratelimit_service.stores.redis import RedisStore, cluster
from ratelimit_service.stores.redis.batch import Background
from ratelimit_service.stores.redis.shard import Shard
from tests.conftest import need
from tests.servers.cluster import RedisCluster, SlotMove
from tests.stores.cases import YEAR, charged
from tests.stores.cases import hit as minutely
from tests.stores.redis_store import started
from tests.waiting import PATIENCE_SECONDS, until


class Fixture:
    """A store over a cluster, with the stats and the health it writes."""

    def __init__(self, cluster: RedisCluster) -> None:
        self.cluster = cluster
        self.stats, self.health = Stats(), Health()
        self.store = RedisStore(cluster.url, 2_000_000, self.stats, self.health)

    async def remaining(self, *hits: Hit) -> list[int | None]:
        (outcomes,) = await charged(self.store, [hits])
        return [outcome and outcome.remaining for outcome in outcomes]

    async def until(self, one: Hit, condition: Callable[[Outcomes], bool]) -> Outcomes:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                (outcomes,) = await charged(self.store, [[one]])
                if condition(outcomes):
                    return outcomes
                await asyncio.sleep(0.02)


def hit(addend: int = 1, *, limit: int = 10, key: str = "a") -> Hit:
    return minutely(addend, limit=limit, key=key, window_us=YEAR)


@pytest.fixture
async def connected(redis_cluster: RedisCluster) -> AsyncIterator[Fixture]:
    redis_cluster.flush()
    fixture = Fixture(redis_cluster)
    await started(fixture.store)
    yield fixture
    await fixture.store.close()


async def test_one_seed_leads_to_all_nodes(connected: Fixture) -> None:
    """Every node is known from the ones that the URL names, and each has its own counters."""
    hits = [hit(key=str(number)) for number in range(30)]

    assert await connected.remaining(*hits) == [9] * 30

    cluster = connected.cluster
    assert {shard.name for shard in connected.store.shards} == {
        f"127.0.0.1:{server.port}" for server in cluster.servers
    }
    for one in hits:
        assert cluster.client(cluster.owner(one.key)).get(one.key) is not None
    assert connected.health.faults == {}


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("16383 h:65535", (16_383, "h", 65_535)),
        ("1 ::1:7", (1, "::1", 7)),
        ("1 :7", (1, "", 7)),
        ("16384 h:1", None),
        ("1 h:0", None),
        ("1 h:65536", None),
        ("9" * 5_000 + " h:1", None),
        ("1 h:" + "9" * 5_000, None),
        ("1", None),
        ("", None),
    ],
)
def test_where_a_slot_has_moved(text: str, target: tuple[int, str, int] | None) -> None:
    """An error names a slot and a place, or it is followed nowhere."""
    assert cluster.moved_to(text) == target


async def test_more_nodes_than_a_cluster_has(
    connected: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that sends calls to ever more places is not followed to all of them."""
    topology = connected.store.topologies[0]
    monkeypatch.setattr(cluster, "_MOST_NODES", len(topology.shards))
    shard = next(iter(topology.shards))
    known = set(topology.shards)

    for port in range(1, 50):
        assert topology.follow(shard, f"MOVED 7 192.0.2.1:{port}") is None
        assert topology.follow(shard, f"ASK 7 192.0.2.1:{port}") is None

    assert set(topology.shards) == known
    assert await connected.remaining(hit()) == [9]


@pytest.mark.skipif(compiled(), reason="its methods cannot be replaced then")
async def test_slots_that_nobody_has(connected: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots can be without a node for a while: who has them next is told what they are owed."""
    topology, one, resynced = connected.store.topologies[0], hit(), list[tuple[str, bytes]]()
    assert isinstance(topology, cluster.ClusterOfNodes)

    def resync(shard: Shard, requests: Sequence[Sequence[Hit]], _: int) -> None:
        resynced.extend((shard.name, each.key) for hits in requests for each in hits)

    monkeypatch.setattr(Shard, "resync", resync)
    old = topology.find(one)[0]
    new = next(shard for shard in topology.shards if shard is not old)
    spans: dict[Shard, list[int]] = {}
    for slot, (shard, _) in enumerate(topology.homes):
        spans.setdefault(shard, []).append(slot)
    ranges = [
        [slots[0], slots[-1], [*_place(shard)]]
        for shard, slots in spans.items()
        if shard is not old
    ]
    old.charge_here([one], old.server.clock.now_us())

    assert topology.learn(ranges, "")
    assert old in topology.shards
    assert topology.learn([*ranges, [spans[old][0], spans[old][-1], [*_place(new)]]], "")
    assert old not in topology.shards
    await until(lambda: bool(resynced))

    assert resynced == [(new.name, one.key)]


def _place(shard: Shard) -> tuple[bytes, int]:
    host, _, port = shard.name.rpartition(":")
    return host.encode(), int(port)


async def test_denied_in_one_slot_counts_in_none(connected: Fixture) -> None:
    """Ten descriptors in as many slots are counted all or none."""
    hits = [hit(key=str(number)) for number in range(9)]

    assert await connected.remaining(*hits, hit(limit=0, key="full")) == [10] * 9 + [0]

    assert await connected.remaining(*hits) == [9] * 9


@pytest.fixture
def moving(redis_cluster: RedisCluster) -> Iterator[SlotMove]:
    """A move of the slot of `hit()`, which is taken back at the end."""
    key = hit().key
    slot, home = redis_cluster.slot(key), redis_cluster.owner(key)
    moving = SlotMove(redis_cluster, slot)
    yield moving
    redis_cluster.flush()
    moving.end()
    back = SlotMove(redis_cluster, slot, home)
    back.begin()
    back.end()


async def test_slot_that_moves_loses_nothing(connected: Fixture, moving: SlotMove) -> None:
    """Before, while and after a slot moves, with its key here or there, every hit is counted."""
    one = hit()
    found = await connected.remaining(one)

    moving.begin()
    found += await connected.remaining(one)  # the key is still in the old node
    moving.move(one.key)
    found += await connected.remaining(one)  # ASK
    moving.end()
    found += await connected.remaining(one)  # MOVED
    found += await connected.remaining(one)

    assert found == [9, 8, 7, 6, 5]
    assert connected.stats.store_errors == {}


async def test_keys_apart_while_a_slot_moves(connected: Fixture, moving: SlotMove) -> None:
    """Of a request with one key here and one there the answer waits until they are together."""
    one = hit()
    other = one._replace(key=one.key + b"b")
    await connected.remaining(one, other)
    connected.cluster.forget_errors()
    moving.begin()
    moving.move(one.key)
    asked = asyncio.create_task(connected.remaining(one, other))
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not connected.cluster.said("TRYAGAIN"):
            await asyncio.sleep(0)
    assert not asked.done()

    moving.move(other.key)

    found = await asked
    moving.end()
    found += await connected.remaining(one, other)
    assert found == [8, 8, 7, 7]


def test_requests_are_sent_on_as_often_as_a_slot_needs_to_move() -> None:
    """Thousands of times to another node, a request is still known, and its batch hears of it."""
    hits = [[hit()._replace(key=b"%d" % number)] for number in range(3)]
    heard: list[Outcomes | None] = []
    batch = Background(hits, heard.append)
    sent_on = cluster.Redirected(batch, [0, 2], 0)
    for _ in range(5_000):
        sent_on = cluster.Redirected(sent_on, [len(sent_on.requests) - 1], 0)

    assert sent_on.requests == [hits[2]]
    assert not sent_on.finished
    sent_on.answered([0], iter([None]), 0, False)
    assert heard == [[None]]


@pytest.fixture
def replicated(tmp_path: Path) -> Iterator[RedisCluster]:
    need("redis-server", "sudo apt install redis-server")
    cluster = RedisCluster(tmp_path, replicas=3)
    cluster.start()
    yield cluster
    cluster.kill()


async def test_lost_node_is_replaced_by_its_replica(replicated: RedisCluster) -> None:
    """When a master dies its replica takes over its counters, and everything is well again."""
    fixture = Fixture(replicated)
    await started(fixture.store)
    one = hit(limit=1_000)
    await fixture.remaining(one)
    number = replicated.owner(one.key)
    with replicated.client(number) as master:
        master.set(one.key + b"later", 1)  # WAIT is for what this client, or one before, wrote
        assert master.wait(1, 5_000) == 1

    replicated.lose(number)

    outcomes = await fixture.until(one, lambda outcomes: outcomes != [None])
    assert outcomes[0] is not None
    assert outcomes[0].remaining == 998
    async with asyncio.timeout(PATIENCE_SECONDS):
        while fixture.health.faults:
            await fixture.remaining(one)
            await asyncio.sleep(0.02)
    await fixture.store.close()
