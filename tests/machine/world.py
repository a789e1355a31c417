"""What the machine acts on: a service over a real store, and what was seen at its seams."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import redis

from ratelimit_service import wire
from ratelimit_service.errors import StatusCode
from ratelimit_service.health import Health
from ratelimit_service.model import (
    Code,
    Descriptor,
    Entry,
    FailurePolicy,
    Hit,
    Limit,
    Request,
    Unit,
)
from ratelimit_service.observer import Stats
from ratelimit_service.rules.build import Version, build
from ratelimit_service.rules.rulebook import Rulebook
from ratelimit_service.service import Refusal, Service
from ratelimit_service.settings import Settings
from ratelimit_service.stores import NEVER, Done, Outcomes, Settled, Store, Wanted, always
from ratelimit_service.stores.local import Local
from ratelimit_service.stores.local_cache import LocalCache
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.stores.redis import RedisStore
from ratelimit_service.stores.redis.processes import PROCESSES
from ratelimit_service.stores.redis.shard import Shard
from tests.machine import model
from tests.machine.answers import FAILED, Answer, Asked, Counted, Shown, Status
from tests.machine.model import Rule
from tests.servers.cluster import SLOTS, RedisCluster
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisServer
from tests.stores.cases import T

DOMAIN = "m"
CHARGED = re.compile(rb"\*\d+\r\n:")
"""How the reply to a script call begins that charges."""

LEAST_LIFE_S = 0.9
"""A key lives for a second at least in Redis, whose time is not the walk's."""


class Time:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now_us = T

    def __call__(self) -> int:
        return self.now_us


class Recorder:
    """A store that notes what the one behind it was asked and has answered."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.noted: list[tuple[Sequence[Hit], Outcomes]] = []
        self.fails = False
        """Whether charging fails by a fault of the service's own."""

    @property
    def waits(self) -> bool:
        return self.store.waits

    async def start(self) -> None:
        await self.store.start()

    async def close(self) -> None:
        await self.store.close()

    def charge(
        self,
        requests: Sequence[Sequence[Hit]],
        done: Done,
        wanted: Wanted = always,
        deadline_us: int = NEVER,
    ) -> None:
        def answered(settled: list[Settled]) -> None:
            found = [one.outcomes for one in settled]
            self.noted += zip(requests, found, strict=True)
            done(settled)

        if self.fails:
            raise ArithmeticError("a fault of the service's own")
        self.store.charge(requests, answered, wanted, deadline_us)


class Told(NamedTuple):
    """What the service has answered, and what its store was asked for it."""

    answer: Answer
    lease: str
    hits: Sequence[Hit]


class Process:
    """One process: its rules, its service, and its way to the store."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self.recorder = Recorder(store)
        self.stats = Stats()
        self._book = Rulebook()
        self._service = Service(lambda: self._book.snapshot, self.recorder, settings, self.stats)

    def load(self, rules: Sequence[Rule]) -> None:
        """Takes over other rules, as a changed file's; JSON is YAML."""
        text = json.dumps({"domain": DOMAIN, "descriptors": rules})
        version = Version("rules.yaml", text.encode(), None)
        built = build([version], self._book.tallies_of, strict=False)
        assert not built.never_good, built.files
        self._book.swap(built.domains, frozenset())

    async def decide(self, requests: Sequence[tuple[Sequence[Asked], int]]) -> list[Told]:
        """Asks for a batch."""
        self.recorder.noted.clear()
        answers = await self._service.decide(_bodies(requests))
        noted = iter(list(self.recorder.noted))
        return [_told(answer, noted) for answer in answers]

    async def fail(self, requests: Sequence[tuple[Sequence[Asked], int]]) -> None:
        """Asks for a batch while its store fails: what is to be counted there is refused."""
        self.recorder.fails = True
        answers = await self._service.decide(_bodies(requests))
        self.recorder.fails = False
        for answer in answers:
            if isinstance(answer, Refusal):
                assert answer.code is StatusCode.INTERNAL, answer
            else:
                assert not any(status.limit for status in wire.decode_decision(answer).statuses)


