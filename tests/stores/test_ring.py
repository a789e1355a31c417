"""What a request comes to on a ring: counters on several shards, and shards that fail.

It is long because each shard can fail at each step of a request, and every step is tried here.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import redis

from ratelimit_service import compiled
from ratelimit_service.algorithms import ALGORITHMS
from ratelimit_service.model import Anchor, CounterForm, CounterSpec, FailurePolicy, Hit, Mode
from ratelimit_service.net import names
from ratelimit_service.net.names import Addresses, Names
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.stores import Outcomes
from ratelimit_service.stores.keys import grant_key, partition_of
from ratelimit_service.stores.local_cache import LocalCache
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.stores.redis import Layout, RedisStore
from ratelimit_service.stores.redis.batch import Background, Batch
from ratelimit_service.stores.redis.ring import owners
from ratelimit_service.stores.redis.shard import Shard
from tests.conftest import need
from tests.servers.redis import RedisServer
from tests.stores.cases import MINUTE, SECOND, YEAR, T, charged, hearing, hit
from tests.stores.redis_store import started
from tests.waiting import PATIENCE_SECONDS, until


class Ring:
    """Two servers of their own, and a store over both; keys are known by where they lie."""

    def __init__(self, directory: Path) -> None:
        self.servers = {}
        for name in ("east", "west"):
            (directory / name).mkdir()
            self.servers[name] = RedisServer(directory / name)
        file = directory / "shards.yaml"
        file.write_text(
            "shards:\n"
            + "".join(f"- {{name: {n}, store: '{s.url}'}}\n" for n, s in self.servers.items())
        )
        self.url = f"file:{file}"
        self.stats, self.health = Stats(), Health()
        self._owners = owners(dict.fromkeys(self.servers, 1))

    def store(self, timeout_us: int = 5_000_000) -> RedisStore:
        return RedisStore(self.url, timeout_us, self.stats, self.health)

    def hit(self, where: str, addend: int = 1, *, limit: int = 5, key: str = "") -> Hit:
        """A hit on a counter that lies there."""
        for number in range(1_000):
            one = hit(addend, key=f"{key}{number}", limit=limit, window_us=YEAR)
            if self._owners[partition_of(one.key)] == where:
                return one
        raise AssertionError(where)

    def count(self, one: Hit) -> int:
        """What the counter holds."""
        for server in self.servers.values():
            state = redis.Redis.from_url(server.url).get(one.key)
            if isinstance(state, bytes):
                return int(state) & 0xFFFFFFFF
        return 0


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[Ring]:
    need("redis-server", "sudo apt install redis-server")
    ring = Ring(tmp_path)
    for server in ring.servers.values():
        server.start()
    yield ring
    for server in ring.servers.values():
        server.kill()


@pytest.fixture
async def store(ring: Ring) -> AsyncIterator[RedisStore]:
    store = ring.store()
    await started(store)
    yield store
    await store.close()


async def test_denied_on_one_shard_counts_on_none(ring: Ring, store: RedisStore) -> None:
    """What one shard has counted is given back when another denies the request."""
    east, west = ring.hit("east", 3), ring.hit("west", 4)

    (first,) = await charged(store, [[east, west]])
    (second,) = await charged(store, [[east._replace(addend=1), west]])

    assert [outcome.charged for outcome in first if outcome] == [3, 4]
    assert [(o.over, o.remaining, o.charged) for o in second if o] == [(False, 2, 0), (True, 1, 0)]
    assert (ring.count(east), ring.count(west)) == (3, 4)
    assert ring.stats.given_back == 1


async def test_grants_are_charged_with_their_limits_or_not_at_all(
    ring: Ring, store: RedisStore
) -> None:
    """What a grant was charged on one shard is given back when another shard denies."""
    east, west = ring.hit("east", 3), ring.hit("west", 4)._replace(joined=True)
    grants = [one._replace(key=grant_key(one.key, "g"), mode=Mode.GRANT) for one in (east, west)]
    requests = [[grants[0], east, grants[1], west]] * 3

    first, second, third = [(await charged(store, [each]))[0] for each in requests]

    assert [outcome.charged for outcome in first if outcome] == [3, 0, 4, 0]
    assert [outcome.charged for outcome in second if outcome] == [0, 3, 0, 4]
    assert [(o.over, o.charged) for o in third if o] == [(False, 0), (True, 0)] * 2
    (alone,) = await charged(store, [[grants[0]._replace(addend=2), east._replace(addend=2), west]])
    assert [(o.over, o.remaining, o.charged) for o in alone if o] == [
        (False, 2, 0),
        (False, 2, 0),
        (True, 1, 0),
    ]


async def test_each_request_of_a_charge_is_settled_by_itself(ring: Ring, store: RedisStore) -> None:
    """Requests in several shards pass beside some that are denied, in either or in one shard."""
    one, two, three = (ring.hit("east", key=key) for key in ("one", "two", "three"))
    west = ring.hit("west", limit=9)
    full, also_full = ring.hit("west", limit=0, key="full"), ring.hit("east", limit=0, key="full")
    requests = [
        [one, west],
        [two, full],
        [one, west, three],
        [full],
        [also_full, west],
        [three, two],
        [west, one],
    ]

    found = await charged(store, requests)

    assert [
        [outcome and (outcome.over, outcome.charged) for outcome in each] for each in found
    ] == [
        [(False, 1), (False, 1)],
        [(False, 0), (True, 0)],
        [(False, 1), (False, 1), (False, 1)],
        [(True, 0)],
        [(True, 0), (False, 0)],
        [(False, 1), (False, 1)],
        [(False, 1), (False, 1)],
    ]
    assert [ring.count(each) for each in (one, two, three, west)] == [3, 1, 2, 3]
    assert ring.count(full) == ring.count(also_full) == 0
    assert ring.stats.given_back == 2


@pytest.mark.parametrize("count_denied", [(True, True), (False, True), (True, False)], ids=str)
async def test_hits_on_one_counter_of_a_denied_request_are_told_what_all_leave(
    ring: Ring, store: RedisStore, count_denied: tuple[bool, bool]
) -> None:
    """What is left is what is left after the request, also to the first of several hits."""
    east = ring.hit("east")
    hits = [east._replace(count_denied=each) for each in count_denied]

    (outcomes,) = await charged(store, [[*hits, ring.hit("west", limit=0)]])

    counted = sum(count_denied)
    assert [(o.over, o.remaining, o.charged) for o in outcomes[:2] if o] == [
        (False, 5 - counted, each) for each in count_denied
    ]
    assert ring.count(east) == counted


@pytest.mark.parametrize("count_denied", [(True, False), (False, True), (False, False)], ids=str)
async def test_places_of_a_denied_request_are_given_back_to_a_queue(
    ring: Ring, count_denied: tuple[bool, bool]
) -> None:
    """Also if another of its hits came behind, and counts though it is denied."""
    store = RedisStore(ring.url, 5_000_000, ring.stats, ring.health, lambda: T)
    await started(store)
    queue = CounterSpec(ALGORITHMS["leaky_bucket"], 5, MINUTE, 11, 0, CounterForm(queue=True))
    east = ring.hit("east")._replace(spec=queue)
    hits = [
        east._replace(addend=1, count_denied=count_denied[0]),
        east._replace(addend=2, count_denied=count_denied[1]),
    ]

    (outcomes,) = await charged(store, [[*hits, ring.hit("west", limit=0)]])
    left = await _left(store, east)
    await store.close()

    counted = [count_denied[0] * 1, count_denied[1] * 2]
    assert [(o.over, o.remaining, o.charged) for o in outcomes[:2] if o] == [
        (False, 5 - sum(counted), each) for each in counted
    ]
    assert left == 5 - sum(counted)


async def test_grants_and_their_limit_are_told_what_there_was_for_their_descriptor(
    ring: Ring, store: RedisStore
) -> None:
    """Each of two descriptors in shadow mode, though the later one takes more of them."""
    east, full = ring.hit("east"), ring.hit("west", limit=0)
    east = east._replace(mode=Mode.SHADOW, count_denied=True)
    full = full._replace(mode=Mode.SHADOW, joined=True)
    grants = [
        each._replace(key=grant_key(each.key, name), mode=Mode.GRANT)
        for each, name in ((ring.hit("east", limit=0), "spent"), (ring.hit("east", limit=2), "two"))
    ]
    small = [each._replace(addend=1) for each in (*grants, east, full)]
    large = [each._replace(addend=3) for each in (*grants, east, full)]

    (outcomes,) = await charged(store, [[*large, *small]])

    told = [(o.over, o.remaining, o.charged) for o in outcomes if o]
    assert told == [
        *[(False, 0, 0), (False, 2, 0), (False, 2, 3), (True, 0, 0)],
        *[(False, 0, 0), (False, 2, 0), (False, 2, 0), (True, 0, 0)],
    ]


@pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_window", "sliding_log"])
async def test_hits_that_passed_are_told_the_reset_though_their_counter_is_over(
    ring: Ring, algorithm: str
) -> None:
    """What passed before its request was denied is told when the counter is as new.

    It is not told how long a hit waits for room, although later hits of the request filled it.
    """
    store = RedisStore(ring.url, 5_000_000, ring.stats, ring.health, lambda: T + 10 * MINUTE)
    await started(store)
    east = ring.hit("east", 3)
    east = east._replace(
        spec=CounterSpec(ALGORITHMS[algorithm], east.spec.limit, 60 * MINUTE),
        count_denied=True,
    )
    more = east._replace(addend=40)

    (outcomes,) = await charged(store, [[east, more, ring.hit("west", limit=0)]])
    await store.close()

    memory = MemoryStore(10, Stats(), Health(), lambda: T + 10 * MINUTE)
    (alone,) = await charged(memory, [[east, more, ring.hit("west", limit=0)]])
    assert outcomes == alone


async def test_a_dead_shard_costs_only_its_own_keys(ring: Ring, store: RedisStore) -> None:
    """Of two shards one is dead: the other counts on, and health and log name the dead one."""
    ring.servers["west"].kill()
    west, east = ring.hit("west"), ring.hit("east")

    while (await charged(store, [[west]]))[0] != [None]:
        pass
    (outcomes,) = await charged(store, [[east]])

    assert outcomes[0] is not None
    assert set(ring.health.faults) == {"store west"}


async def test_a_name_that_nobody_resolves_costs_only_its_own_keys(own_redis: RedisServer) -> None:
    """However long the name of one shard is looked up, another is connected to each time anew."""
    asked: Counter[str] = Counter()
    answers = threading.Event()

    def look_up(host: str, *place: int, **kind: int) -> Addresses:
        asked[host] += 1
        if host == "slow.example":
            answers.wait()
        return [*socket.getaddrinfo(host, *place, **kind)]

    # The store's own resolver is shared by all of this process.
    names._SHARED[:] = [Names(look_up)]
    url = f"redis+ring://slow.example:6379,localhost:{own_redis.port}"
    store = RedisStore(url, 5_000_000, Stats(), Health())
    await store.start()
    slow, well = store.shards
    for _ in range(8):
        await until(lambda: well.available)
        before = asked["localhost"]
        redis.Redis.from_url(own_redis.url).client_kill_filter(_type="normal")
        async with asyncio.timeout(PATIENCE_SECONDS):
            while asked["localhost"] == before:  # it may be back before anybody looks
                await asyncio.sleep(0.001)

    assert not slow.available
    assert asked["slow.example"] == 1
    assert asked["localhost"] >= 8
    answers.set()
    await store.close()


@pytest.mark.parametrize(
    ("policy", "counted"),
    [(FailurePolicy.OPEN, 1), (FailurePolicy.CLOSED, 0), (FailurePolicy.ERROR, 0)],
)
async def test_policy_decides_for_the_whole_request(
    ring: Ring, store: RedisStore, policy: FailurePolicy, counted: int
) -> None:
    """Where a dead shard's policy denies a request, the others give back what they counted."""
    ring.servers["west"].kill()
    west, east = ring.hit("west")._replace(policy=policy), ring.hit("east")
    while (await charged(store, [[west]]))[0] != [None]:
        pass

    (outcomes,) = await charged(store, [[east, west]])

    assert [outcome and outcome.charged for outcome in outcomes] == [counted, None]
    assert ring.count(east) == counted


