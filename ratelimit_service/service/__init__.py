"""Bytes in, bytes out: what every transport and `/json` call.

A batch of requests is decoded, planned, charged together and answered. No request can stop
the process or another request of its batch: what goes wrong becomes that request's refusal.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ratelimit_service import limiter, wire
from ratelimit_service.clock import elapsed_us
from ratelimit_service.errors import BadRequestError, PolicyError, StatusCode
from ratelimit_service.limiter import Plan
from ratelimit_service.model import Hit, Outcome, Request
from ratelimit_service.observer import Counters
from ratelimit_service.rules.tree import Snapshot
from ratelimit_service.service.memo import Memo, Remembered
from ratelimit_service.settings import Settings
from ratelimit_service.stores import Outcomes, Store

__all__ = ["Answer", "Refusal", "Service"]

log = logging.getLogger(__name__)

_MAX_DOMAINS_LOGGED = 1_000
_BUG_LOG_INTERVAL_US = 1_000_000


class Refusal(NamedTuple):
    """An error instead of an answer: the gRPC status and a sentence for the caller."""

    code: StatusCode
    message: str


Answer = bytes | Refusal
"""A serialized RateLimitResponse, or why there is none."""


class _Asked(NamedTuple):
    """One request on its way to its answer; `request` is None where plans were remembered."""

    request: Request | None
    plans: list[Plan]
    hits: list[Hit]


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
        self._memo = Memo()
        self._domains_logged: set[str] = set()
        self._bug_logged_us: int | None = None

    async def decide(self, bodies: Sequence[bytes]) -> list[Answer]:
        """As `submit`, for callers that wait."""
        future: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()

        def answered(answers: list[Answer]) -> None:
            if not future.done():  # as it is once its waiter was cancelled
                future.set_result(answers)

        self.submit(bodies, answered)
        return await future

    def submit(self, bodies: Sequence[bytes], done: Callable[[list[Answer]], None]) -> None:
        """Answers serialized RateLimitRequests: `done` gets the answers in their order.

        `done` is called once, before this returns or later; nothing is raised. Each request is
        settled atomically by itself, all against the same rules.
        """
        started = elapsed_us()
        snapshot = self._snapshot()
        asked = [self._ask(body, snapshot) for body in bodies]
        charged = [one for one in asked if isinstance(one, _Asked) and one.hits]

        def settled(outcomes: list[Outcomes]) -> None:
            each = iter(outcomes)
            answers = [
                one
                if isinstance(one, Refusal)
                else self._answer(one, next(each) if one.hits else ())
                for one in asked
            ]
            self._counters.latency.add(elapsed_us() - started, len(bodies))
            done(answers)

        if charged:
            self._store.charge([one.hits for one in charged], settled)
        else:
            settled([])

    def _ask(self, body: bytes, snapshot: Snapshot) -> _Asked | Refusal:
        plans = self._recall(body, snapshot.number)
        if plans is not None:
            return _Asked(None, plans, [planned.hit for planned in plans if planned.hit])
        try:
            request = wire.decode_request(body)
            plans = limiter.plan(request, snapshot, self._settings)
        except BadRequestError as error:
            self._counters.refusals[error.reason] += 1
            return Refusal(error.code, str(error))
        except Exception as error:
            return self._bug(error)
        if request.domain not in snapshot.domains and request.domain not in snapshot.unserved:
            self._unknown_domain(request)
        else:
            self._remember(body, request, plans, snapshot.number)
        return _Asked(request, plans, [planned.hit for planned in plans if planned.hit])

    def _recall(self, body: bytes, number: int) -> list[Plan] | None:
        """The plans of a request all of whose parts are remembered."""
        found = self._memo.get(body, number)
        if found is not None:
            return [found.plan]
        split = wire.split_request(body)
        if split is None:
            return None
        parts, addend = split
        plans = []
        for part in parts:
            found = self._memo.get(part, number)
            if found is None:
                return None
            plans.append(
                found.plan.with_addend(addend) if addend and not found.own_addend else found.plan
            )
        return plans

    def _remember(self, body: bytes, request: Request, plans: Sequence[Plan], number: int) -> None:
        """Remembers the plans of a request whose descriptors have nothing to do with each other."""
        split = wire.split_request(body)
        if split is None or self._settings.dynamic_metadata or not limiter.independent(plans):
            return
        parts, addend = split
        for part, planned, descriptor in zip(parts, plans, request.descriptors, strict=True):
            own_addend = descriptor.hits_addend is not None
            plain = planned.with_addend(1) if addend and not own_addend else planned
            self._memo.put(part, Remembered(number, plain, own_addend))

    def _answer(self, asked: _Asked, outcomes: Outcomes) -> Answer:
        in_order = iter(outcomes)
        each: list[Outcome | None] = [
            next(in_order) if planned.hit else None for planned in asked.plans
        ]
        try:
            decision = limiter.answer(asked.request, asked.plans, each, self._settings)
            answer = wire.encode_decision(decision)
        except PolicyError as error:
            self._counters.refusals["policy"] += 1
            return Refusal(StatusCode.UNAVAILABLE, str(error))
        except Exception as error:
            return self._bug(error)
        limiter.tally(asked.plans, each, decision, self._counters, self._settings)
        return answer

    def _unknown_domain(self, request: Request) -> None:
        self._counters.unknown_domains += len(request.descriptors)
        logged = self._domains_logged
        if request.domain not in logged and len(logged) < _MAX_DOMAINS_LOGGED:
            logged.add(request.domain)
            log.warning(
                "no rule file has the domain %.100r: its requests are allowed", request.domain
            )

    def _bug(self, error: Exception) -> Refusal:
        """A fault of ours: the caller gets an error, the log a traceback at most once a second."""
        self._counters.refusals["internal"] += 1
        now = elapsed_us()
        if self._bug_logged_us is None or now - self._bug_logged_us >= _BUG_LOG_INTERVAL_US:
            self._bug_logged_us = now
            log.error("a request could not be decided: please report this", exc_info=error)
        return Refusal(
            StatusCode.INTERNAL, "the service failed to decide this request: see its log"
        )