def _bodies(requests: Sequence[tuple[Sequence[Asked], int]]) -> list[bytes]:
    return [
        wire.encode_request(Request(DOMAIN, tuple(map(_descriptor, asked)), hits))
        for asked, hits in requests
    ]


def _told(answer: bytes | Refusal, noted: Iterator[tuple[Sequence[Hit], Outcomes]]) -> Told:
    """Reads an answer; what is not limited was not asked of the store."""
    if isinstance(answer, Refusal):
        assert answer.code is StatusCode.UNAVAILABLE, answer
        return Told(FAILED, "", next(noted)[0])
    decision = wire.decode_decision(answer)
    headers = {header.key: header.value for header in decision.request_headers}
    metadata: Mapping[str, Any] = decision.metadata or {}
    statuses = tuple(
        Status(
            status.code is Code.OVER_LIMIT,
            status.limit.requests_per_unit if status.limit else None,
            status.remaining,
            status.reset_us // 1_000_000 if status.reset_us is not None else None,
        )
        for status in decision.statuses
    )
    limits = tuple(
        Shown(
            int(one["descriptor"]),
            int(one["remaining"]),
            int(one["resetSeconds"]),
            one["overLimit"],
        )
        for one in metadata.get("limits", ())
    )
    asked = [hit for hit in decision.statuses if hit.limit] or "by_policy" in metadata
    hits, outcomes = next(noted) if asked else ((), ())
    results = tuple(
        Counted(each.over, each.remaining, each.reset_us, each.charged)
        for each in outcomes
        if each is not None
    )
    delay, lease = headers.get("x-ratelimit-delay-ms"), headers.get("x-ratelimit-lease", "")
    shown = Answer(
        decision.code is Code.OVER_LIMIT,
        statuses,
        limits,
        headers.get("x-ratelimit-warning") == "soft",
        int(delay) if delay is not None else None,
        bool(lease),
        results,
    )
    return Told(shown, lease, hits)


def _descriptor(asked: Asked) -> Descriptor:
    limit = None
    if asked.limit:
        number, unit = asked.limit
        limit = Limit(number, Unit[unit.upper()])
    entries = tuple(Entry(key, value) for key, value in asked.entries)
    return Descriptor(entries, limit, asked.addend, asked.negative)


def service_settings(settings: model.Settings, policy: str) -> Settings:
    return Settings(
        failure_policy=FailurePolicy(policy),
        count_denied=settings.count_denied,
        quota_mode=settings.quota_mode,
        shadow_mode=settings.shadow_mode,
    )


