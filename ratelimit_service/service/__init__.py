"""Bytes in, bytes out: what every transport and `/json` call.

A batch of requests is decoded, planned, charged together and answered. No request can stop
the process or another request of its batch: what goes wrong becomes that request's refusal.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from secrets import token_bytes
from typing import Final, NamedTuple, TypeGuard

from ratelimit_service import limiter, wire
from ratelimit_service.bugs import Bugs
from ratelimit_service.clock import elapsed_us
from ratelimit_service.errors import BadRequestError, PolicyError, StatusCode
from ratelimit_service.limiter import Plan, Stem
from ratelimit_service.model import FailurePolicy, Hit, Outcome, Request
from ratelimit_service.observer import Counters
from ratelimit_service.rules.tree import Domain, Snapshot
from ratelimit_service.service.at_hand import AtHand, Ready
from ratelimit_service.service.decisions import DecisionLog
from ratelimit_service.service.memo import Memo
from ratelimit_service.settings import Settings
from ratelimit_service.stores import (
    AT_ONCE,
    FAILED,
    NEVER,
    Outcomes,
    Store,
    Wanted,
    always,
    wanted_at,
)

__all__ = ["AT_ONCE", "NEVER", "Answer", "Ready", "Refusal", "Service"]

log = logging.getLogger(__name__)

_MAX_DOMAINS_LOGGED: Final = 1_000

_LOG_EVERY_US: Final = 10_000_000
"""How often the log speaks of requests that were decided by policy."""

_WAY_US: Final = 2_000
"""How long before its caller gives up an answer must be known, to be there in time."""


class Refusal(NamedTuple):
    """An error instead of an answer: the gRPC status and a sentence for the caller."""

    code: StatusCode
    message: str


Answer = bytes | Refusal
"""A serialized RateLimitResponse, or why there is none."""


_FAILED: Final = Refusal(
    StatusCode.INTERNAL, "the service failed to decide this request: see its log"
)
_ABANDONED: Final = Refusal(
    StatusCode.DEADLINE_EXCEEDED, "the caller stopped waiting before its hits were counted"
)


class _Asked:
    """One request on its way to its answer. Also what is remembered of requests; never changed.

    `limits` are the encoded limits if every descriptor is simply counted, else None; `request`
    is None where it is not needed for the answer. With `leasing` some hits take leases; `lease`
    is their id, drawn for each call.
    """

    __slots__ = ("hits", "lease", "leasing", "limits", "plans", "request")

    def __init__(
        self,
        plans: Sequence[Plan],
        hits: Sequence[Hit],
        limits: Sequence[bytes] | None,
        request: Request | None,
        leasing: bool,
        lease: bytes = b"",
    ) -> None:
        self.plans = plans
        self.hits = hits
        self.limits = limits
        self.request = request
        self.leasing = leasing
        self.lease = lease


_REQUESTS: Final = 1 << 14
_PARTS: Final = 1 << 16
_STEMS: Final = 1 << 12
"""How many requests, how many of their parts, and how many of what parts have in common up to their
last value, are remembered: some 50 MB at most."""


class Service:
    """Decides batches of serialized requests."""

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        store: Store,
        settings: Settings,
        counters: Counters,
    ) -> None:
        """`snapshot` gives the rules that hold now; one is used for a whole batch."""
        self._snapshot = snapshot
        self._store = store
        self._settings = settings
        self._counters = counters
        self.waits = store.waits
        """Whether decisions wait for somebody else to count."""
        self._planner = limiter.Planner(settings, wire.encode_limit)
        self._requests = Memo[_Asked](_REQUESTS)
        self._parts = Memo[Plan](_PARTS)
        self._stems = Memo[Stem](_STEMS)
        self._plain = not (
            settings.limit_response_headers or settings.dynamic_metadata or settings.shadow_mode
        )
        self._leases = False
        """Whether any request has taken leases yet."""
        self._domains_logged: set[str] = set()
        self._bugs = Bugs()
        self.at_hand = AtHand(counters)
        """Answers for when there is no time."""
        self._decisions = DecisionLog.if_wanted()
        self._uncounted = 0
        """Requests decided by failure policy since the log last said so."""
        self._uncounted_logged_us: int | None = None

    async def decide(self, bodies: Sequence[bytes], deadline_us: int = NEVER) -> list[Answer]:
        """As `submit`, for callers that wait."""
        future: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()

        def answered(answers: list[Answer]) -> None:
            if not future.done():  # as it is once its waiter was cancelled
                future.set_result(answers)

        self.submit(bodies, answered, lambda _: not future.done(), deadline_us)
        return await future

    def submit(
        self,
        bodies: Sequence[bytes],
        done: Callable[[list[Answer]], None],
        wanted: Wanted = always,
        deadline_us: int = NEVER,
    ) -> None:
        """Answers serialized RateLimitRequests: `done` gets the answers in their order.

        `done` is called once, before this returns or later; nothing is raised. Each request is
        settled atomically by itself, all against the same rules. A request that is not `wanted`
        any more when its turn comes to be sent to the store is not charged, nor is one after the
        deadline: the moment, by `clock.elapsed_us`, at which the callers stop waiting. With the
        deadline `AT_ONCE` a request is decided without waiting for a store.
        """
        if self._decisions is not None:
            done = self._decisions.before(done, bodies)
        batch = _Batch(done, len(bodies), elapsed_us())
        try:
            snapshot = self._snapshot()
            number = snapshot.number
            remembered = self._requests.get
            hurried = deadline_us == AT_ONCE and self.waits
            ask = self._ask_in_haste if hurried else self._ask
            asked = [remembered(body, number) or ask(body, snapshot) for body in bodies]
            if self._leases:
                asked = [
                    _leased(one) if isinstance(one, _Asked) and one.leasing else one
                    for one in asked
                ]
            batch.asked = asked
            if hurried:
                batch.bodies = bodies
            charged = [one.hits for one in asked if isinstance(one, _Asked) and one.hits]
            if len(charged) < len(asked):  # hardly ever
                batch.places = places = [
                    place for place, one in enumerate(asked) if isinstance(one, _Asked) and one.hits
                ]
                wanted = partial(wanted_at, wanted, places)
            if charged:
                settled = partial(self._settled, batch)
                self._store.charge(charged, settled, wanted, deadline_us - _WAY_US)
            else:
                self._settled(batch, [])
        except Exception as error:
            self._fail(batch, error)

    def _settled(self, batch: _Batch, outcomes: Sequence[Outcomes]) -> None:
        """Answers a batch; these are the outcomes of its requests that were charged."""
        if batch.over:
            return  # it was answered when the store failed
        try:
            found = outcomes if batch.places is None else _of_all(batch, outcomes)
            answers = [
                self._answer(one, each) for one, each in zip(batch.asked, found, strict=True)
            ]
            self._counters.latency.add(elapsed_us() - batch.started_us, batch.size)
            for place, body in enumerate(batch.bodies):  # of those that there was no time for
                self._keep_at_hand(body, batch.asked[place], found[place], answers[place])
        except Exception as error:
            self._fail(batch, error)
        else:
            self._tell(batch, answers)

    def _keep_at_hand(
        self, body: bytes, asked: _Asked | Answer, outcomes: Outcomes, answer: Answer
    ) -> None:
        """Keeps an answer for the next time, if nothing was counted for it.

        Then failure policies have decided it, or the local cache knows who is over.
        """
        if not (isinstance(asked, _Asked) and isinstance(answer, bytes) and outcomes):
            return
        for outcome in outcomes:
            if outcome is not None and (outcome.local or not outcome.over):
                return
        found = limiter.verdict(asked.plans, outcomes) if asked.limits is not None else None
        if found is not None:
            self.at_hand.put(body, Ready(answer, asked.plans, outcomes, found))

    def _fail(self, batch: _Batch, error: Exception) -> None:
        """Ends a batch by a fault of ours: refuses what needed the store, or was not planned."""
        if batch.over:
            self._bugs.note("a store failed after its answers", error)
            return
        answers: list[Answer] = [
            self.bug(error) if isinstance(one, _Asked) and one.hits else self._answer(one, ())
            for one in batch.asked
        ]
        answers += [self.bug(error) for _ in range(batch.size - len(answers))]
        self._tell(batch, answers)

    def _tell(self, batch: _Batch, answers: list[Answer]) -> None:
        batch.over = True
        try:
            batch.done(answers)
        except Exception as error:
            self._bugs.note("answers could not be handed on", error)

    def bug(self, error: Exception) -> Refusal:
        """A fault of ours: what its request is answered; the log gets a traceback now and then."""
        self._counters.refusals["internal"] += 1
        self._bugs.note("a request could not be decided", error)
        return _FAILED

    def _ask(self, body: bytes, snapshot: Snapshot) -> _Asked | Answer:
        """Plans a request that is not remembered as a whole; its parts may be."""
        try:
            split = wire.split_request(body)
            if split is not None:
                plans, remembered = self._plan_parts(split, snapshot)
                if plans:
                    asked = self._asked(plans, None)
                    if remembered:
                        self._requests.put(body, snapshot.number, asked)
                    return asked
            request = wire.decode_request(body)
            return self._plan_whole(request, split, snapshot)
        except BadRequestError as error:
            self._counters.refusals[error.reason] += 1
            return Refusal(error.code, str(error))
        except Exception as error:
            return self.bug(error)

    def _ask_in_haste(self, body: bytes, snapshot: Snapshot) -> _Asked | Answer:
        """As `_ask`, for a request that there is no time for: it is answered without a plan.

        Unless a failure policy other than `open` may hold for it. Callers that are known to be
        over their limits have nearly always been remembered, so they do not come here.
        """
        split = wire.split_request(body)
        domain = self._domain(split, snapshot) if split else None
        if split is None or domain is None:
            return self._ask(body, snapshot)
        for policy in domain.policies:
            if (policy or self._settings.failure_policy) is not FailurePolicy.OPEN:
                return self._ask(body, snapshot)
        count = len(split.parts)
        self._counters.decisions["ok"] += 1
        self._counters.policy_decisions[FailurePolicy.OPEN] += count
        self._by_policy()
        return wire.encode_uncounted(count, FailurePolicy.OPEN.value)

    def _plan_whole(self, request: Request, split: wire.Split | None, snapshot: Snapshot) -> _Asked:
        """Plans what cannot be planned part by part; the parts may be remembered all the same."""
        plans = self._planner.plan(request, snapshot)
        asked = self._asked(plans, request if self._settings.dynamic_metadata else None)
        if request.domain not in snapshot.domains:
            if not snapshot.never_loaded(request.domain):
                self._unknown_domain(request)
        elif split and not asked.request and all(each.terms.independent for each in plans):
            for part, planned in zip(split.parts, plans, strict=True):
                self._parts.put(part, snapshot.number, planned)
        return asked

    def _plan_parts(self, split: wire.Split, snapshot: Snapshot) -> tuple[list[Plan], bool]:
        """Plans each descriptor by itself; no plans if this does not do.

        Also tells whether all of them were remembered.
        """
        plans, remembered = [], True
        for part in split.parts:
            planned = self._parts.get(part, snapshot.number)
            if planned is None:
                remembered = False
                planned = self._plan_part(part, split, snapshot)
                if planned is None:
                    return [], False
                self._parts.put(part, snapshot.number, planned)
            plans.append(planned)
        return plans, remembered

    def _plan_part(self, part: bytes, split: wire.Split, snapshot: Snapshot) -> Plan | None:
        """Plans a descriptor that is not remembered; all but its last value may be."""
        value_at = wire.last_value_at(part, split.descriptor_at)
        stem = self._stems.get(part[:value_at], snapshot.number)
        if stem is not None:
            try:
                return stem.plan(part[value_at:])
            except UnicodeDecodeError:
                return None
        domain = self._domain(split, snapshot)
        entries = wire.plain_entries(part, split.descriptor_at)
        if domain is None or entries is None:
            return None
        if 0 < value_at < len(part):
            stem = self._planner.stem(domain, entries, split.addend, snapshot)
            if stem is not None:
                self._stems.put(part[:value_at], snapshot.number, stem)
        return self._planner.plan_alone(domain, entries, split.addend, snapshot)

    def _domain(self, split: wire.Split, snapshot: Snapshot) -> Domain | None:
        if self._settings.dynamic_metadata:
            return None  # which needs the request as it was
        try:
            return snapshot.domains.get(split.domain)
        except UnicodeDecodeError:
            return None

    def _asked(self, plans: Sequence[Plan], request: Request | None) -> _Asked:
        hits: list[Hit] = []
        limits: list[bytes] = []
        leasing = False
        for planned in plans:
            terms, _, charged = planned
            hits += charged
            if terms.plain and not charged[0].refund:
                limits.append(terms.shown)
            if terms.leasing and not charged[0].refund:
                leasing = self._leases = True
        simply_counted = self._plain and len(limits) == len(plans)
        return _Asked(plans, hits, limits if simply_counted else None, request, leasing)

    def _answer(self, asked: _Asked | Answer, outcomes: Outcomes) -> Answer:
        if not isinstance(asked, _Asked):
            return asked
        if asked.hits and not outcomes:
            if outcomes is FAILED:  # the store has logged why
                self._counters.refusals["internal"] += 1
                return _FAILED
            self._counters.refusals["abandoned"] += 1
            return _ABANDONED
        try:
            if asked.limits is not None and _all_within(outcomes):
                answer = wire.encode_within(asked.limits, outcomes)
                if asked.lease and any(map(limiter.takes_lease, asked.hits, outcomes)):
                    answer += wire.encode_request_header(limiter.lease_header(asked.lease))
                limiter.tally_within(asked.plans, outcomes)
                self._counters.decisions["ok"] += 1
                return answer
            if asked.limits is not None:
                answer = self._plain_answer(asked, asked.limits, outcomes)
                if answer:
                    return answer
            in_order = iter(outcomes)
            each = [list(islice(in_order, len(planned.hits))) for planned in asked.plans]
            decision = limiter.answer(asked.request, asked.plans, each, self._settings, asked.lease)
            answer = wire.encode_decision(decision)
            limiter.tally(asked.plans, each, decision, self._counters, self._settings)
            if decision.metadata and "by_policy" in decision.metadata:
                self._by_policy()
        except PolicyError as error:
            self._counters.refusals["policy"] += 1
            self._counters.policy_decisions[FailurePolicy.ERROR] += 1
            self._by_policy()
            return Refusal(StatusCode.UNAVAILABLE, str(error))
        except Exception as error:
            return self.bug(error)
        return answer

    def _plain_answer(self, asked: _Asked, limits: Sequence[bytes], outcomes: Outcomes) -> bytes:
        """The answer to a request of plain descriptors; nothing if it takes the long way."""
        found = limiter.verdict(asked.plans, outcomes)
        if found is None:
            return b""
        header = b""
        if asked.lease and not found.denied:
            for hit, outcome in zip(asked.hits, outcomes, strict=True):
                if outcome is not None and not outcome.over and limiter.takes_lease(hit, outcome):
                    header = wire.encode_request_header(limiter.lease_header(asked.lease))
        answer = wire.encode_plain(
            found.denied, found.statuses, limits, outcomes, found.by_policy, header
        )
        limiter.tally_plain(asked.plans, outcomes, found, self._counters)
        if found.by_policy:
            self._by_policy()
        return answer

    def _unknown_domain(self, request: Request) -> None:
        self._counters.unknown_domains += len(request.descriptors)
        logged = self._domains_logged
        if request.domain not in logged and len(logged) < _MAX_DOMAINS_LOGGED:
            logged.add(request.domain)
            log.warning(
                "no rule file has the domain %.100r: its requests are allowed", request.domain
            )

    def _by_policy(self) -> None:
        """Says now and then that requests are decided without a count."""
        self._uncounted += 1
        now = elapsed_us()
        if self._uncounted_logged_us is None or now - self._uncounted_logged_us >= _LOG_EVERY_US:
            log.warning(
                "%d requests decided by failure policy, not by count: /healthcheck says why",
                self._uncounted,
            )
            self._uncounted, self._uncounted_logged_us = 0, now


class _Batch:
    """One call of `submit`: its answers are given once, whatever the store does or fails to do."""

    __slots__ = ("asked", "bodies", "done", "over", "places", "size", "started_us")

    def __init__(self, done: Callable[[list[Answer]], None], size: int, started_us: int) -> None:
        self.done = done
        self.size = size
        self.started_us = started_us
        self.asked: Sequence[_Asked | Answer] = ()
        self.bodies: Sequence[bytes] = ()
        """Of a batch that there is no time for."""
        self.places: list[int] | None = None
        """Which of them were charged, if not all."""
        self.over = False


def _of_all(batch: _Batch, outcomes: Sequence[Outcomes]) -> Sequence[Outcomes]:
    """Outcomes for each request of a batch: none for those that were not charged."""
    if batch.places is None:
        return outcomes
    found: list[Outcomes] = [()] * batch.size
    for place, each in zip(batch.places, outcomes, strict=True):
        found[place] = each
    return found


def _leases(hit: Hit) -> bool:
    return hit.measure.algorithm == "concurrency" and not hit.refund


def _leased(asked: _Asked) -> _Asked:
    """The same with an id of its own for the leases that the request takes."""
    lease = token_bytes(limiter.LEASE_BYTES)
    hits = [hit._replace(lease=lease) if _leases(hit) else hit for hit in asked.hits]
    return _Asked(asked.plans, hits, asked.limits, asked.request, asked.leasing, lease)


def _all_within(outcomes: Outcomes) -> TypeGuard[Sequence[Outcome]]:
    """Whether every hit was counted by the store, and none is over."""
    for outcome in outcomes:  # noqa: SIM110 -- a generator costs more than all of the rest
        if outcome is None or outcome[0] or outcome[4]:
            return False
    return True
