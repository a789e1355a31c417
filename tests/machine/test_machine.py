"""Random walks over every store, step by step against the model of the documents.

`MACHINE_STEPS` is how many steps each store walks, `MACHINE_SEED` where chance begins.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ratelimit_service.model import CounterSpec
from tests.machine import walk
from tests.machine.answers import Answer, Asked, Counted, by_policy
from tests.machine.conftest import WALKED
from tests.machine.model import Identity, Model, Rule, Settings
from tests.machine.terms import SECOND
from tests.machine.world import (
    DOMAIN,
    Cached,
    Failing,
    FullMemory,
    InCluster,
    InRedis,
    InRing,
    Memory,
    Told,
    World,
)
from tests.servers.cluster import RedisCluster
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.timeout(0)

STEPS = int(os.environ.get("MACHINE_STEPS", "600"))
SEED = int(os.environ.get("MACHINE_SEED", "1"))
SHRINK = os.environ.get("MACHINE_SHRINK", "1") == "1"
STEPS_A_WALK = 50


class Denial(NamedTuple):
    """What a process was told of a counter that had no room: when, and until when it has none."""

    asked_us: int
    passes_us: int
    spec: CounterSpec


class Machine(RuleBasedStateMachine):
    """A walk over one world."""

    world: World

    @initialize(settings=walk.settings, policy=walk.policies, rules=walk.rules)
    def begin(self, settings: Settings, policy: str, rules: list[Rule]) -> None:
        self.settings, self.policy, self.fresh = settings, policy, 0
        self.idle = True
        """Whether this step has not done anything."""
        self.start(rules)

    def start(self, rules: list[Rule]) -> None:
        """Begins in an empty world."""
        self.world.begin(self.settings, self.policy)
        self.model = Model(DOMAIN, self.settings)
        self.alone: dict[int, Model] = {}
        """What processes count that have lost their store."""
        self.names: dict[bytes, Identity] = {}
        """The model's counters by the service's keys."""
        self.leases: list[str] = []
        self.last: list[tuple[list[Asked], int]] = []
        """The last request."""
        self.edges: list[int] = []
        self.load(rules)

    def begin_anew(self) -> None:
        """Goes on from the start where Redis may have dropped what was just counted."""
        self.world.stalls += 1
        self.idle = True
        self.start(self.written)

    def load(self, rules: list[Rule]) -> None:
        self.written = rules
        for each in (self.model, *self.alone.values()):
            each.load(rules)
        for process in self.world.processes:
            process.load(rules)

    @property
    def now(self) -> int:
        return self.world.clock.now_us

    @invariant()
    def count(self) -> None:
        """Counts the steps that did something; called after each."""
        self.world.steps += not self.idle
        self.idle = False

    @rule(requests=walk.requests, process=st.integers(0, 9))
    def ask(self, requests: list[tuple[list[walk.Wish], int]], process: int) -> None:
        """Requests one after the other."""
        for wishes, hits in requests:
            self.decide([([self.asked(wish) for wish in wishes], hits)], process)

    @rule(requests=walk.requests, process=st.integers(0, 9))
    def ask_at_once(self, requests: list[tuple[list[walk.Wish], int]], process: int) -> None:
        """Requests in one batch."""
        if not self.world.settles_in_order:
            self.idle = True
            return
        batch = [([self.asked(wish) for wish in wishes], hits) for wishes, hits in requests]
        self.decide(batch, process)

    @precondition(lambda self: self.last)
    @rule(process=st.integers(0, 1), pause=walk.short_pauses)
    def ask_again(self, process: int, pause: int) -> None:
        """The last request once more, soon after."""
        if self.set_clock(self.now + pause):
            self.decide(self.last, process)

    def asked(self, wish: walk.Wish) -> Asked:
        value = wish.value
        if value == "new":
            self.fresh += 1
            value = f"new-{self.fresh}"
        node = self.written[wish.rule % len(self.written)]
        entries = [(node["key"], value)]
        if wish.deeper:
            entries.append(("deep", value))
        negative = wish.addend is not None and wish.addend < 0
        if negative and wish.lease and self.leases:
            entries.append(("lease", self.leases[wish.lease % len(self.leases)]))
        addend = abs(wish.addend) if wish.addend is not None else None
        return Asked(tuple(entries), addend, negative, wish.limit)

    def decide(self, batch: list[tuple[list[Asked], int]], number: int) -> None:
        self.last = batch[-1:]
        number %= len(self.world.processes)
        told = self.world.run(self.world.processes[number].decide(batch))
        if number not in self.alone:
            self.world.asked(told)
        if self.world.stood_still:
            self.begin_anew()
            return
        for (descriptors, hits), one in zip(batch, told, strict=True):
            self.hold(number, descriptors, hits, one)
        models = (self.model, *self.alone.values())
        if not all(each.may_be(self.now) for each in models):
            self.set_clock(max(each.latest for each in models))

    def hold(self, number: int, descriptors: list[Asked], hits: int, one: Told) -> None:
        """Holds what was told against the model, and notes what it tells."""
        self.compare(descriptors, one, self.expected(number, descriptors, hits, one))
        self.names.update(zip([hit.key for hit in one.hits], self.model.last, strict=False))
        if one.lease:
            self.leases.append(one.lease)
        if not self.world.settles_in_order:
            self.start_anew(one)
        self.edges = [self.now + each.reset_us for each in one.answer.counted]

    def expected(self, number: int, descriptors: list[Asked], hits: int, one: Told) -> Answer:
        """The model's answer to a request that a process was asked."""
        return self.model.decide(self.now, descriptors, hits, one.lease)

    @rule(request=walk.request, process=st.integers(0, 9))
    def ask_in_vain(self, request: tuple[list[walk.Wish], int], process: int) -> None:
        """A fault of the service's own where it asks its store: nothing of the request counts."""
        wishes, hits = request
        process %= len(self.world.processes)
        asked = [([self.asked(wish) for wish in wishes], hits)]
        self.world.run(self.world.processes[process].fail(asked))

    def start_anew(self, one: Told) -> None:
        """Forgets what counts nothing now, but would if the clock stepped to where it counted.

        Where a denied request was charged in several places, giving it back leaves a new counter.
        """
        over = any(each.over for each in one.answer.counted)
        for hit in one.hits:
            name = self.names[hit.key]
            counter = self.model.counters.get(name)
            if counter is None:
                continue
            if over:
                counter.given_back_at = self.now
            if counter.damaged(self.now) or not counter.used(counter.terms, self.now):
                del self.model.counters[name]
                self.world.forget(hit.key)

    def compare(self, descriptors: list[Asked], one: Told, expected: Answer) -> None:
        """Holds an answer against the model's."""
        got = one.answer
        if self.model.delay_us % 1_000 == 1 and expected.delay_ms:
            # "exact to a microsecond": that can be the one above a whole millisecond.
            fewer = expected._replace(delay_ms=expected.delay_ms - 1)
            expected = fewer if got == fewer else expected
        if got == expected:
            return
        lines = ["", *map(str, descriptors), *map(str, expected.statuses)]
        named = {key for asked in descriptors for key, _ in asked.entries}
        lines += [str(rule) for rule in self.written if rule["key"] in named]
        for name, had, want in zip(Answer._fields, got, expected, strict=True):
            if not isinstance(want, tuple) or not isinstance(had, tuple) or len(had) != len(want):
                if had != want:
                    lines.append(f"{name}: got {had}, want {want}")
                continue
            for at, pair in enumerate(zip(had, want, strict=True)):
                if pair[0] != pair[1]:
                    lines.append(f"{name} {at}:\n   got  {pair[0]}\n   want {pair[1]}")
                    if name == "counted":
                        hit = one.hits[at]
                        lines.append(f"   of {hit}\n   in {self.model.named(descriptors, at)}")
        raise AssertionError("\n".join(lines))

    @rule(pause=walk.pauses)
    def wait(self, pause: int) -> None:
        """Time goes on."""
        self.idle = not pause or not self.set_clock(self.now + pause)

    @precondition(lambda self: self.edges)
    @rule(edge=st.integers(0, 9), beside=st.sampled_from([-1, 0, 1]))
    def wait_for_edge(self, edge: int, beside: int) -> None:
        """Time goes on to where something just asked for ends, or to beside that."""
        then = self.edges[edge % len(self.edges)] + beside
        self.idle = then <= self.now or not self.set_clock(then)

    @rule(back=walk.steps_back)
    def step_back(self, back: int) -> None:
        """The clock is set back, or less far where the documents say nothing of that."""
        while not self.set_clock(self.now - back):
            back //= 10
        self.idle = not back

    def set_clock(self, now: int) -> bool:
        """Sets the clock, if the documents say what then holds."""
        models = (self.model, *self.alone.values())
        if now != self.now and not all(each.may_be(now) for each in models):
            return False
        for each in models:
            each.latest = max(each.latest, now)
        self.world.clock.now_us = now
        self.world.moved()
        return True

    @rule(choice=walk.choices)
    def reload(self, choice: walk.Choice) -> None:
        """A rule gets other numbers, or another mode."""
        self.load(walk.changed(self.written, choice))
        for key, name in self.names.items():
            counter = self.model.counters.get(name)
            if counter is not None and counter.leaked_by_old_rate():
                del self.model.counters[name]
                self.world.forget(key)