async def test_give_backs_are_never_too_late(ring: Ring) -> None:
    """A shard that hangs with something to be given back gives it back when it goes on."""
    store = ring.store(timeout_us=400_000)
    await started(store)
    east, west = ring.hit("east"), ring.hit("west")._replace(policy=FailurePolicy.CLOSED)
    await charged(store, [[east], [west]])
    ring.servers["west"].stop()
    asked = asyncio.create_task(charged(store, [[east, west]]))
    while ring.count(east) < 2:
        await asyncio.sleep(0)
    ring.servers["east"].stop()

    ((_, denied),) = await asked

    assert denied is None
    ring.servers["east"].cont()
    ring.servers["west"].cont()
    await until(lambda: ring.count(east) == 1)
    assert ring.count(west) == 1
    await store.close()


@pytest.mark.parametrize("count_denied", [False, True])
async def test_request_that_is_dropped_on_its_way_counts_nowhere(
    ring: Ring, store: RedisStore, *, count_denied: bool
) -> None:
    """Nothing counts of a request that nobody waits for any more before all of it is sent.

    Not even hits that count though they are denied, since it is not decided at all.
    """
    hits = [ring.hit(where)._replace(count_denied=count_denied) for where in ("east", "west")]
    waited_for = iter([True, False])
    answered: asyncio.Future[list[Outcomes]] = asyncio.get_running_loop().create_future()

    store.charge([hits], hearing(answered.set_result), lambda _: next(waited_for))

    assert await answered == [[]]
    assert [ring.count(one) for one in hits] == [0, 0]


