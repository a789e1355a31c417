"""Walks on which many calls are under way at once, and servers and connections fail meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial

from hypothesis import strategies as st
from hypothesis.stateful import rule

from ratelimit_service.eventloop.clock import elapsed_us
from ratelimit_service.model import CounterSpec, Hit, Mode
from ratelimit_service.stores import NEVER
from tests.machine import walk
from tests.machine.in_redis import LEAST_LIFE_S, InCluster, InRedis
from tests.machine.losing import Failing, LosingShards
from tests.machine.machine import Machine
from tests.machine.under_way import MANY, Bounds, Call, in_some_order, parts_of
from tests.machine.ways import CHARGED, well
from tests.machine.world import Told, UnderWay
from tests.servers.cluster import SLOTS, SharedCluster, SlotMove
from tests.servers.proxy import Proxy
from tests.stores.cases import hearing
from tests.waiting import until

SLOW_MS = 20
"""For how long servers that are slow, or are about to be lost, do nothing."""

IMPATIENT_US = 4_000
"""How long some callers wait for them."""

TOGETHER = 8
"""So many calls are under way at once."""

MIXED = (-1, 0, None, 2)
"""The addends of the descriptors of such a call."""

MOVED_AT_ONCE = 1
"""So many slots are on their way at once; to move one is slow."""

MOST_ASKED = 1_000
"""So often Redis is asked what is counted, while the machine is too busy for it to answer."""


class Crowded(InRedis):
    """A world in which calls can be under way together, while something fails."""

    faults: Sequence[str] = ("", "scripts", "slow", "late", "reset")

    def crowd(self, begin: Callable[[], list[UnderWay]], fault: str) -> list[UnderWay]:
        """Has calls begin, has something fail meanwhile, and returns when nothing is under way."""
        self._began = time.monotonic()
        self._prepare(fault)
        calls = self.loop.run_until_complete(self._under_way(begin, fault))
        self._repair(fault)
        self.loop.run_until_complete(self._all_well())
        self.stood_still = time.monotonic() - self._began > LEAST_LIFE_S
        return calls

    def _prepare(self, fault: str) -> None:
        """What fails before the calls begin."""
        if fault in ("slow", "late", "reset"):
            for client in self._clients:
                client.client_pause(SLOW_MS)

    async def _under_way(self, begin: Callable[[], list[UnderWay]], fault: str) -> list[UnderWay]:
        calls = begin()
        if fault == "scripts":
            self.forget_scripts()
        elif fault == "reset":
            await asyncio.sleep(0.002)
            for client in self._clients:
                client.client_kill_filter(_type="normal", skipme=True)
        await until(lambda: all(call.answers for call in calls))
        return calls

    def _repair(self, fault: str) -> None:
        """Ends what goes on failing."""

    async def _all_well(self) -> None:
        for shard in [shard for store in self._stores for shard in store.shards]:
            await until(partial(well, shard))

    def count(self, hit: Hit) -> int:
        """How many hits count in a hit's counter now, by what its server has.

        It is asked again as long as a busy machine makes the store give up.
        """
        spec = hit.spec
        roomy = CounterSpec(
            spec.algorithm,
            MANY,
            spec.window_us,
            spec.rate,
            form=spec.form._replace(queue=False),
        )
        peek = Hit(hit.key, roomy, 0, Mode.ENFORCED)
        found: list[int] = []
        uncounted = 0

        def told(outcomes: list[Sequence[object]]) -> None:
            nonlocal uncounted
            ((outcome,),) = outcomes
            if hasattr(outcome, "remaining"):
                found.append(MANY - outcome.remaining)
            else:
                uncounted += 1

        for asked in range(MOST_ASKED):
            self._stores[0].charge([[peek]], hearing(told))  # type: ignore[arg-type]
            self.loop.run_until_complete(until(lambda: found or uncounted > asked))  # noqa: B023
            if found:
                return found[0]
            self.loop.run_until_complete(asyncio.sleep(0.01))
        raise AssertionError("Redis does not tell what is counted")


class Lossy(Crowded):
    """A world in which replies can be lost."""

    faults = (*Crowded.faults, "lost", "cut")

    def _proxies(self) -> Sequence[Proxy]:
        raise NotImplementedError

    def _prepare(self, fault: str) -> None:
        super()._prepare(fault)
        for proxy in self._proxies():
            proxy.lose = CHARGED if fault == "lost" else None
            proxy.cut = fault == "cut"

    def _repair(self, fault: str) -> None:
        for proxy in self._proxies():
            proxy.refuse, proxy.lose, proxy.cut = False, None, False


class CrowdedRedis(Lossy, Failing):
    """In one Redis."""

    def _proxies(self) -> Sequence[Proxy]:
        return [way.proxy for way in self._ways]


class CrowdedRing(Lossy, LosingShards):
    """In a ring."""

    def _proxies(self) -> Sequence[Proxy]:
        return [way.proxy for way in self._all_ways]


class CrowdedCluster(Crowded, InCluster):
    """In a cluster, whose slots can be on their way from node to node."""

    faults = (*Crowded.faults, "asked", "moved")

    def __init__(self, loop: asyncio.AbstractEventLoop, cluster: SharedCluster) -> None:
        self._cluster = cluster
        self._moves: list[tuple[int, SlotMove]] = []
        super().__init__(loop, cluster.url, [server.url for server in cluster.servers])

    def _prepare(self, fault: str) -> None:
        super()._prepare(fault)
        if fault not in ("asked", "moved"):
            return
        for slot in sorted({SharedCluster.slot(key) for key in self._places})[:MOVED_AT_ONCE]:
            move = SlotMove(self._cluster, slot)
            self._moves.append((slot, move))
            move.begin()
            keys = move.keys()
            if keys := keys if fault == "moved" else keys[::2]:
                move.move(*keys)
            if fault == "moved":
                move.end()

    def _repair(self, fault: str) -> None:
        """Has all slots where they were."""
        moves, self._moves = self._moves, []
        for slot, move in moves:
            if fault == "asked":
                if keys := move.keys():
                    move.move(*keys)
                move.end()
            back = SlotMove(self._cluster, slot, slot * 3 // SLOTS)
            back.begin()
            if keys := back.keys():
                back.move(*keys)
            back.end()


class CrowdMachine(Machine):
    """A walk with steps on which eight calls are under way at once."""

    world: Crowded
    grants = False

    @rule(
        wishes=st.lists(
            st.lists(walk.wish, min_size=len(MIXED), max_size=len(MIXED)),
            min_size=TOGETHER,
            max_size=TOGETHER,
        ),
        number=st.integers(0, 1 << 20),
    )
    def ask_mixed_together(self, wishes: list[list[walk.Wish]], number: int) -> None:
        """The same, and each call gives back, peeks and charges."""
        mixed = [
            ([wish._replace(addend=addend) for wish, addend in zip(each, MIXED, strict=True)], 0)
            for each in wishes
        ]
        self.ask_together(mixed, number)

    @rule(
        wishes=st.lists(walk.request, min_size=TOGETHER, max_size=TOGETHER),
        number=st.integers(0, 1 << 20),
    )
    def ask_together(self, wishes: list[tuple[list[walk.Wish], int]], number: int) -> None:
        """Eight calls at once."""
        choice = walk.Choice(number)
        fault = choice.of(["", "", *self.world.faults])
        requests = [([self.asked(wish) for wish in each], hits) for each, hits in wishes]
        for descriptors, _ in requests:
            self.drop_leaked(self.model.rates(descriptors))
        processes = self.world.processes

        def begin() -> list[UnderWay]:
            late = elapsed_us() + IMPATIENT_US
            return [
                processes[at % len(processes)].ask(
                    *request, late if fault == "late" and choice.of([0, 1]) else NEVER
                )
                for at, request in enumerate(requests)
            ]

        told = [call.told for call in self.world.crowd(begin, fault)]
        self.world.asked([one for one, _ in told])
        if self.world.stood_still:
            self.begin_anew()
            return
        calls = [
            Call(descriptors, hits, one, outcomes)
            for (descriptors, hits), (one, outcomes) in zip(requests, told, strict=True)
        ]
        self.hold_together(calls, fault)

    def hold_together(self, calls: list[Call], fault: str) -> None:
        """Holds calls that were under way together against the model."""
        in_order = self.world.settles_in_order
        parts = parts_of(self.model, calls, in_order=in_order)
        lossy = fault in ("reset", "lost", "cut") and not in_order
        wrong = []
        for name, its in parts.items():
            key = its[0].hit.key
            counter = self.model.counters.get(name)
            bounds = Bounds(counter, self.now, its, in_order=in_order, lossy=lossy)
            if bounds.clear:
                faults = bounds.faults(self.world.count(its[0].hit))
                wrong += [f"{name}: {each}" for each in faults]
            self.keys[name] = key
        if not wrong and in_order and all(call.known for call in calls):
            after = in_some_order(self.model, self.now, calls)
            if after is None:
                wrong.append("no order of these calls gives these answers")
            else:
                self.model = after
        assert not wrong, "\n".join(["", fault, *map(str, [*calls, *self.written, *wrong])])
        for call in calls:
            if call.told.lease:
                self.leases.append(call.told.lease)
            self.hits.update({hit.key: hit for hit in call.told.hits})
        self.world.asked([Told(call.told.answer, "", call.told.hits) for call in calls])
        kept = in_order and all(call.known for call in calls)
        for name, its in parts.items():
            if kept and not any(
                part.refund or part.terms.algorithm == "concurrency" for part in its
            ):
                continue
            self.model.counters.pop(name, None)
            self.world.forget(its[0].hit.key)