class FailingMachine(Machine):
    """A walk in which processes lose their store and find it again."""

    world: Failing

    def expected(self, number: int, descriptors: list[Asked], hits: int, one: Told) -> Answer:
        alone = self.alone.get(number)
        if alone is None:
            return super().expected(number, descriptors, hits, one)
        if self.policy == "local":
            alone.share = self.world.share(number)
            known = alone.decide(self.now, descriptors, hits, one.lease, alone=True)
            return by_policy(known)
        return alone.without(descriptors, hits, self.policy)

    @rule(process=st.integers(0, 1))
    def lose(self, process: int) -> None:
        """A process loses its way to the store."""
        self.idle = process in self.alone
        if not self.idle:
            self.world.lose(process)
            self.leave_alone(process)

    def leave_alone(self, process: int) -> None:
        self.alone[process] = Model(DOMAIN, self.model.settings)
        self.alone[process].load(self.written)

    @rule(request=walk.request, process=st.integers(0, 1))
    def lose_the_reply(self, request: tuple[list[walk.Wish], int], process: int) -> None:
        """A process loses its store, which has counted what the process is never told."""
        self.idle = process in self.alone
        if self.idle:
            return
        wishes, hits = request
        descriptors = [self.asked(wish) for wish in wishes]
        self.world.lose_next_reply(process)
        (one,) = self.world.run(self.world.processes[process].decide([(descriptors, hits)]))
        if one.hits:
            self.world.lose(process)
            self.world.asked([one])
            lease = next((hit.lease.hex() for hit in one.hits if not hit.refund), "")
            self.model.decide(self.now, descriptors, hits, lease)
            self.leave_alone(process)
        else:
            self.world.lose_next_reply(process, lose=False)
        self.hold(process, descriptors, hits, one)
        if self.world.stood_still:
            self.begin_anew()

    @precondition(lambda self: self.alone)
    @rule(process=st.integers(0, 1))
    def find(self, process: int) -> None:
        """A process finds its store again, and tells what it has counted without it."""
        alone = self.alone.pop(process, None)
        self.idle = alone is None
        if alone is not None:
            self.world.find(process)
            self.model.told(alone, self.now)
            self.model.latest = max(self.model.latest, alone.latest, self.now)
            if self.world.stood_still:
                self.begin_anew()