@pytest.mark.parametrize("addend", [3, 9], ids=["could pass later", "never passes"])
@pytest.mark.parametrize(
    "spec",
    [
        CounterSpec(ALGORITHMS["fixed_window"], 5, MINUTE),
        CounterSpec(
            ALGORITHMS["fixed_window"], 5, MINUTE, form=CounterForm(anchor=Anchor.FIRST_HIT)
        ),
        CounterSpec(ALGORITHMS["sliding_window"], 5, MINUTE),
        CounterSpec(ALGORITHMS["sliding_window"], 5, MINUTE, form=CounterForm(buckets=6)),
        CounterSpec(ALGORITHMS["sliding_log"], 5, MINUTE),
    ],
    ids=["fixed", "first hit", "two counters", "parts", "log"],
)
async def test_hits_without_room_of_a_dropped_request_count_nowhere(
    ring: Ring, spec: CounterSpec, addend: int
) -> None:
    """Nor do those that have no room, and are told how long to wait for some."""
    now_us = T
    store = RedisStore(ring.url, 5_000_000, ring.stats, ring.health, lambda: now_us)
    await started(store)
    hits = [ring.hit(where, 4)._replace(spec=spec, count_denied=True) for where in ("east", "west")]
    await charged(store, [[one] for one in hits])
    now_us += 11 * SECOND
    waited_for = iter([True, False])
    answered: asyncio.Future[list[Outcomes]] = asyncio.get_running_loop().create_future()
    asking = [one._replace(addend=addend) for one in hits]

    store.charge([asking], hearing(answered.set_result), lambda _: next(waited_for))

    assert await answered == [[]]
    assert [await _left(store, one) for one in hits] == [1, 1]
    await store.close()


