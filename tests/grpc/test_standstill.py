"""What is counted under overload and after a standstill, by counted work, not by a clock.

Loop, sockets and clients are those of `benchmarks.overload_stepped`. Time passes with what the
service does: each call that it counts takes so long, and each byte that it reads or writes.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace

import pytest

from benchmarks import flood, load, overload, stepped_loop, stepped_redis
from benchmarks import overload_stepped as stepped
from ratelimit_service import compiled
from ratelimit_service.eventloop import clock
from ratelimit_service.model import Hit
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.stores import NEVER, Done, Settled, Store, Wanted, always, judge
from ratelimit_service.stores.redis import RedisStore
from tests.stores.cases import hit

pytestmark = pytest.mark.skipif(compiled(), reason="its clock cannot be replaced then")

COUNT_US, BYTE_US, IDLE_US = 400.0, 0.1, 100.0
REPLY_SECONDS = 0.002
STOP_AT, BACK_SECONDS, SEEN_SECONDS = 0.3, 1.0, 0.3
STOOD_STILL = 1.6
"""Longer than a server may be silent, and than the time between two beats."""
CONNECTIONS = 4
BEARABLE, TOO_MANY = 1_000, 3_500
"""Calls a second: some that the service can count all of, and more than it can count."""


class Work(stepped_loop.Clock):
    """Time that stands still but for what is spent."""

    def __init__(self) -> None:
        self.ns = 10**15

    def now_ns(self) -> int:
        return self.ns

    def run(self, work: Callable[..., object], *arguments: object) -> None:
        work(*arguments)


class Costly:
    """Counters in memory; to count a call takes time of the service."""

    waits = False
    counters = staticmethod(stepped.in_memory)

    def __init__(self, store: Store) -> None:
        self._store = store

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def wait_us(self, priority: int) -> int:
        return self._store.wait_us(priority)

    def charge(
        self,
        requests: Sequence[Sequence[Hit]],
        done: Done,
        wanted: Wanted = always,
        deadline_us: int = NEVER,
        priority: int = 0,
    ) -> None:
        stepped_loop.CLOCK.spend(COUNT_US * len(requests))
        self._store.charge(requests, done, wanted, deadline_us, priority)


class Slow(Costly):
    """The same behind a way: its replies take time, in which the service does something else."""

    waits = True
    back_at = 0.0
    """Until when it gives no reply."""

    def charge(
        self,
        requests: Sequence[Sequence[Hit]],
        done: Done,
        wanted: Wanted = always,
        deadline_us: int = NEVER,
        priority: int = 0,
    ) -> None:
        now, loop = stepped_loop.CLOCK.seconds(), asyncio.get_running_loop()
        reply, patience = max(REPLY_SECONDS, self.back_at - now), deadline_us / 1e6 - now
        if reply > patience:
            unknown = [judge(hits, [None] * len(hits)) for hits in requests]
            loop.call_later(max(0.0, patience), partial(done, unknown))
        else:
            loop.call_later(reply, partial(super().charge, requests, done, wanted))

    def stand_still(self, seconds: float) -> None:
        self.back_at = stepped_loop.CLOCK.seconds() + seconds


class OnRedis(Costly):
    """Counters in a Redis server; to count a call takes time of the service, and of the server."""

    waits = True
    counters = staticmethod(stepped.on_redis)

    async def start(self) -> None:
        await self._store.start()

    def stand_still(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, stepped_loop.Loop)
        for server in loop.servers:
            server.stand_still(seconds)


class OnRing(OnRedis):
    """The same in three servers; all of them stand still together."""

    counters = staticmethod(stepped.on_ring)


class OnCluster(OnRedis):
    """The same in a cluster."""

    counters = staticmethod(stepped.on_cluster)


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Iterator[Work]:
    """The clock of all that the service does."""
    work = Work()
    system = SimpleNamespace(monotonic_ns=work.now_ns, time_ns=work.now_ns)
    monkeypatch.setattr(clock, "time", system)
    monkeypatch.setattr(select, "epoll", stepped_loop.Epoll)
    monkeypatch.setattr(flood, "time", SimpleNamespace(perf_counter=work.seconds))
    monkeypatch.setattr(stepped_loop, "CLOCK", work)
    monkeypatch.setattr(stepped_loop, "BYTE_US", BYTE_US)
    monkeypatch.setattr(stepped_loop, "IDLE_US", IDLE_US)
    monkeypatch.setattr(stepped, "REQUESTS", 500)
    monkeypatch.setattr(load, "PREPARED", 500)
    monkeypatch.setattr(stepped, "HICCUP_AT", STOP_AT)
    yield work
    asyncio._set_running_loop(None)


@pytest.mark.usefixtures("work")
@pytest.mark.parametrize(
    ("store", "halts", "stop"),
    [
        (Costly, "service", 0.5),
        (Slow, "service", 0.5),
        (Slow, "store", 0.2),
        (OnRedis, "service", 0.5),
        (OnRedis, "store", 0.2),
        (OnRing, "store", 0.2),
        (OnCluster, "store", 0.2),
    ],
)
@pytest.mark.parametrize("rate", [BEARABLE, TOO_MANY])
def test_counting_is_whole_again_within_a_second(
    monkeypatch: pytest.MonkeyPatch, store: type[Costly], halts: str, stop: float, rate: int
) -> None:
    """A second after a standstill as many calls are counted in time as before: all, if it can.

    What comes meanwhile and afterwards goes on to come. Of too many calls, at least 80 % of what
    was counted before.
    """
    made: list[Costly] = []
    all_stats: list[Stats] = []

    def new_store(stats: Stats, health: Health) -> Costly:
        made.append(store(store.counters(stats, health)))
        all_stats.append(stats)
        return made[-1]

    def halt(seconds: float) -> None:
        if halts == "service":
            stepped.stand_still(seconds)
        else:
            (slow,) = made
            assert isinstance(slow, Slow | OnRedis)
            slow.stand_still(seconds)

    monkeypatch.setattr(stepped.CHOSEN, "store", new_store)
    seconds = STOP_AT + stop + BACK_SECONDS + SEEN_SECONDS + flood.SLICE_SECONDS

    world = stepped.flooded(CONNECTIONS, rate, seconds, stop, halt)

    assert not world.lost()
    before = counted(world, 0.0, STOP_AT)
    after = counted(world, STOP_AT + stop + BACK_SECONDS, SEEN_SECONDS)
    if rate == BEARABLE:
        assert before == STOP_AT * rate
        assert after == SEEN_SECONDS * rate
    else:
        assert 0 < before < STOP_AT * rate
        assert after >= 0.8 * before * SEEN_SECONDS / STOP_AT
    if issubclass(store, OnRedis):
        # The server was found sick, and left alone, if it was the one who stood still.
        (stats,) = all_stats
        assert (stats.store_errors["circuit_open"] > 0) == (halts == "store")


@pytest.mark.usefixtures("work")
def test_no_connection_is_lost_because_the_machine_stood_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Service and server stand still together for longer than a server may be silent.

    The server goes on a little later, and answers what was under way.
    """
    made: list[OnRedis] = []

    def new_store(stats: Stats, health: Health) -> OnRedis:
        made.append(OnRedis(stepped.on_redis(stats, health)))
        return made[-1]

    def halt(seconds: float) -> None:
        (store,) = made
        before, after = 0.005, 0.02  # so that calls are under way
        store.stand_still(before + seconds + after)
        asyncio.get_running_loop().call_later(before, stepped.stand_still, seconds)

    monkeypatch.setattr(stepped.CHOSEN, "store", new_store)

    world = stepped.flooded(CONNECTIONS, BEARABLE, STOP_AT + STOOD_STILL + 0.5, STOOD_STILL, halt)

    loop = asyncio.get_running_loop()
    assert isinstance(loop, stepped_loop.Loop)
    assert len(loop.servers) == 1
    assert counted(world, STOP_AT + STOOD_STILL + 0.2, 0.2) == 0.2 * BEARABLE