class World:
    """One store with its processes, used by one walk after the other."""

    settles_in_order = True
    """Whether requests of one batch see each other's charges, and nothing that is given back."""

    stood_still = False
    """Whether the last requests took so long that counters may be lost by another clock than the
    walk's. That happens on a busy machine."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.clock = Time()
        self.processes: list[Process] = []
        self.steps = 0
        """How many steps did something, and were held against the model."""
        self.stalls = 0
        """How often a walk began anew, since the machine stood still."""

    @property
    def walked(self) -> str:
        """How far it went, for its reader."""
        anew = f", began anew after {self.stalls} stalls of the machine" if self.stalls else ""
        return f"{type(self).__name__}: walked {self.steps} steps{anew}"

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    def begin(self, settings: model.Settings, policy: str) -> None:
        """Empties the store, for a walk from the start."""
        self.clock.now_us = T
        known = service_settings(settings, policy)
        self.processes = [Process(store, known) for store in self.stores()]

    def stores(self) -> Sequence[Store]:
        """The stores of the processes, empty."""
        raise NotImplementedError

    def share(self, number: int) -> int:
        """Of how many processes one gets its part where it counts alone."""
        raise NotImplementedError

    def moved(self) -> None:
        """The clock was set."""

    def asked(self, told: Sequence[Told]) -> None:
        """Something was charged."""

    def forget(self, key: bytes) -> None:
        """Drops a counter."""
        raise NotImplementedError

    def close(self) -> None:
        """Lets go of everything."""


class Memory(World):
    """In memory, with room for all."""

    def stores(self) -> list[Store]:
        return [MemoryStore(10_000, Stats(), Health(), self.clock)]


class FullMemory(Memory):
    """In memory, with room for a few."""

    def stores(self) -> list[Store]:
        self._stats = Stats()
        self._store = MemoryStore(6, self._stats, Health(), self.clock)
        return [self._store]

    def has(self, key: bytes) -> bool:
        """Whether a counter is still kept."""
        return self._store.state(key) is not None

    @property
    def put_out(self) -> int:
        """How many counters that still counted were put out, by its own account."""
        return self._stats.evictions["live"]


class InRedis(World):
    """In Redis: two processes, and keys that expire by the walk's clock instead of the server's."""

    def __init__(self, loop: asyncio.AbstractEventLoop, url: str, servers: Sequence[str]) -> None:
        super().__init__(loop)
        self._clients = [redis.Redis.from_url(server) for server in servers]
        self._expires: dict[bytes, int] = {}
        """When keys expire by the walk's clock."""
        self._began = time.monotonic()
        """When the servers were asked last."""
        self._stores: Sequence[RedisStore] = self.run(self._open(url))

    async def _open(self, url: str) -> list[RedisStore]:
        stores = [RedisStore(url, 10_000_000, Stats(), Health(), self.clock) for _ in range(2)]
        for store in stores:
            await store.start()
        return stores

    def stores(self) -> Sequence[Store]:
        for client in self._clients:
            client.flushdb()
        self._expires.clear()
        return self._stores

    def place(self, key: bytes) -> redis.Redis:
        """The server in which a key is."""
        return self._clients[0]

    def asked(self, told: Sequence[Told]) -> None:
        self.keep({hit.key for one in told for hit in one.hits})

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        self._began, self.stood_still = time.monotonic(), False
        return super().run(work)

    def keep(self, keys: Iterable[bytes]) -> None:
        """Takes from the server's clock what expires, and notes when it does by the walk's."""
        for key in keys:
            pipeline = self.place(key).pipeline(transaction=False)
            pipeline.pttl(key)
            pipeline.persist(key)
            left_ms, _ = pipeline.execute()
            if left_ms > 0:
                passed_us = int((time.monotonic() - self._began) * 1_000_000)
                self._expires[key] = self.clock.now_us + left_ms * 1_000 + passed_us
            elif left_ms == -2:
                self._expires.pop(key, None)
        self.stood_still = time.monotonic() - self._began > LEAST_LIFE_S

    def moved(self) -> None:
        for key, expires_us in list(self._expires.items()):
            if expires_us <= self.clock.now_us:
                self.place(key).delete(key)
                del self._expires[key]

    def forget(self, key: bytes) -> None:
        self.place(key).delete(key)
        self._expires.pop(key, None)

    def close(self) -> None:
        for store in self._stores:
            self.run(store.close())
        for client in self._clients:
            client.close()


class InRing(InRedis):
    """In a ring of databases of one server."""

    settles_in_order = False

    def place(self, key: bytes) -> redis.Redis:
        return next((client for client in self._clients if client.exists(key)), self._clients[0])