async def test_request_that_is_dropped_counts_nothing_here(ring: Ring, store: RedisStore) -> None:
    """So it is with what this process has counted alone, since a shard is away."""
    ring.servers["west"].kill()
    east, west = ring.hit("east"), ring.hit("west")._replace(policy=FailurePolicy.LOCAL)
    while not all(one and one.local for one in (await charged(store, [[west]]))[0]):
        pass
    before = await _left(store, west)
    answered: asyncio.Future[list[Outcomes]] = asyncio.get_running_loop().create_future()
    counting = [east, west._replace(count_denied=True)]

    store.charge([counting], hearing(answered.set_result), lambda _: False)

    assert await answered == [[]]
    assert await _left(store, west) == before
    assert await _left(store, east) == east.spec.limit


async def _left(store: RedisStore, one: Hit) -> int | None:
    """How many hits a counter has room for."""
    ((outcome,),) = await charged(store, [[one._replace(addend=0)]])
    return outcome and outcome.remaining


@pytest.mark.skipif(compiled(), reason="its methods cannot be replaced then")
async def test_give_back_that_nobody_has_answered(
    ring: Ring, store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a denied request nothing is told as counted, also while its hits are being given back."""
    east, full = ring.hit("east"), ring.hit("west", limit=0)
    charge, held = Shard.charge, list[Background]()

    def hold(shard: Shard, batch: Batch) -> None:
        """Lets the request's time be over while its hits are given back."""
        if isinstance(batch, Background):
            held.append(batch)
            # No deadline ends just when hits are given back.
            ((_, _, asked),) = store._waiting
            asyncio.get_running_loop().call_soon(asked.expire, 0)
        else:
            charge(shard, batch)

    monkeypatch.setattr(Shard, "charge", hold)

    (outcomes,) = await charged(store, [[east, full]])
    told = [(one.over, one.remaining, one.charged) for one in outcomes if one]
    held[0].failed([0], "unknown")

    assert told == [(False, 5, 0), (True, 0, 0)]
    assert [(one.over, one.remaining, one.charged) for one in outcomes if one] == told


async def test_late_give_backs_are_told(ring: Ring) -> None:
    """What is given back after its request was answered is told when it is done, not before."""
    store = ring.store(timeout_us=400_000)
    told: list[bytes] = []
    store.tell_of_give_backs(told.extend)
    await started(store)
    east, west = ring.hit("east"), ring.hit("west")._replace(policy=FailurePolicy.CLOSED)
    await charged(store, [[east]])
    ring.servers["west"].stop()
    asked = asyncio.create_task(charged(store, [[east, west]]))
    while ring.count(east) < 2:
        await asyncio.sleep(0)
    ring.servers["east"].stop()

    await asked

    assert told == []
    ring.servers["east"].cont()
    await until(lambda: bool(told))
    assert told == [east.key]
    assert ring.count(east) == 1
    ring.servers["west"].cont()
    await store.close()


async def test_charge_that_is_given_back_denies_no_longer_than_it_lasts(
    ring: Ring, store: RedisStore
) -> None:
    """A key denied only by a charge that is then given back is not known to be over."""
    cache = LocalCache(store, 1 << 20, ring.stats)
    store.tell_of_give_backs(cache.given_back)
    full, roomy = ring.hit("west", limit=0), ring.hit("west", limit=1_000, key="roomy")
    keys = [ring.hit("east", limit=1, key=f"{number}:") for number in range(60)]
    both = [request for key in keys for request in ([key, full], [key, roomy])]
    waits = [asyncio.ensure_future(charged(cache, [request])) for request in both]
    answers = [answer for (answer,) in await asyncio.gather(*waits)]
    given_back = [key for key, answer in zip(keys, answers[1::2], strict=True) if _denied(answer)]
    assert given_back

    after = await charged(cache, [[key] for key in given_back])

    assert [_denied(answer) for answer in after] == [False] * len(given_back)


def _denied(outcomes: Outcomes) -> bool:
    return any(outcome is not None and outcome.over for outcome in outcomes)


async def test_shadow_descriptor_counts_in_all_its_limits_or_in_none(
    ring: Ring, store: RedisStore
) -> None:
    """Limits of one descriptor in shadow mode on two shards: over in one, counted in neither."""
    east = ring.hit("east")._replace(mode=Mode.SHADOW)
    west = ring.hit("west", limit=0)._replace(mode=Mode.SHADOW, joined=True)

    (outcomes,) = await charged(store, [[east, west]])

    assert [(o.over, o.remaining, o.charged) for o in outcomes if o] == [
        (False, 5, 0),
        (True, 0, 0),
    ]
    assert ring.count(east) == 0


@pytest.mark.parametrize(("limit", "denied"), [(0, True), (5, False)])
async def test_quotas_deny_together(
    ring: Ring, store: RedisStore, limit: int, denied: bool
) -> None:
    """Quotas on several shards deny when all are over; a shard does not deny by its own alone."""
    full, other = (
        one._replace(mode=Mode.QUOTA, count_denied=True)
        for one in (ring.hit("east", limit=0), ring.hit("west", limit=limit))
    )
    beside = ring.hit("east", key="beside")

    (outcomes,) = await charged(store, [[full, beside, other]])

    assert outcomes[1] is not None
    assert outcomes[1].charged == (0 if denied else 1)
    assert ring.count(beside) == (0 if denied else 1)


async def test_nothing_is_charged_after_the_deadline(ring: Ring) -> None:
    """A charge that a hung server finds when it goes on changes nothing; refunds do."""
    store = ring.store(timeout_us=400_000)
    await started(store)
    one = ring.hit("east")
    await charged(store, [[one], [one], [one]])
    east = ring.servers["east"]
    east.stop()

    late = await charged(store, [[one], [one._replace(refund=True)]])
    assert late == [[None], [None]]
    east.cont()

    while (await charged(store, [[one._replace(addend=0)]]))[0] == [None]:
        pass
    assert ring.count(one) == 2
    await store.close()


async def test_another_ring_is_noticed(ring: Ring, store: RedisStore) -> None:
    """A process that places counters on another ring is seen by both while it is there."""
    health = Health()
    other = RedisStore(ring.servers["east"].url, 5_000_000, Stats(), health)
    await started(other)

    await until(lambda: "ring" in ring.health.faults and "ring" in health.faults)
    assert "another process counts in east" in ring.health.faults["ring"]

    await other.close()
    await until(lambda: "ring" not in ring.health.faults)


async def test_two_names_of_one_server_are_one_ring(ring: Ring) -> None:
    """Who has one server alone finds all counters there, by whatever name it calls the server."""
    server = ring.servers["east"]
    urls = [server.url, server.url.replace("127.0.0.1", "localhost")]
    assert urls[0] != urls[1]
    health = [Health(), Health()]
    stores = [
        RedisStore(url, 5_000_000, Stats(), each) for url, each in zip(urls, health, strict=True)
    ]
    for store in stores:
        await started(store)

    shards = [shard for store in stores for shard in store.shards]
    await until(lambda: {shard.processes for shard in shards} == {2})

    assert [each.faults for each in health] == [{}, {}]
    for store in stores:
        await store.close()


async def test_counters_of_seconds_lie_apart(ring: Ring) -> None:
    """A window of a second counts in the second store, others in the first, together or not."""
    first, second = ring.servers.values()
    layout = Layout(second_url=second.url)
    store = RedisStore(first.url, 5_000_000, Stats(), Health(), layout=layout)
    await started(store)
    minute, instant = hit(key="m"), hit(key="s", window_us=SECOND)

    await charged(store, [[minute], [instant], [hit(key="both"), instant]])

    clients = [redis.Redis.from_url(server.url) for server in (first, second)]
    assert [client.exists(minute.key, hit(key="both").key) for client in clients] == [2, 0]
    assert [client.exists(instant.key) for client in clients] == [0, 1]
    await store.close()


async def test_shard_removed_from_the_ring(ring: Ring, store: RedisStore) -> None:
    """What lay in a removed shard starts at zero elsewhere, what lay in the others goes on."""
    east, west = ring.hit("east"), ring.hit("west")
    await charged(store, [[east], [west]])
    rest = RedisStore(ring.servers["east"].url, 5_000_000, Stats(), Health())
    await started(rest)

    (outcomes,) = await charged(rest, [[east, west]])

    assert [outcome and outcome.remaining for outcome in outcomes] == [3, 4]
    await rest.close()