def counted(world: stepped.World, since: float, seconds: float) -> int:
    """How many calls were counted in time of those that were due then."""
    first = round(since / flood.SLICE_SECONDS)
    slices = range(first, first + round(seconds / flood.SLICE_SECONDS))
    counts = world.tally.counts
    return sum(counts[fate][at] for fate in ("counted", "denied") for at in slices)


@pytest.mark.usefixtures("work")
def test_a_standstill_is_over_once_as_much_is_counted_as_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The benchmark's row says so, also if the service was taken to be able to do more."""
    bearable = 1e6 / COUNT_US
    monkeypatch.setattr(stepped, "HICCUP_AT", overload.HICCUP_AT)
    monkeypatch.setattr(stepped, "capacity", lambda _: 1.2 * bearable)
    monkeypatch.setattr(stepped.CHOSEN, "store", lambda *told: Costly(stepped.in_memory(*told)))

    row = stepped.stopped(CONNECTIONS, 0.1)

    _, connections, stop, before, after, _ = row.split("|")
    assert (connections.strip(), stop.strip()) == (str(CONNECTIONS), "0.1 s")
    assert float(before) < overload.LEAST_COUNTED
    assert float(after.removesuffix(" s ")) <= BACK_SECONDS


MANY, VISIT_US = 20, 150.0
"""Connections, and what each read and each write costs; to count a call costs `COUNT_US`."""


