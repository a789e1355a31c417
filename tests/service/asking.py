"""A service over YAML rules, asked with models instead of bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ratelimit_service import wire
from ratelimit_service.eventloop.clock import Clock
from ratelimit_service.model import Decision, Descriptor, Entry, Hit, Limit, Outcome, Request
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats, Tally
from ratelimit_service.rules.load import Rules
from ratelimit_service.service import DecidedBatch, DecisionRecord, Refusal, Service
from ratelimit_service.settings import Settings
from ratelimit_service.stores import (
    DROPPED,
    NEVER,
    Done,
    KnownOver,
    Outcomes,
    Store,
    Wanted,
    always,
    judge,
    unknown,
)
from ratelimit_service.stores.local_cache import LocalCache
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.stores.redis.advances import Advances
from tests.stores.cases import T


class Away:
    """A store that never answers in time."""

    waits = True

    def wait_us(self, priority: int) -> int:
        return 0

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def charge(
        self,
        requests: Sequence[Sequence[Hit]],
        done: Done,
        wanted: Wanted = always,
        deadline_us: int = NEVER,
        priority: int = 0,
    ) -> None:
        done([judge(hits, self.outcomes(hits)) for hits in requests])

    def outcomes(self, hits: Sequence[Hit]) -> Outcomes:
        """Of the hits of one request."""
        return [None] * len(hits)


class Timed(Away):
    """Another, which notes by when its answers were wanted."""

    def __init__(self) -> None:
        self.deadlines_us: list[int] = []

    def charge(
        self,
        requests: Sequence[Sequence[Hit]],
        done: Done,
        wanted: Wanted = always,
        deadline_us: int = NEVER,
        priority: int = 0,
    ) -> None:
        self.deadlines_us.append(deadline_us)
        super().charge(requests, done, wanted, deadline_us, priority)


class Busy(Away):
    """A store in which requests wait until it is told to go on; then the wanted ones pass."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Sequence[Sequence[Hit]], Done, Wanted]] = []
        self.priorities: list[int] = []
        """The priority of each that ever waited."""

    def charge(
        self,
        requests: Sequence[Sequence[Hit]],
        done: Done,
        wanted: Wanted = always,
        deadline_us: int = NEVER,
        priority: int = 0,
    ) -> None:
        self.waiting.append((requests, done, wanted))
        self.priorities.append(priority)

    def go_on(self) -> None:
        for requests, done, wanted in self.waiting:
            done(
                [
                    judge(hits, [Outcome(False, hit.spec.limit - 1, 1, 1) for hit in hits])
                    if wanted(place)
                    else DROPPED
                    for place, hits in enumerate(requests)
                ]
            )
        self.waiting.clear()


def descriptor(
    text: str,
    *,
    addend: int | None = None,
    limit: Limit | None = None,
    refund: bool = False,
) -> Descriptor:
    """`descriptor("user=bob,plan=free")`."""
    entries = [part.partition("=") for part in text.split(",")] if text else []
    return Descriptor(tuple(Entry(key, value) for key, _, value in entries), limit, addend, refund)


class Heard(list[DecisionRecord]):
    """The records of all that a service decides from now on."""

    def __init__(self, service: Service) -> None:
        super().__init__()
        self.not_told = 0
        service.events.add(self)

    def hear(self, decided: DecidedBatch) -> None:
        self += [decided.record(place) for place in range(len(decided.bodies))]

    def missed(self, calls: int) -> None:
        self.not_told += calls


def known_over_of(store: Store) -> KnownOver:
    """What tells who is over in this store without counting."""
    return store.known_over if isinstance(store, MemoryStore | LocalCache | Advances) else unknown


class Asking:
    """One service and its parts; time stands still at `now_us`."""

    def __init__(
        self,
        directory: Path,
        *files: str,
        settings: Settings | None = None,
        store: Store | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.settings = settings or Settings()
        self.stats = Stats()
        self.health = Health()
        directory.mkdir(exist_ok=True)
        for number, text in enumerate(files):
            (directory / f"{number}.yaml").write_text(text)
        self.rules = Rules(directory, stats=self.stats, health=self.health)
        self.rules.load()
        self.now_us = T
        clock = clock or (lambda: self.now_us)
        memory = MemoryStore(1_000, self.stats, self.health, clock)
        self.service = Service(
            lambda: self.rules.snapshot,
            memory if store is None else store,
            self.settings,
            self.stats,
            clock,
            self.health.note,
            known_over_of(memory if store is None else store),
            store.pay if isinstance(store, Advances) else None,
        )
        self.clock = clock

    def served_by(self, store: Store, settings: Settings) -> Service:
        """A service over the same rules."""
        return Service(lambda: self.rules.snapshot, store, settings, self.stats, self.clock)

    async def answer(self, request: Request) -> Decision | Refusal:
        (answer,) = await self.service.decide([wire.encode_request(request)])
        return answer if isinstance(answer, Refusal) else wire.decode_decision(answer)

    async def ask(
        self, *descriptors: str | Descriptor, domain: str = "edge", hits: int = 0
    ) -> Decision:
        """Asks about the descriptors; anything but a decision fails the test."""
        each = [descriptor(one) if isinstance(one, str) else one for one in descriptors]
        answer = await self.answer(Request(domain, tuple(each), hits))
        assert isinstance(answer, Decision), answer
        return answer

    def tally(self, path: str, value: str = "") -> Tally:
        """What a rule of the domain `edge` has counted."""
        (rule,) = [rule for rule in self.rules.snapshot.domains["edge"].rules if rule.path == path]
        return rule.tallies.of(value)