class CachedMachine(Machine):
    """A walk in which processes deny by what they know, for a second at most."""

    world: Cached

    def start(self, rules: list[Rule]) -> None:
        self.denials: dict[tuple[int, bytes], Denial] = {}
        self.told_last = b""
        """The key of the last hit that a process was told of."""
        super().start(rules)

    @rule(wish=walk.wish, process=st.integers(0, 1), pause=walk.short_pauses)
    def fill(self, wish: walk.Wish, process: int, pause: int) -> None:
        """Single hits until they are denied, and more soon after."""
        asked = self.asked(wish)._replace(addend=None, negative=False)
        for _ in range(12):
            self.decide([([asked], 0)], process)
            if self.denials.get((process, self.told_last)):
                break
        if self.set_clock(self.now + pause):
            self.decide([([asked], 0)], process)
            self.decide([([asked], 0)], 1 - process)

    def expected(self, number: int, descriptors: list[Asked], hits: int, one: Told) -> Answer:
        """The model's answer, or what this process may believe.

        "A key of which not even one hit would pass is remembered for as long as that holds, one
        second at most [...]. What is given back, or a raised limit, so reaches other processes
        within a second, this one at once."
        """
        now = self.world.elapsed_us
        if self.world.knew(number):
            results = []
            for hit in one.hits:
                denial = self.denials[number, hit.key]
                assert denial.spec == hit.spec, f"{hit} was denied by {denial}"
                assert now < min(denial.passes_us, denial.asked_us + SECOND), f"{now}: {denial}"
                results.append(Counted(True, 0, denial.passes_us - now, 0))
            return self.model.known_over(descriptors, hits, results)
        expected = self.model.decide(self.now, descriptors, hits, one.lease)
        for hit, name, result in zip(one.hits, self.model.last, one.answer.counted, strict=True):
            if hit.refund:
                self.denials.pop((number, hit.key), None)
            elif result.over and hit.addend == 1:
                counter = self.model.counters.get(name)
                if counter is None or not counter.remaining(counter.terms, self.now):
                    denial = Denial(now, now + result.reset_us, hit.spec)
                    self.denials[number, hit.key] = denial
        self.told_last = one.hits[-1].key if one.hits else b""
        return expected