class Cached(InRing):
    """In a ring, with what each of two processes knows to be over in front of it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, url: str, servers: Sequence[str]) -> None:
        self.elapsed_us = 0
        """What processes measure time by, which never goes back."""
        self._latest_us = T
        super().__init__(loop, url, servers)

    def stores(self) -> Sequence[Store]:
        super().stores()
        self._latest_us = T
        self._stats = [Stats() for _ in self._stores]
        self._known = [0 for _ in self._stores]
        caches = []
        for store, stats in zip(self._stores, self._stats, strict=True):
            caches.append(LocalCache(store, 1 << 20, stats, lambda: self.elapsed_us))
            store.tell_of_give_backs(caches[-1].given_back)
        return caches

    def moved(self) -> None:
        self.elapsed_us += max(0, self.clock.now_us - self._latest_us)
        self._latest_us = self.clock.now_us
        super().moved()

    def knew(self, number: int) -> bool:
        """Whether the last request of a process was answered without asking the ring."""
        before, self._known[number] = self._known[number], self._stats[number].local_cache["hit"]
        return self._known[number] > before


class InCluster(InRedis):
    """In a cluster of three, each of which has a third of the slots."""

    settles_in_order = False

    def __init__(self, loop: asyncio.AbstractEventLoop, url: str, servers: Sequence[str]) -> None:
        """Nodes wait for each other for longer than a busy machine can make them."""
        super().__init__(loop, url, servers)
        self._waited = [self._wait(client, "120000") for client in self._clients]

    def _wait(self, client: redis.Redis, timeout_ms: str) -> str:
        """Sets how long a node waits for others, and returns how long it did."""
        name = "cluster-node-timeout"
        before = client.config_get(name)[name]
        client.config_set(name, timeout_ms)
        return str(before)

    def close(self) -> None:
        for client, timeout_ms in zip(self._clients, self._waited, strict=True):
            self._wait(client, timeout_ms)
        super().close()

    def place(self, key: bytes) -> redis.Redis:
        return self._clients[RedisCluster.slot(key) * 3 // SLOTS]


class Failing(InRedis):
    """In a Redis that each of two processes can lose, and find again."""

    def __init__(self, loop: asyncio.AbstractEventLoop, server: RedisServer) -> None:
        self._ways = [Proxy(server.port) for _ in range(2)]
        self._stores = ()
        super().__init__(loop, "", [server.url])

    async def _open(self, url: str) -> list[RedisStore]:
        stores = []
        for way in self._ways:
            url = f"redis://127.0.0.1:{await way.start()}/0"
            stores.append(RedisStore(url, 10_000_000, Stats(), Health(), self.clock))
            await stores[-1].start()
        while any(self._shard(store).processes < len(stores) for store in stores):
            await asyncio.sleep(0.01)
        return stores

    def _shard(self, store: RedisStore) -> Shard:
        (shard,) = store.shards
        return shard

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Ends with no reply under way: whoever is not listened to for a second counts as hung."""
        found = super().run(work)
        self.loop.run_until_complete(self._quiet())
        return found

    async def _quiet(self) -> None:
        for store in self._stores:
            while (connection := self._shard(store)._server.connection) and connection._calls:
                await asyncio.sleep(0.001)

    def share(self, number: int) -> int:
        """How many processes a process knows of."""
        return self._shard(self._stores[number]).processes

    def lose(self, number: int) -> None:
        """Cuts the way of a process."""
        self.run(self._lose(number))

    def lose_next_reply(self, number: int, *, lose: bool = True) -> None:
        """Cuts the way of a process as soon as the server has counted; or does not after all."""
        self._ways[number].lose = CHARGED if lose else None

    def find(self, number: int) -> None:
        """Opens the way again, and waits until all is told that was counted without it."""
        self.run(self._find(number))
        keys = [key for key in self._clients[0].scan_iter() if isinstance(key, bytes)]
        self.keep(key for key in keys if key != PROCESSES.encode())

    async def _lose(self, number: int) -> None:
        self._ways[number].refuse = True
        while self._shard(self._stores[number]).available:
            await asyncio.sleep(0.001)

    async def _find(self, number: int) -> None:
        shard = self._shard(self._stores[number])
        watched = shard._server._alarm
        self._ways[number].refuse, self._ways[number].lose = False, None
        while not shard.available:
            await asyncio.sleep(0.001)
        self._began = time.monotonic()
        while (
            shard._server._alarm is watched  # it waits again once it has handed back
            or not shard.idle
        ):
            await asyncio.sleep(0.001)

    def stores(self) -> Sequence[Store]:
        for number, store in enumerate(self._stores):
            if self._ways[number].refuse:
                self._shard(store)._debts._local = Local(Stats())
                self.find(number)
        return super().stores()

    def close(self) -> None:
        super().close()
        for way in self._ways:
            self.run(way.close())