@pytest.mark.usefixtures("work")
@pytest.mark.parametrize("load", [1.5, 4.0])
def test_many_connections_are_counted_under_overload(
    monkeypatch: pytest.MonkeyPatch, load: float
) -> None:
    """Of what a service can do that reads a call at a time, 80 % are counted in time.

    To visit all connections takes a good part of their callers' time. Nine of ten callers hear in
    time what became of their calls.
    """
    in_memory = stepped.in_memory
    monkeypatch.setattr(stepped.CHOSEN, "store", lambda *told: Costly(in_memory(*told)))
    monkeypatch.setattr(stepped_loop, "BYTE_US", 0.0)
    monkeypatch.setattr(stepped_loop, "READ_US", VISIT_US)
    monkeypatch.setattr(stepped_loop, "WRITE_US", VISIT_US)
    monkeypatch.setattr(stepped_loop, "EMPTY_US", VISIT_US / 2)
    bearable = 1e6 / (COUNT_US + 2 * VISIT_US)

    world = stepped.flooded(MANY, load * bearable, 1.1)

    assert not world.lost()
    counts = world.tally.counts
    in_vain = sum(counts[fate][at] for fate in ("cancelled", *flood.LATE) for at in range(5, 10))
    assert counted(world, 0.5, 0.5) >= 0.8 * bearable * 0.5
    assert 10 * in_vain <= sum(counts["offered"][5:10])


HUNDRED, SHORT_VISIT_US, SHORT_COUNT_US = 100, 20.0, 40.0
"""More connections, and less that each read or write and each count costs."""


@pytest.mark.usefixtures("work")
@pytest.mark.parametrize("load", [1.5, 4.0, 10.0])
def test_many_callers_hear_in_time_where_a_store_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, load: float
) -> None:
    """Of what a service can do 80 % are counted in time; to visit all takes half of callers' time.

    Of ten times as many calls as it can count, 70 %.

    Of a hundred callers 98 hear in time what became of their calls, though of some connections more
    is counted in a visit than of others.
    """
    monkeypatch.setattr(stepped.CHOSEN, "store", lambda *told: OnRedis(stepped.on_redis(*told)))
    monkeypatch.setitem(globals(), "COUNT_US", SHORT_COUNT_US)
    monkeypatch.setattr(stepped_loop, "BYTE_US", 0.0)
    monkeypatch.setattr(stepped_loop, "READ_US", SHORT_VISIT_US)
    monkeypatch.setattr(stepped_loop, "WRITE_US", SHORT_VISIT_US)
    monkeypatch.setattr(stepped_loop, "EMPTY_US", SHORT_VISIT_US / 2)
    bearable = 1e6 / (SHORT_COUNT_US + 2 * SHORT_VISIT_US)

    world = stepped.flooded(HUNDRED, load * bearable, 0.7)

    assert not world.lost()
    counts = world.tally.counts
    in_vain = sum(counts[fate][at] for fate in ("cancelled", *flood.LATE) for at in range(3, 6))
    assert counted(world, 0.3, 0.3) >= (0.8 if load < 10 else 0.7) * bearable * 0.3
    assert 50 * in_vain <= sum(counts["offered"][3:6])


