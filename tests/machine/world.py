"""What the machine acts on: a service over a real store, and what was seen at its seams."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ratelimit_service import wire
from ratelimit_service.errors import StatusCode, StoreError
from ratelimit_service.model import (
    Code,
    CountDenied,
    Descriptor,
    Entry,
    FailurePolicy,
    Hit,
    Limit,
    Outcome,
    Override,
    OverrideKind,
    Request,
    Unit,
)
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.rules.build import Version, build
from ratelimit_service.rules.rulebook import Rulebook
from ratelimit_service.rules.tree import Domain, Snapshot
from ratelimit_service.rules.tree import Rule as RuleOfTree
from ratelimit_service.service import CallbackBatch, Refusal, Service
from ratelimit_service.service.enqueueing import Enqueueing
from ratelimit_service.settings import Settings
from ratelimit_service.stores import (
    NEVER,
    Done,
    Outcomes,
    Settled,
    Store,
    Verdict,
    Wanted,
    always,
)
from ratelimit_service.stores.memory import MemoryStore
from tests.machine import meaning
from tests.machine.answers import FAILED, Answer, Asked, Counted, Shown, Status
from tests.machine.meaning import Rule
from tests.stores.cases import T

DOMAIN = "m"


class Time:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now_us = T

    def __call__(self) -> int:
        return self.now_us


SEAMS = ("charge", "plan", "settle", "answer", "encode", "after the charge")
"""Where a fault of the service's own can be: all but the first two come once it is counted.

Beside these is "wait": the store cannot say how long a request would wait, which costs nothing.
"""


def distorted(seam: str, settled: list[Settled]) -> list[Settled]:
    """What a store's answer becomes by a fault at a seam behind it."""
    if seam == "settle":
        return settled[1:]
    if seam == "answer":
        return [Settled(["over"], Verdict.WITHIN) for _ in settled]  # type: ignore[list-item]
    if seam == "encode":
        return [Settled([_odd(each) for each in one.outcomes], Verdict.WITHIN) for one in settled]
    return settled


def _odd(outcome: Outcome | None) -> Outcome:
    """What cannot be written down, but says what was counted."""
    charged = outcome.charged if outcome is not None else 0
    local = outcome is not None and outcome.local
    return Outcome(False, None, 1, charged, local)  # type: ignore[arg-type]


class Recorder:
    """A store that notes what the one behind it was asked and has answered."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.noted: list[tuple[Sequence[Hit], Outcomes]] = []
        self.seam = ""
        """Where there is a fault of the service's own, if anywhere."""
        self.unsendable = False
        """Whether hits cannot be sent to Redis."""
        self.unanswered = 0
        """How many batches the store has not answered yet."""

    @property
    def waits(self) -> bool:
        return self.store.waits

    def wait_us(self, priority: int) -> int:
        if self.seam == "wait":
            raise ArithmeticError("a fault of the service's own")
        return self.store.wait_us(priority)

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
        priority: int = 0,
    ) -> None:
        seam, noted = self.seam, self.noted

        def answered(settled: list[Settled]) -> None:
            self.unanswered -= 1
            found = [one.outcomes for one in settled]
            noted.extend(zip(requests, found, strict=True))
            done(distorted(seam, settled))

        if seam == "charge":
            raise ArithmeticError("a fault of the service's own")
        sent = requests
        if self.unsendable:
            sent = [[hit._replace(addend=1 << 40) for hit in hits] for hits in requests]
        self.unanswered += 1
        self.store.charge(sent, answered, wanted, deadline_us, priority)
        if seam == "after the charge":
            raise ArithmeticError("a fault of the service's own")


class Queued(Enqueueing):
    """Notes what is put into queues."""

    def __init__(self) -> None:
        super().__init__(None, Stats())
        self.taken: deque[tuple[str, bytes]] = deque()
        """The paths of rules with what was denied, in order."""

    def take(self, rule: RuleOfTree, body: bytes, times: int = 1) -> None:
        self.taken += [(rule.path, body)] * times


class Told(NamedTuple):
    """What the service has answered, and what its store was asked for it."""

    answer: Answer
    lease: str
    hits: Sequence[Hit]
    dropped: bool = False
    """Whether it was not sent to the store, since nobody waited for it any more."""
    given_back: Sequence[tuple[Hit, Outcome | None]] = ()
    """What the service gave back by itself of a request that it had to refuse."""