class FullMachine(Machine):
    """A walk in a full store: it forgets what it says that it forgets, and nothing else."""

    world: FullMemory

    def start(self, rules: list[Rule]) -> None:
        self.put_out = 0
        super().start(rules)

    def decide(self, batch: list[tuple[list[Asked], int]], number: int) -> None:
        for one in batch:
            super().decide([one], number)
            self.forget()

    def forget(self) -> None:
        """Has the model forget what the store put out, which is no more than it says."""
        lost = []
        for key, name in self.names.items():
            counter = self.model.counters.get(name)
            if counter is None or self.world.has(key):
                continue
            counter.look(self.now)
            if counter.used(counter.terms, self.now):
                lost.append(f"{key!r}: {vars(counter)}")
            del self.model.counters[name]
        told = self.world.put_out - self.put_out
        assert len(lost) <= told, "\n".join([f"{told} told, {len(lost)} lost:", *lost])
        self.put_out = self.world.put_out


def run(world: World, machine: type[Machine] = Machine) -> None:
    """Walks until `STEPS` steps have done something and were held against the model."""
    seed = SEED
    try:
        while world.steps < STEPS:
            walk_on(world, machine, seed, STEPS - world.steps)
            assert world.stalls <= STEPS // 10 + 10, "the machine is too busy"
            seed += 1_000_000
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
            max_examples=-(-steps // STEPS_A_WALK),
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
    run(Memory(loop))


def test_full_memory(loop: asyncio.AbstractEventLoop) -> None:
    """A full memory forgets as many counters as it tells, and of all others nothing."""
    run(FullMemory(loop), FullMachine)


def test_redis(loop: asyncio.AbstractEventLoop, redis_server: RedisServer) -> None:
    """In one Redis, which two processes share, every answer of a walk is the model's."""
    with closing(InRedis(loop, redis_server.url, [redis_server.url])) as world:
        run(world)


def test_ring(loop: asyncio.AbstractEventLoop, redis_server: RedisServer, ring_url: str) -> None:
    """In a ring, which two processes share, every answer of a walk is the model's."""
    shards = [redis_server.url.removesuffix("0") + str(number) for number in range(3)]
    with closing(InRing(loop, ring_url, shards)) as world:
        run(world)


def test_local_cache(
    loop: asyncio.AbstractEventLoop, redis_server: RedisServer, ring_url: str
) -> None:
    """Processes that remember what is over deny nothing for longer than the documents say."""
    shards = [redis_server.url.removesuffix("0") + str(number) for number in range(3)]
    with closing(Cached(loop, ring_url, shards)) as world:
        run(world, CachedMachine)


def test_cluster(loop: asyncio.AbstractEventLoop, redis_cluster: RedisCluster) -> None:
    """In a cluster, which two processes share, every answer of a walk is the model's."""
    nodes = [server.url for server in redis_cluster.servers]
    with closing(InCluster(loop, redis_cluster.url, nodes)) as world:
        run(world)


def test_lost_and_found(loop: asyncio.AbstractEventLoop, redis_server: RedisServer) -> None:
    """Processes that lose their Redis answer by policy, and tell it later what they counted."""
    with closing(Failing(loop, redis_server)) as world:
        run(world, FailingMachine)