SLOW = 6.0
"""So many times longer than usual the server takes, when it is what calls wait for."""


@pytest.mark.usefixtures("work")
@pytest.mark.parametrize("load", [0.5, 2.0, 4.0])
def test_a_slow_server_counts_what_it_can(monkeypatch: pytest.MonkeyPatch, load: float) -> None:
    """Of what a server can count that is slower than the service, 80 % are counted in time.

    What it would answer too late it is not asked: it is refused, or a failure policy decides.
    """
    monkeypatch.setattr(stepped_loop, "BYTE_US", 0.0)
    monkeypatch.setattr(stepped.CHOSEN, "slower", SLOW)
    monkeypatch.setattr(stepped.CHOSEN, "store", stepped.on_redis)
    # In script calls of two milliseconds, each request being two hits.
    each_call = (2_000 / SLOW - stepped_redis.CALL_US) / (2 * stepped_redis.HIT_US)
    bearable = 500 * each_call

    world = stepped.flooded(CONNECTIONS, load * bearable, 0.5)

    assert not world.lost()
    fates = ("offered", "by_policy", "refused")
    offered, by_policy, refused = (sum(world.tally.counts[each][1:4]) for each in fates)
    assert counted(world, 0.1, 0.3) + by_policy + refused == offered
    if load < 1:
        assert not by_policy + refused
    else:
        assert counted(world, 0.1, 0.3) >= 0.8 * bearable * 0.3


NEARLY_AS_SLOW = 20.0
"""So many times longer than usual the server takes: then it counts not much faster than the service
can ask it to."""