class Reserving(NamedTuple):
    """What a call that reserves, settles, asks or reports was answered, and what it asked for."""

    answer: bytes | Refusal
    hits: Sequence[Hit]


class UnderWay:
    """A call that is under way, with what its store was asked for it."""

    def __init__(self) -> None:
        self.noted: list[tuple[Sequence[Hit], Outcomes]] = []
        self.answers: list[Any] = []

    @property
    def told(self) -> tuple[Told, Outcomes]:
        """What the service has answered, and what its store has."""
        (answer,) = self.answers
        outcomes = self.noted[0][1] if self.noted else []
        return _told(answer, iter(self.noted)), outcomes


class Process:
    """One process: its rules, its service, and its way to the store."""

    def __init__(self, store: Store, settings: Settings, clock: Time) -> None:
        self.recorder = Recorder(store)
        self.stats = Stats()
        self._book = Rulebook()
        self._service = Service(self._snapshot, self.recorder, settings, self.stats, clock)
        self._queued = Queued()
        self._service.enqueueing = self._queued

    def _snapshot(self) -> Snapshot:
        if self.recorder.seam == "plan":
            raise ArithmeticError("a fault of the service's own")
        return self._book.snapshot

    def override(self, override: Override, *, away: bool) -> None:
        """Puts an override in force, or takes it away."""
        known = self._service.overrides
        (known.remove if away else known.add)([override])

    def swap(self, domains: Mapping[str, Domain]) -> None:
        """Takes over other rules."""
        self._book.swap(domains, frozenset())

    async def decide(self, requests: Sequence[tuple[Sequence[Asked], int]]) -> list[Told]:
        """Asks for a batch."""
        self.recorder.noted.clear()
        self._queued.taken.clear()
        bodies = _bodies(requests)
        assert self._service.wait_us(0) >= 0  # as the transport asks before late calls
        answers = await self._service.decide(bodies)
        noted = iter(list(self.recorder.noted))
        told = [_told(answer, noted) for answer in answers]
        queued = [
            self._queued.taken.popleft()[0] if one.answer.over and self._next_is(body) else ""
            for one, body in zip(told, bodies, strict=True)
        ]
        assert not self._queued.taken, "queued though it was not denied"
        return [
            one._replace(answer=one.answer._replace(queue=queue))
            for one, queue in zip(told, queued, strict=True)
        ]

    def _next_is(self, body: bytes) -> bool:
        """Whether a request is the next one that was put into a queue."""
        return bool(self._queued.taken) and self._queued.taken[0][1] == body

    def ask(self, asked: Sequence[Asked], hits: int, deadline_us: int) -> UnderWay:
        """Begins to ask, beside what is under way already."""
        self._queued.taken.clear()
        call = UnderWay()
        self.recorder.noted = call.noted
        bodies = _bodies([(asked, hits)])
        self._service.submit(CallbackBatch(bodies, call.answers.extend, deadline_us=deadline_us))
        self.recorder.noted = []
        return call

    async def fail(self, asked: Sequence[Asked], hits: int, seam: str) -> Told:
        """Asks with a fault at a seam: what is to be counted is refused, once.

        Tells what the store has counted all the same.
        """
        self.recorder.noted.clear()
        self.recorder.seam = seam
        (answer,) = await self._service.decide(_bodies([(asked, hits)]))
        self.recorder.seam = ""
        await self._all_answered()
        if isinstance(answer, Refusal):
            answered = seam == "after the charge" and answer.code is StatusCode.UNAVAILABLE
            assert answered or answer.code is StatusCode.INTERNAL, answer
        elif seam != "after the charge":
            assert not any(status.limit for status in wire.decode_decision(answer).statuses)
        if not self.recorder.noted:
            return Told(FAILED, "", ())
        (noted, outcomes), *others = self.recorder.noted
        assert len(others) <= 1
        back = [pair for hits, found in others for pair in zip(hits, found, strict=True)]
        lease = next((hit.lease.hex() for hit in noted if hit.lease and not hit.refund), "")
        counted = FAILED._replace(counted=_counted(outcomes))
        return Told(counted, lease, noted, not outcomes, back)

    async def _all_answered(self) -> None:
        """Returns when the store has answered; the service need not wait for it."""
        while self.recorder.unanswered:
            await asyncio.sleep(0)

    async def reserving(self, method: str, message: bytes, seam: str = "") -> Reserving:
        """Calls one of the methods that reserve, settle, ask and report, with a fault at a seam."""
        self.recorder.noted.clear()
        self.recorder.seam = seam
        answer = await self._service.reservations.call(method, message)
        self.recorder.seam = ""
        await self._all_answered()
        return Reserving(answer, [hit for hits, _ in self.recorder.noted for hit in hits])

    async def decide_unsent(self, asked: Sequence[Asked], hits: int) -> Told:
        """Asks for what cannot be sent to Redis."""
        self.recorder.unsendable = True
        (told,) = await self.decide([(asked, hits)])
        self.recorder.unsendable = False
        return told


