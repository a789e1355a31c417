"""Batches of requests, from their bytes to the bytes of their answers.

A batch is planned, charged together and answered. No request can stop the process or another
request of its batch: what goes wrong becomes that request's refusal. What must not live here:
how one request is planned (`planning`) and answered (`answering`), and who is told
(`decision_events`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from ratelimit_service.eventloop.clock import Clock, elapsed_us, now_us
from ratelimit_service.eventloop.scheduler import shared_scheduler
from ratelimit_service.limiter import TopCallers, queue_of
from ratelimit_service.model import Hit
from ratelimit_service.model.call_origin import CallOrigin
from ratelimit_service.model.refusal import Answer, Refusal
from ratelimit_service.observability.stats import Stats
from ratelimit_service.rules.matchers.effort import EFFORT, EffortSpentError, Searches
from ratelimit_service.rules.moment import at_moment
from ratelimit_service.rules.tree import Snapshot
from ratelimit_service.service.answering import Answering
from ratelimit_service.service.batch import AwaitedBatch, Batch, CallbackBatch, PartOfBatch
from ratelimit_service.service.caller_sample import note_callers
from ratelimit_service.service.decision_events import DecisionEvents
from ratelimit_service.service.decisions import DecisionLog
from ratelimit_service.service.enqueueing import Enqueueing
from ratelimit_service.service.faults import Faults
from ratelimit_service.service.notes import Note, unnoted
from ratelimit_service.service.overrides.in_force import OverriddenRequest, OverridesInForce
from ratelimit_service.service.planned import PlannedRequest, leased
from ratelimit_service.service.planning import LATER, Planning
from ratelimit_service.service.rare_log import RareLog
from ratelimit_service.service.records import DecidedBatch
from ratelimit_service.service.reserving import Reservations
from ratelimit_service.settings import Settings
from ratelimit_service.stores import (
    DROPPED,
    NEVER,
    Done,
    KnownOver,
    Pay,
    Settled,
    Store,
    Verdict,
    Wanted,
    unknown,
    wanted_at,
)

__all__ = ["Service"]

_SHORT_HITS: Final = 64
"""A request of more hits takes two turns of the loop: it is planned in one, charged and answered in
another. A store that waits makes that pause by itself, but not where overrides take some of it."""


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
        pay: Pay | None = None,
    ) -> None:
        """`snapshot` gives the rules that hold now; one is used for a whole batch.

        `known_over` is asked when there is no time to count. What `pay` settles waits for no store.
        `note` hears of what health should tell, though nothing is degraded.
        """
        self._snapshot = snapshot
        self._clock = clock
        self._store = store
        self._known_over = known_over
        self._pay = pay
        self._stats = stats
        self.waits = store.waits
        """Whether decisions wait for somebody else to count."""
        self.reply_us: Callable[[], int] = int
        """How long who counts takes to reply lately, once it is asked."""
        self._faults = Faults(stats)
        rare_log = RareLog(stats)
        self._planning = Planning(settings, stats, self._faults, rare_log)
        self.overrides = OverridesInForce(settings, store, self._planning)
        """The overrides that are in force here."""
        self.events = DecisionEvents(self._faults)
        """Who hears of decisions."""
        self.reservations = Reservations(
            snapshot, store, settings, stats, self._planning, self.overrides
        )
        """What is held before a stream begins, and settled when it has ended."""
        self.reservations.events = self.events
        self.reservations.clock = clock
        self._answering = Answering(settings, store, stats, self._faults, rare_log, clock, note)
        self.callers = None if settings.no_callers else TopCallers()
        """Who is over, near or busy, for whoever takes it every few seconds."""
        self._compiler = self._planning.compiler
        self.enqueueing: Enqueueing | None = None
        """Takes the denied requests of rules that have a queue."""
        self._decisions = DecisionLog.if_wanted(self._serves)

    def wait_us(self, priority: int) -> int:
        """How long a new request of this priority would wait for the store; 0 if nobody knows."""
        try:
            return self._store.wait_us(priority)
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
        made_by = None if origins is None else list(origins)
        batch = AwaitedBatch(list(bodies), deadline_us, origins=made_by)
        self.submit(batch)
        return await batch.future

    def submit(self, batch: Batch, now_us: int = 0) -> None:
        """Answers serialized RateLimitRequests: the batch gets the answers, now or later.

        Nothing is raised. Each request is settled atomically by itself, all against the same rules.
        One that is not wanted any more when its turn comes to be sent to the store is not charged,
        nor is one after the deadline. `now_us` is `elapsed_us`, from whoever has just looked.
        """
        batch.started_us = now_us or elapsed_us()
        try:
            if batch.origins is not None:
                batch.traced = self.events.choose(batch.origins)
            snapshot = self._snapshot()
            if snapshot.times is not None:
                snapshot = at_moment(snapshot, self._clock())
            number, remembered = snapshot.number, self._planning.requests.get
            planned: list[PlannedRequest | Answer] = [
                remembered(body, number) or LATER for body in batch.bodies
            ]
            if LATER in planned or self.overrides.active:
                self._plan(batch, planned, snapshot, {})
            else:
                self._charge_planned(batch, planned, None)
        except Exception as error:
            self._fail(batch, error)

    def deny_known(
        self, bodies: Sequence[bytes], origins: Sequence[CallOrigin] | None = None
    ) -> list[Answer | None]:
        """Denies requests of callers who are known to be over; None stands for the others.

        For when there is no time to count. Nothing is charged, and each request is answered,
        tallied and told as if the store had denied it. It raises nothing.
        """
        known: list[tuple[PlannedRequest, Settled] | None] = []
        denials: dict[bytes, tuple[PlannedRequest, Settled] | None] = {}
        try:  # nothing is counted meanwhile, so what is known of a request stays so
            number = self._rules().number
            for body in bodies:
                if body not in denials:
                    denials[body] = None
                    planned = self._remembered(body, number)
                    settled = None if planned is None else self._known_over(planned.hits)
                    if planned is not None and settled is not None:
                        denials[body] = planned, settled
                known.append(denials[body])
        except Exception as error:  # then the others are not denied
            self._faults.note("it could not be told who is over", error)
        return self._answer_known(bodies, origins, known)

    def pay_known(
        self, bodies: Sequence[bytes], origins: Sequence[CallOrigin] | None = None
    ) -> list[Answer | None]:
        """Answers requests that need no store; None stands for the others.

        For when calls would wait for the store for too long. Of the others nothing is noted. It
        raises nothing.
        """
        known: list[tuple[PlannedRequest, Settled] | None] = []
        pay = self._pay
        if pay is None or not self.leases:
            return [None] * len(bodies)
        try:
            number = self._rules().number
            remembered = [self._remembered(body, number) for body in bodies]
            asked = [one for one in remembered if one is not None]
            paid = iter(pay([one.hits for one in asked], 0))
            for planned in remembered:
                settled = None if planned is None else next(paid)
                known.append(None if planned is None or settled is None else (planned, settled))
        except Exception as error:
            self._faults.note("what is held could not be spent", error)
        return self._answer_known(bodies, origins, known)

    def _answer_known(
        self,
        bodies: Sequence[bytes],
        origins: Sequence[CallOrigin] | None,
        known: Sequence[tuple[PlannedRequest, Settled] | None],
    ) -> list[Answer | None]:
        """Answers those of these requests of which it is known what becomes of them."""
        answers: list[Answer | None] = [None] * len(bodies)
        places = [place for place, one in enumerate(known) if one is not None]
        if not places:
            return answers
        its_origins = None if origins is None else [origins[place] for place in places]
        given: list[Answer] = []
        its_bodies = [bodies[place] for place in places]
        batch = CallbackBatch(its_bodies, given.extend, origins=its_origins)
        batch.started_us = elapsed_us()
        batch.planned = [one[0] for one in known if one is not None]
        batch.traced = self.events.choose(its_origins)
        self._settled(batch, [one[1] for one in known if one is not None])
        for place, answer in zip(places, given, strict=False):
            answers[place] = answer
        return answers

    @property
    def leases(self) -> bool:
        """Whether any limit is leased."""
        return self._snapshot().leases

    def _remembered(self, body: bytes, number: int) -> PlannedRequest | None:
        """A remembered request that is charged as it is planned; else None."""
        planned = self._planning.requests.get(body, number)
        if planned is None or not planned.hits or planned.leasing:
            return None
        if self.overrides.active and planned.untouched != self.overrides.generation:
            return None
        return planned

    def _rules(self) -> Snapshot:
        """The rules that hold now."""
        snapshot = self._snapshot()
        return snapshot if snapshot.times is None else at_moment(snapshot, self._clock())

    def _plan(
        self,
        batch: Batch,
        before: Sequence[PlannedRequest | Answer],
        snapshot: Snapshot,
        searches: Searches,
    ) -> None:
        """Plans what is left of a batch and charges it, or goes on in a later turn.

        `before` is what is planned already, and LATER for the others; `searches` is what turns
        before have found.
        """
        ask = self._planning.ask
        overridden: list[OverriddenRequest | None] | None = None
        EFFORT.begin(searches)
        try:
            planned = [
                ask(body, snapshot) if one is LATER else one
                for body, one in zip(batch.bodies, before, strict=True)
            ]
            charged, whole = planned, LATER not in planned
            if whole and self.overrides.active:
                charged = list(planned)
                overridden = self.overrides.apply(batch.bodies, charged, snapshot, self._clock())
        except EffortSpentError:
            whole = False
        finally:
            EFFORT.end()
        if whole:
            self._charge_planned(batch, charged, overridden)
        else:
            later = partial(self._plan_on, batch, planned, snapshot, searches)
            shared_scheduler().go_on(later)

    def _plan_on(
        self,
        batch: Batch,
        before: Sequence[PlannedRequest | Answer],
        snapshot: Snapshot,
        searches: Searches,
    ) -> None:
        """Plans on, in another turn."""
        try:
            self._plan(batch, before, snapshot, searches)
        except Exception as error:
            self._fail(batch, error)

    def _charge_planned(
        self,
        batch: Batch,
        planned: list[PlannedRequest | Answer],
        overridden: list[OverriddenRequest | None] | None,
    ) -> None:
        """Charges a batch that is planned."""
        if self._planning.leases:
            planned = [
                leased(one) if isinstance(one, PlannedRequest) and one.leasing else one
                for one in planned
            ]
        batch.planned = planned
        pay, several = self._pay, batch.divisible and len(planned) > 1
        if pay is not None and several and self.leases and self._divide(batch, overridden, pay):
            return
        charged = [one.hits for one in planned if isinstance(one, PlannedRequest) and one.hits]
        settled: Done = partial(self._settled, batch)
        wanted: Wanted = batch.wants
        if len(charged) < len(planned):  # rare
            indices = [
                index
                for index, one in enumerate(planned)
                if isinstance(one, PlannedRequest) and one.hits
            ]
            if not indices:
                self._settled_some(batch, indices, ())
                return
            settled = partial(self._settled_some, batch, indices)
            wanted = partial(wanted_at, wanted, indices)
        pauses = len(charged) == 1 and len(charged[0]) > _SHORT_HITS
        if overridden is not None:
            charged, settled = self.overrides.charged(planned, overridden, settled)
        if pauses and (overridden is not None or not self.waits):
            shared_scheduler().go_on(partial(self._charge, batch, charged, settled, wanted))
        else:
            self._store.charge(charged, settled, wanted, batch.deadline_us, batch.priority)

    def _divide(
        self, batch: Batch, overridden: list[OverriddenRequest | None] | None, pay: Pay
    ) -> bool:
        """Answers those requests of a batch that need no store, and charges the others.

        Returns whether there were any; else nothing is done.
        """
        paid = self._answer_paid(batch, overridden, pay)
        places = sorted(set(range(len(batch.planned))).difference(paid)) if paid else []
        if places:
            rest = PartOfBatch(batch, places)
            its_overridden = None if overridden is None else [overridden[place] for place in places]
            try:
                self._charge_planned(rest, rest.planned, its_overridden)
            except Exception as error:
                self._fail(rest, error)
        return bool(paid)

    def _answer_paid(
        self, batch: Batch, overridden: list[OverriddenRequest | None] | None, pay: Pay
    ) -> list[int]:
        """Answers those requests that need no store; returns their places."""
        places: list[int] = []
        hits: list[Sequence[Hit]] = []
        for place, one in enumerate(batch.planned):
            charged = one.hits if isinstance(one, PlannedRequest) else ()
            if charged and charged[0].spec.advances and not (overridden and overridden[place]):
                places.append(place)
                hits.append(charged)
        found = pay(hits, batch.priority)
        settled = [one for one in found if one is not None]
        paid = [place for place, one in zip(places, found, strict=True) if one is not None]
        if paid:
            whole = len(paid) == len(batch.planned)
            self._settled(batch if whole else PartOfBatch(batch, paid), settled)
        return paid

    def _charge(
        self, batch: Batch, charged: list[Sequence[Hit]], settled: Done, wanted: Wanted
    ) -> None:
        """Charges what was planned in the turn before."""
        try:
            self._store.charge(charged, settled, wanted, batch.deadline_us, batch.priority)
        except Exception as error:
            self._fail(batch, error)

    def _serves(self, domain: str) -> bool:
        return domain in self._snapshot().domains

    def bug(self, error: Exception) -> Refusal:
        """Counts and logs a fault of ours; returns what its request is answered."""
        return self._faults.request(error)

    def _settled_some(
        self, batch: Batch, indices: Sequence[int], charged: Sequence[Settled]
    ) -> None:
        """Answers a batch of which the requests at these places were charged, and came to this."""
        settled = [
            one.settled if isinstance(one, PlannedRequest) else DROPPED for one in batch.planned
        ]
        for index, each in zip(indices, charged, strict=False):
            settled[index] = each
        self._settled(batch, settled if len(indices) == len(charged) else ())

    def _settled(self, batch: Batch, settled: Sequence[Settled]) -> None:
        """Answers a batch; this is what its requests came to."""
        if batch.finished:
            if batch.failed:  # it was refused when the store failed
                self._give_back(batch, settled, ())
            return
        answers: list[Answer] = []
        try:
            callers = exact = self.callers
            if callers is not None and callers.outcomes <= 0 and callers.weight > 1:
                exact = None
            answers = self._answering.answer(batch.planned, settled, exact)
            took_us = elapsed_us() - batch.started_us
            self._stats.latency.add(took_us, len(batch.bodies))
        except Exception as error:
            self._fail(batch, error)
            self._give_back(batch, settled, answers)
        else:
            self._tell(batch, answers)
            if callers is not None:
                callers.until -= len(batch.bodies)
                if callers.until < 0 or callers.unnamed:
                    of_sample = settled if exact is None else ()
                    note_callers(batch, of_sample, answers, callers, self._faults)
            if self._compiler.enqueues:
                self._enqueue(batch, settled)
            if self.events.listeners or batch.traced:
                self._record(batch, settled, answers, took_us)

    def _give_back(
        self, batch: Batch, settled: Sequence[Settled], answers: Sequence[Answer]
    ) -> None:
        """Gives back what a batch was charged that is refused as a whole.

        Requests that were refused one by one, as `answers` say, have got theirs back.
        """
        if len(batch.planned) != len(settled):
            return  # nobody can tell whose these are
        for index, planned in enumerate(batch.planned):
            refused = bool(answers) and isinstance(answers[index], Refusal)
            if isinstance(planned, PlannedRequest) and planned.hits and not refused:
                self._answering.give_back(planned, settled[index])

    def _enqueue(self, batch: Batch, found: Sequence[Settled]) -> None:
        """Hands on those denied requests of a batch whose rules have a queue."""
        enqueueing = self.enqueueing
        if enqueueing is None:
            return
        try:
            for index, settled in enumerate(found):
                planned = batch.planned[index]
                if settled.verdict is Verdict.DENIED and isinstance(planned, PlannedRequest):
                    rule = queue_of(planned.plans, settled)
                    if rule is not None:
                        enqueueing.take(rule, batch.bodies[index])
        except Exception as error:
            self._faults.note("denied requests could not be queued", error)

    def _record(
        self,
        batch: Batch,
        settled: Sequence[Settled] | None,
        answers: Sequence[Answer],
        took_us: int,
    ) -> None:
        """Tells of a batch. Nothing is settled after a fault."""
        decided = DecidedBatch(
            batch.bodies, batch.planned, settled, answers, batch.origins, took_us
        )
        self.events.tell(decided, batch.traced)

    def _fail(self, batch: Batch, error: Exception) -> None:
        """Ends a batch by a fault of ours: refuses what needed the store, or was not planned."""
        if batch.finished:
            self._faults.note("a store failed after its answers", error)
            return
        batch.failed = True
        answers: list[Answer] = []
        for one in batch.planned:
            if isinstance(one, PlannedRequest) and one.hits:
                answers.append(self.bug(error))
            else:
                known = one.settled if isinstance(one, PlannedRequest) else DROPPED
                answers += self._answering.answer([one], [known])
        answers += [self.bug(error) for _ in range(len(batch.bodies) - len(answers))]
        self._tell(batch, answers)
        if self.events.listeners or batch.traced:
            self._record(batch, None, answers, elapsed_us() - batch.started_us)

    def _tell(self, batch: Batch, answers: list[Answer]) -> None:
        batch.finished = True
        try:
            batch.answer(answers)
            if self._decisions is not None:
                self._decisions.write(batch.bodies, answers)
        except Exception as error:
            self._faults.note("answers could not be handed on", error)