@pytest.mark.usefixtures("work")
def test_no_more_is_planned_than_a_server_can_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that would wait in vain behind others are refused before they are planned.

    To plan a call is most of its work. So for ten calls that are counted one at most is planned,
    and decided by policy as the server has not counted it in time.
    """
    monkeypatch.setattr(stepped_loop, "BYTE_US", 0.0)
    monkeypatch.setattr(stepped.CHOSEN, "slower", NEARLY_AS_SLOW)
    monkeypatch.setattr(stepped.CHOSEN, "store", lambda *told: OnRedis(stepped.on_redis(*told)))
    bearable = 1e6 / COUNT_US

    world = stepped.flooded(CONNECTIONS, 2 * bearable, 1.1)

    assert not world.lost()
    assert counted(world, 0.5, 0.5) >= 0.8 * bearable * 0.5
    assert 10 * sum(world.tally.counts["by_policy"][5:10]) <= counted(world, 0.5, 0.5)


QUICK_COUNT_US, PLANNED = 15.0, 0.6
"""What a call costs where a server is hardly faster than the service, and the part before it."""
MOMENT_SECONDS, MOMENTS_SECONDS = 0.004, 0.012
"""For so long a server stands still again and again, and how often."""


class Halting(OnRedis):
    """A Redis server that shares its core with others, so it stands still for moments."""

    def charge(
        self,
        requests: Sequence[Sequence[Hit]],
        done: Done,
        wanted: Wanted = always,
        deadline_us: int = NEVER,
        priority: int = 0,
    ) -> None:
        cost_us = QUICK_COUNT_US * len(requests)

        def answer(settled: list[Settled]) -> None:
            stepped_loop.CLOCK.spend((1 - PLANNED) * cost_us)
            done(settled)

        stepped_loop.CLOCK.spend(PLANNED * cost_us)
        self._store.charge(requests, answer, wanted, deadline_us, priority)

    async def start(self) -> None:
        await super().start()
        self._stand_still_now_and_then()

    def _stand_still_now_and_then(self) -> None:
        self.stand_still(MOMENT_SECONDS)
        loop = asyncio.get_running_loop()
        loop.call_later(MOMENTS_SECONDS, self._stand_still_now_and_then)


@pytest.mark.usefixtures("work")
@pytest.mark.parametrize("load", [2.0, 4.0])
def test_little_is_planned_in_vain_while_a_server_stands_still_for_moments(
    monkeypatch: pytest.MonkeyPatch, load: float
) -> None:
    """Of what a service can do 70 % are counted in time, also if its server halts for moments.

    So no more calls wait for it than can be answered in time all the same. For ten calls that are
    counted at most one is decided by policy.
    """
    monkeypatch.setattr(stepped_loop, "BYTE_US", 0.0)
    monkeypatch.setattr(stepped_loop, "IDLE_US", IDLE_US / 2)
    monkeypatch.setattr(stepped.CHOSEN, "store", lambda *told: Halting(stepped.on_redis(*told)))
    bearable = 1e6 / QUICK_COUNT_US

    world = stepped.flooded(CONNECTIONS, load * bearable, 0.5)

    assert not world.lost()
    assert counted(world, 0.2, 0.2) >= 0.7 * bearable * 0.2
    assert 10 * sum(world.tally.counts["by_policy"][2:4]) <= counted(world, 0.2, 0.2)


LONG_TURN_US = 3_000.0
FULL = 64
"""So many requests of two hits go out in one script call."""


@pytest.mark.usefixtures("work")
def test_more_calls_are_under_way_while_a_server_waits_for_us() -> None:
    """Full calls are added, up to eight, while all have a reply whenever this process looks.

    As soon as the server is what is slow, there are two again, so that others wait less.
    """
    loop = stepped_loop.Loop()
    asyncio._set_running_loop(loop)  # type: ignore[arg-type]
    store = RedisStore("redis://127.0.0.1:1/0", 60_000_000, Stats(), Health())
    loop.complete(store.start())
    (server,) = loop.servers

    def most_under_way(rounds: int, turn_us: float) -> int:
        most = 0
        for _ in range(rounds):
            stepped_loop.CLOCK.spend(turn_us)
            loop.round()
            most = max(most, store.shard_states()[0].under_way)
        return most

    for _ in range(100):
        requests = [[hit(key=f"{number}a"), hit(key=f"{number}b")] for number in range(FULL)]
        store.charge(requests, lambda _: None)
    assert most_under_way(8, 3 * LONG_TURN_US) == 8
    server.slow_down(20.0)
    most_under_way(1_000, IDLE_US)
    assert store.shard_states()[0].waiting
    assert most_under_way(200, IDLE_US) == 2


@pytest.mark.usefixtures("work")
def test_a_call_that_is_not_full_waits_for_two_before_it() -> None:
    """What fits into the next call goes with it, so calls grow."""
    loop = stepped_loop.Loop()
    asyncio._set_running_loop(loop)  # type: ignore[arg-type]
    store = RedisStore("redis://127.0.0.1:1/0", 60_000_000, Stats(), Health())
    loop.complete(store.start())
    loop.servers[0].slow_down(4.0)  # it takes as long as several rounds of the loop

    most = 0
    for number in range(200):
        for part in range(20):  # much less than a call holds
            store.charge([[hit(key=f"{number}-{part}")]], lambda _: None)
            loop.round()
            most = max(most, store.shard_states()[0].under_way)
        stepped_loop.CLOCK.spend(LONG_TURN_US)

    assert most == 2