def _bodies(requests: Sequence[tuple[Sequence[Asked], int]]) -> list[bytes]:
    return [
        wire.encode_request(Request(DOMAIN, tuple(map(descriptor, asked)), hits))
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
    hits, outcomes = next(noted) if asked else ((), [])
    delay, lease = headers.get("x-ratelimit-delay-ms"), headers.get("x-ratelimit-lease", "")
    shown = Answer(
        decision.code is Code.OVER_LIMIT,
        statuses,
        limits,
        headers.get("x-ratelimit-warning") == "soft",
        int(delay) if delay is not None else None,
        bool(lease),
        _counted(outcomes),
        paid=tuple(str(each["limit"]) for each in metadata.get("paid", ())),
    )
    return Told(shown, lease, hits)


def _counted(outcomes: Outcomes) -> tuple[Counted, ...]:
    return tuple(
        Counted(each.over, each.remaining, each.reset_us, each.charged)
        for each in outcomes
        if each is not None
    )


def descriptor(asked: Asked) -> Descriptor:
    limit = None
    if asked.limit:
        number, unit = asked.limit
        limit = Limit(number, Unit[unit.upper()])
    entries = tuple(Entry(key, value) for key, value in asked.entries)
    return Descriptor(entries, limit, asked.addend, asked.negative)


def service_settings(settings: meaning.Settings, policy: str) -> Settings:
    return Settings(
        failure_policy=FailurePolicy(policy),
        count_denied=CountDenied.ALL
        if settings.count_denied
        else CountDenied.REPORTED
        if settings.count_reported
        else None,
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

    def begin(self, settings: meaning.Settings, policy: str) -> None:
        """Empties the store, for a walk from the start."""
        self.clock.now_us = T
        known = service_settings(settings, policy)
        self.processes = [Process(store, known, self.clock) for store in self.stores()]

    def load(self, rules: Sequence[Rule]) -> None:
        """Has all processes take over other rules, as a changed file's; JSON is YAML."""
        text = json.dumps({"domain": DOMAIN, "descriptors": rules})
        version = Version("rules.yaml", text.encode(), None)
        built = build([version], Rulebook().tallies_of, strict=False)
        assert not built.never_good, built.files
        for process in self.processes:
            process.swap(built.domains)

    def override(self, override: meaning.Override, *, away: bool = False) -> None:
        """Has all processes know of an override, or none any more."""
        entries = tuple(Entry(key, value) for key, value in override.entries)
        kind, number = OverrideKind(override.kind), override.number
        made_us = override.at or override.made
        one = Override(
            f"{override.made:08x}", kind, DOMAIN, entries, made_us, number, "", None, "", ""
        )
        for process in self.processes:
            process.override(one, away=away)

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

    def reset(self, number: int, hit: Hit) -> bool:
        """Has a process reset a counter, as `ratelimit reset` does; returns whether it could."""
        try:
            self.run(self.forget_at(number, hit))
        except StoreError:
            return False
        return True

    async def forget_at(self, number: int, hit: Hit) -> None:
        raise NotImplementedError

    has_scripts = False
    """Whether there are servers that know scripts."""

    def forget_scripts(self) -> None:
        """Has servers forget their scripts."""

    def close(self) -> None:
        """Lets go of everything."""


class Memory(World):
    """In memory, with room for all."""

    def stores(self) -> list[Store]:
        self._store = MemoryStore(10_000, Stats(), Health(), self.clock)
        return [self._store]

    async def forget_at(self, number: int, hit: Hit) -> None:
        await self._store.forget([hit])


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
