"""Batches of requests, from their bytes to the bytes of their answers.

A batch is planned, charged together and answered. No request can stop the process or another
request of its batch: what goes wrong becomes that request's refusal. What must not live here:
how one request is planned (`planning`) and answered (`answering`), and who is told (`telling`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from ratelimit_service.eventloop.clock import Clock, elapsed_us, now_us
from ratelimit_service.eventloop.scheduler import shared_scheduler
from ratelimit_service.limiter import TopCallers, queue_of, tally_sample
from ratelimit_service.observability.stats import Stats
from ratelimit_service.rules.matchers.effort import (
    EFFORT,
    MOST_AT_ONCE,
    EffortSpentError,
    Searches,
)
from ratelimit_service.rules.moment import at_moment
from ratelimit_service.rules.tree import Snapshot
from ratelimit_service.service.answering import Answering
from ratelimit_service.service.asked import Asked, leased
from ratelimit_service.service.callers import CallOrigin
from ratelimit_service.service.decisions import DecisionLog
from ratelimit_service.service.enqueueing import Enqueueing
from ratelimit_service.service.faults import Faults
from ratelimit_service.service.notes import Note, unnoted
from ratelimit_service.service.planning import LATER, Planning
from ratelimit_service.service.rare_log import RareLog
from ratelimit_service.service.records import DecidedBatch
from ratelimit_service.service.refusal import Answer, Refusal
from ratelimit_service.service.steering import Steered, Steering
from ratelimit_service.service.telling import Telling
from ratelimit_service.service.tracer import Traced
from ratelimit_service.settings import Settings
from ratelimit_service.stores import (
    DROPPED,
    NEVER,
    KnownOver,
    Settled,
    Store,
    Verdict,
    Wanted,
    always,
    unknown,
    wanted_at,
)

__all__ = ["Service"]

_SHORT_HITS: Final = 64
"""A request of more hits takes two turns of the loop: it is planned in one, charged and answered in
another. A store that waits makes that pause by itself."""

_LONG_HITS: Final = 512
"""A request of more hits is answered in a turn of its own, too."""


class Service:
    """Decides batches of serialized requests."""

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        store: Store,
        settings: Settings,
        stats: Stats,
        clock: Clock = now_us,
        note: Note = unnoted,
        known_over: KnownOver = unknown,
    ) -> None:
        """`snapshot` gives the rules that hold now; one is used for a whole batch.

        `known_over` is asked when there is no time to count. `note` hears of what health should
        tell, though nothing is degraded.
        """
        self._snapshot = snapshot
        self._clock = clock
        self._store = store
        self._known_over = known_over
        self._stats = stats
        self.waits = store.waits
        """Whether decisions wait for somebody else to count."""
        self._faults = Faults(stats)
        rare_log = RareLog(stats)
        self._planning = Planning(settings, stats, self._faults, rare_log)
        self.steering = Steering(settings, store, self._planning)
        """The overrides that are in force here."""
        self._answering = Answering(settings, store, stats, self._faults, rare_log, clock, note)
        self.callers = None if settings.no_callers else TopCallers()
        """Who is over, near or busy, for whoever takes it every few seconds."""
        self._compiler = self._planning.compiler
        self.enqueueing: Enqueueing | None = None
        """Takes the denied requests of rules that have a queue."""
        self.telling = Telling(self._faults)
        """Who hears of decisions."""
        self._decisions = DecisionLog.if_wanted(self._serves)

    def wait_us(self, rank: int) -> int:
        """How long a new request of this rank would wait for the store; 0 if that is not known."""
        try:
            return self._store.wait_us(rank)
        except Exception as error:  # it is decided all the same
            self._faults.note("a store cannot say how long it would take", error)
            return 0

    async def decide(
        self,
        bodies: Sequence[bytes],
        deadline_us: int = NEVER,
        origins: Sequence[CallOrigin] | None = None,
    ) -> list[Answer]:
        """As `submit`, for callers that wait."""
        future: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()

        def answered(answers: list[Answer]) -> None:
            if not future.done():  # it is, if the task that waits for it was cancelled
                future.set_result(answers)

        self.submit(bodies, answered, lambda _: not future.done(), deadline_us, origins)
        return await future

    def submit(
        self,
        bodies: Sequence[bytes],
        done: Callable[[list[Answer]], None],
        wanted: Wanted = always,
        deadline_us: int = NEVER,
        origins: Sequence[CallOrigin] | None = None,
        rank: int = 0,
        now_us: int = 0,
    ) -> None:
        """Answers serialized RateLimitRequests: `done` gets the answers in their order.

        `done` is called once, before this returns or later; nothing is raised. Each request is
        settled atomically by itself, all against the same rules. A request that is not `wanted`
        any more when its turn comes to be sent to the store is not charged, nor is one after the
        deadline, which is by `clock.elapsed_us` (`counted_until`). A store sends requests of a
        lower `rank` first, as `Store.charge` says. `origins` say who has made the calls, None
        where nobody has looked (`Telling.wants_origins`). `now_us` is `elapsed_us`, from whoever
        has just looked.
        """
        if self._decisions is not None:
            done = self._decisions.before(done, bodies)
        batch = _Batch(done, bodies, now_us or elapsed_us(), origins, rank)
        try:
            if origins is not None:
                batch.traced = self.telling.choose(origins)
            snapshot = self._snapshot()
            if snapshot.times is not None:
                snapshot = at_moment(snapshot, self._clock())
            effort = EFFORT
            if effort.rest < MOST_AT_ONCE:
                effort.renew({})
            self._plan(batch, (), snapshot, wanted, deadline_us)
        except Exception as error:
            self._fail(batch, error)

    def deny_known(
        self, bodies: Sequence[bytes], origins: Sequence[CallOrigin] | None = None
    ) -> list[Answer | None]:
        """Denies requests of callers who are known to be over; None stands for the others.

        For when there is no time to count. Nothing is charged, and each request is answered,
        tallied and told as if the store had denied it. It raises nothing.
        """
        answers: list[Answer | None] = [None] * len(bodies)
        places: list[int] = []
        asked: list[Asked | Answer] = []
        known: list[Settled] = []
        found: dict[bytes, tuple[Asked, Settled] | None] = {}  # nothing is counted meanwhile
        try:
            snapshot = self._snapshot()
            if snapshot.times is not None:
                snapshot = at_moment(snapshot, self._clock())
            for place, body in enumerate(bodies):
                if body not in found:
                    found[body] = self._known_denial(body, snapshot.number)
                denial = found[body]
                if denial is not None:
                    places.append(place)
                    asked.append(denial[0])
                    known.append(denial[1])
        except Exception as error:  # then the others are not denied
            self._faults.note("it could not be told who is over", error)
        if not asked:
            return answers
        denied = [bodies[place] for place in places]
        given: list[Answer] = []
        done: Callable[[list[Answer]], None] = given.extend
        if self._decisions is not None:
            done = self._decisions.before(done, denied)
        told = None if origins is None else [origins[place] for place in places]
        batch = _Batch(done, denied, elapsed_us(), told, 0)
        batch.asked, batch.traced = asked, self.telling.choose(told)
        self._settled(batch, known, in_own_turn=True)
        for place, answer in zip(places, given, strict=False):
            answers[place] = answer
        return answers

    def _known_denial(self, body: bytes, number: int) -> tuple[Asked, Settled] | None:
        """A remembered request that is known to be over, and what becomes of it; else None."""
        asked = self._planning.requests.get(body, number)
        if asked is None or not asked.hits or asked.leasing:
            return None
        if self.steering.active and not asked.untouched.holds:
            return None
        settled = self._known_over(asked.hits)
        return None if settled is None else (asked, settled)

    def _plan(
        self,
        batch: _Batch,
        before: Sequence[Asked | Answer],
        snapshot: Snapshot,
        wanted: Wanted,
        deadline_us: int,
    ) -> None:
        """Plans a batch and charges it, or plans on in a later turn.

        `before` is what was planned of it in turns before.
        """
        bodies = batch.bodies
        number = snapshot.number
        planning = self._planning
        remembered = planning.requests.get
        ask = planning.ask
        steered: list[Steered | None] | None = None
        asked: list[Asked | Answer] = []
        effort = EFFORT
        effort.bounded = True
        try:
            if before:
                asked = [
                    ask(body, snapshot) if one is LATER else one
                    for body, one in zip(bodies, before, strict=True)
                ]
            else:
                asked = [remembered(body, number) or ask(body, snapshot) for body in bodies]
            if self.steering.active:
                steered = self.steering.steer(bodies, asked, snapshot, self._clock())
        except EffortSpentError:
            planning.unfinished = True
        finally:
            effort.bounded = False
        if planning.unfinished:
            planning.unfinished = False
            later = partial(
                self._plan_on, batch, asked, snapshot, effort.found, wanted, deadline_us
            )
            shared_scheduler().go_on(later)
            return
        self._charge_planned(batch, asked, steered, wanted, deadline_us)

    def _plan_on(
        self,
        batch: _Batch,
        before: Sequence[Asked | Answer],
        snapshot: Snapshot,
        found: Searches,
        wanted: Wanted,
        deadline_us: int,
    ) -> None:
        """Plans on, in another turn; `found` is what searches have found of this batch."""
        try:
            EFFORT.renew(found)
            self._plan(batch, before, snapshot, wanted, deadline_us)
        except Exception as error:
            self._fail(batch, error)
        finally:
            EFFORT.renew({})

    def _charge_planned(
        self,
        batch: _Batch,
        asked: list[Asked | Answer],
        steered: list[Steered | None] | None,
        wanted: Wanted,
        deadline_us: int,
    ) -> None:
        """Charges a batch that is planned."""
        planning = self._planning
        if planning.leases:
            asked = [
                leased(one) if isinstance(one, Asked) and one.leasing else one for one in asked
            ]
        batch.asked = asked
        charged = [one.hits for one in asked if isinstance(one, Asked) and one.hits]
        if len(charged) < len(asked):  # rare
            batch.places = places = [
                place for place, one in enumerate(asked) if isinstance(one, Asked) and one.hits
            ]
            wanted = partial(wanted_at, wanted, places)
        if charged:
            settled = partial(self._settled, batch)
            if not self.waits and len(charged) == 1 and len(charged[0]) > _SHORT_HITS:
                if steered is None:
                    charge = partial(self._store.charge, charged, settled)
                else:
                    charge = partial(self.steering.charge, asked, steered, settled)
                later = partial(self._charge, batch, charge, wanted, deadline_us)
                shared_scheduler().go_on(later)
            elif steered is None:
                self._store.charge(charged, settled, wanted, deadline_us, batch.rank)
            else:
                self.steering.charge(asked, steered, settled, wanted, deadline_us, batch.rank)
        else:
            self._settled(batch, [])

    def _charge(
        self,
        batch: _Batch,
        charge: Callable[[Wanted, int, int], None],
        wanted: Wanted,
        deadline_us: int,
    ) -> None:
        """Charges what was planned in the turn before."""
        try:
            charge(wanted, deadline_us, batch.rank)
        except Exception as error:
            self._fail(batch, error)

    def _serves(self, domain: str) -> bool:
        return domain in self._snapshot().domains

    def bug(self, error: Exception) -> Refusal:
        """Counts and logs a fault of ours; returns what its request is answered."""
        return self._faults.request(error)

    def _settled(
        self, batch: _Batch, charged: Sequence[Settled], *, in_own_turn: bool = False
    ) -> None:
        """Answers a batch; this is what its requests that were charged came to."""
        if not in_own_turn and len(charged) == 1 and len(charged[0].outcomes) > _LONG_HITS:
            shared_scheduler().go_on(partial(self._settled, batch, charged, in_own_turn=True))
            return
        if batch.finished:
            if batch.failed:  # it was refused when the store failed
                self._give_back(batch, charged, ())
            return
        answers: list[Answer] = []
        try:
            found = charged if batch.places is None else batch.of_all(batch.places, charged)
            callers = self.callers
            exact = callers is not None and (callers.outcomes > 0 or callers.weight == 1)
            told = callers if exact else None
            answers = self._answering.answer(batch.asked, found, told)
            took_us = elapsed_us() - batch.started_us
            self._stats.latency.add(took_us, batch.size)
        except Exception as error:
            self._fail(batch, error)
            self._give_back(batch, charged, answers)
        else:
            self._tell(batch, answers)
            if callers is not None:
                callers.until -= batch.size
                if callers.until < 0 or callers.unnamed:
                    self._note_callers(batch, () if exact else found, answers, callers)
            if self._compiler.enqueues:
                self._enqueue(batch, found)
            if self.telling.listeners or batch.traced:
                self._record(batch, found, answers, took_us)

    def _give_back(
        self, batch: _Batch, settled: Sequence[Settled], answers: Sequence[Answer]
    ) -> None:
        """Gives back what a batch was charged that is refused as a whole.

        Requests that were refused one by one, as `answers` say, have got theirs back.
        """
        charged = [
            (place, asked)
            for place, asked in enumerate(batch.asked)
            if isinstance(asked, Asked) and asked.hits
        ]
        if len(charged) != len(settled):
            return  # nobody can tell whose these are
        for (place, asked), each in zip(charged, settled, strict=True):
            if not (answers and isinstance(answers[place], Refusal)):
                self._answering.give_back(asked, each)

    def _enqueue(self, batch: _Batch, found: Sequence[Settled]) -> None:
        """Hands on those denied requests of a batch whose rules have a queue."""
        enqueueing = self.enqueueing
        if enqueueing is None:
            return
        try:
            for place, settled in enumerate(found):
                asked = batch.asked[place]
                if settled.verdict is Verdict.DENIED and isinstance(asked, Asked):
                    rule = queue_of(asked.plans, settled)
                    if rule is not None:
                        enqueueing.take(rule, batch.bodies[place])
        except Exception as error:
            self._faults.note("denied requests could not be queued", error)

    def _note_callers(
        self,
        batch: _Batch,
        found: Sequence[Settled],
        answers: Sequence[Answer],
        callers: TopCallers,
    ) -> None:
        """Keeps those of a batch that are of the sample, and says who has no name yet.

        Nothing was `found` if callers have heard of each outcome already.
        """
        try:
            place = batch.size + callers.until
            while place < batch.size:
                asked = batch.asked[place]
                plans = asked.plans if isinstance(asked, Asked) else ()
                tallied = found and isinstance(answers[place], bytes)
                outcomes = found[place].outcomes if tallied else ()
                if callers.keep(batch.bodies[place], plans, outcomes):
                    tally_sample(callers)
                place += callers.step(len(plans))
            callers.until = place - batch.size
            if callers.unnamed:
                for place, asked in enumerate(batch.asked):
                    if isinstance(asked, Asked):
                        callers.name(batch.bodies[place], asked.plans)
                callers.unnamed.clear()
        except Exception as error:
            callers.until = 0
            callers.sample.clear()
            callers.unnamed.clear()
            self._faults.note("callers could not be noted", error)

    def _record(
        self,
        batch: _Batch,
        found: Sequence[Settled] | None,
        answers: Sequence[Answer],
        took_us: int,
    ) -> None:
        """Tells of a batch. Nothing was found after a fault."""
        decided = DecidedBatch(batch.bodies, batch.asked, found, answers, batch.origins, took_us)
        self.telling.tell(decided, batch.traced)

    def _fail(self, batch: _Batch, error: Exception) -> None:
        """Ends a batch by a fault of ours: refuses what needed the store, or was not planned."""
        if batch.finished:
            self._faults.note("a store failed after its answers", error)
            return
        batch.failed = True
        answers: list[Answer] = []
        for one in batch.asked:
            if isinstance(one, Asked) and one.hits:
                answers.append(self.bug(error))
            else:
                known = one.settled if isinstance(one, Asked) else DROPPED
                answers += self._answering.answer([one], [known])
        answers += [self.bug(error) for _ in range(batch.size - len(answers))]
        self._tell(batch, answers)
        if self.telling.listeners or batch.traced:
            self._record(batch, None, answers, elapsed_us() - batch.started_us)

    def _tell(self, batch: _Batch, answers: list[Answer]) -> None:
        batch.finished = True
        try:
            batch.done(answers)
        except Exception as error:
            self._faults.note("answers could not be handed on", error)


class _Batch:
    """One call of `submit`: its answers are given once, whatever the store does or fails to do."""

    __slots__ = (
        "asked",
        "bodies",
        "done",
        "failed",
        "finished",
        "origins",
        "places",
        "rank",
        "size",
        "started_us",
        "traced",
    )

    def __init__(
        self,
        done: Callable[[list[Answer]], None],
        bodies: Sequence[bytes],
        started_us: int,
        origins: Sequence[CallOrigin] | None,
        rank: int,
    ) -> None:
        self.done = done
        self.bodies = bodies
        self.origins = origins
        self.size = len(bodies)
        self.started_us = started_us
        self.rank = rank
        self.asked: Sequence[Asked | Answer] = ()
        self.places: list[int] | None = None
        """Which of them were charged, if not all."""
        self.finished = False
        self.failed = False
        """Whether a fault of ours has refused what was to be charged."""
        self.traced: Sequence[Traced] = ()
        """Which of them become spans."""

    def of_all(self, places: Sequence[int], charged: Sequence[Settled]) -> Sequence[Settled]:
        """What each request of the batch came to, those that had nothing to charge as well."""
        found = [one.settled if isinstance(one, Asked) else DROPPED for one in self.asked]
        for place, each in zip(places, charged, strict=True):
            found[place] = each
        return found
