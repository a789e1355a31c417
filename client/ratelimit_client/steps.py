"""What a limiter does, once for sync and async: generators that say what to ask and how to wait.

Each yields steps and is sent their answers; an `UnavailableError` of a call is thrown into it.
Nothing here does I/O, sleeps or knows an event loop.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from ratelimit_client.clock import Clock
from ratelimit_client.denials import Denials
from ratelimit_client.errors import NotTakenError, UnavailableError
from ratelimit_client.model import Call, Decision, DeniedError, Reason, Request

__all__ = ["Ask", "Asking", "OnFailure", "Sleep", "Step", "Steps", "charged_by", "passed"]

log = logging.getLogger("ratelimit_client")

OnFailure = Literal["open", "closed", "raise"]
"""What decides when the service gives no answer."""

_PAUSE_SECONDS = 0.02
"""The first pause before something is tried again; each further one is twice as long."""

_LONGEST_PAUSE_SECONDS = 2.0
_SPREAD = 0.1
"""Who waits comes back up to this much later, so that not all come back in one moment."""

_GIVE_BACK_ATTEMPTS = 3
_LEAST_SECONDS = 0.001
_LOG_SECONDS = 10.0
_FILL_ATTEMPTS = 3
_UNSETTLED = "what a budget has used may not be counted, and its hold ends by itself"


@dataclass(frozen=True, slots=True)
class Ask:
    """Sends a request. The answer is awaited for so many seconds."""

    request: Request
    seconds: float


@dataclass(frozen=True, slots=True)
class Sleep:
    """Does nothing for so many seconds."""

    seconds: float


Step = Ask | Sleep
T = TypeVar("T")

_MICROSECOND = 0.000_001
"""Times since 1970 are no more exact as floating-point numbers."""
Steps = Generator[Step, Decision | None, T]


class Asking:
    """How a limiter asks, waits, tries again, and decides where there is no answer."""

    def __init__(
        self,
        deadline: float,
        on_failure: OnFailure,
        attempts: int,
        remember_denials: int,
        clock: Clock,
    ) -> None:
        """Times are those of the clock."""
        if not deadline > 0:
            raise ValueError(f"deadline is {deadline}: give seconds above 0")
        if on_failure not in {"open", "closed", "raise"}:
            raise ValueError(f"on_failure is {on_failure!r}: allowed are open, closed and raise")
        if attempts < 1:
            raise ValueError(f"attempts is {attempts}: give 1 or more")
        if remember_denials < 0:
            raise ValueError(f"remember_denials is {remember_denials}: give 0 or more")
        self._deadline = deadline
        self._on_failure = on_failure
        self._attempts = attempts
        self._denials = Denials(remember_denials) if remember_denials else None
        self._now = clock.now
        self._wall = clock.wall
        self._lock = threading.Lock()
        self._logged_at: float | None = None
        self._unlogged = 0
        self._said_unlimited = False

    def check(self, request: Request) -> Steps[Decision]:
        """Asks once, unless the denial is known."""
        asked_at = self._now()
        known = self._denials.get(request, asked_at) if self._denials else None
        if known is not None:  # itself it is false
            return known
        decision = yield from self.ask(request)
        if self._denials and not decision.allowed and decision.counted:
            self._denials.put(request, decision, asked_at, self._ends_at(decision))
        return decision

    def _ends_at(self, decision: Decision) -> float | None:
        """When a denial ends by our own clock, if the service says so by its own."""
        until = decision.denied_until
        return None if until is None else self._now() + until - self._wall() - _MICROSECOND

    def ask(self, request: Request) -> Steps[Decision]:
        """Asks the service in any case; `on_failure` decides where it gives no answer."""
        try:
            decision = yield from self._ask(request, self._attempts, again=False)
        except UnavailableError as error:
            return self._by_policy(error)
        if decision.reason is Reason.NO_LIMIT:
            self._say_unlimited(request)
        return decision

    def _by_policy(self, error: UnavailableError, outcome: str = "") -> Decision:
        if self._on_failure == "raise":
            raise error
        allowed = self._on_failure == "open"
        done = "allowed" if allowed else "denied"
        outcome = outcome or f"requests are {done} (on_failure={self._on_failure})"
        self._say(f"{error}; {outcome}")
        return Decision(allowed, Reason.UNAVAILABLE, detail=str(error))

    def wait(self, request: Request, at_most: float) -> Steps[Decision]:
        """Asks until the request may go, or would have to wait for longer."""
        until, attempt = self._now() + at_most, 0
        while True:
            decision = yield from self.check(request)
            if decision.allowed:
                if decision.delay:
                    yield Sleep(decision.delay)
                return decision
            attempt += 1
            wait = decision.retry_after
            pause = _backoff(attempt) if wait is None else _later(wait)
            if self._now() + pause > until:
                return decision
            yield Sleep(pause)

    def refund(self, request: Request) -> Steps[Decision]:
        """Gives hits back."""
        if self._denials:
            self._denials.clear()
        return (yield from self.ask(request.given_back()))

    def reserve(self, request: Request) -> Steps[Decision]:
        """Holds an estimate, or charges it where nothing is held.

        A cost of 0 only looks, and costs of descriptors are charged: neither can be held.
        """
        if not request.cost or any(each.cost is not None for each in request.descriptors):
            return (yield from self.ask(request))
        reserving = replace(request, call=Call.RESERVE)
        try:
            decision = yield from self._ask(reserving, self._attempts, again=False)
        except NotTakenError:
            return (yield from self.ask(request))
        except UnavailableError as error:
            return self._by_policy(error)
        if decision.reservation or decision.detail:
            return decision
        if decision.allowed:
            return (yield from self.ask(request))
        return (yield from self._told(request))

    def _told(self, request: Request) -> Steps[Decision]:
        """What a look says of a reservation that was denied, of which the answer says nothing."""
        look = yield from self.ask(request.costing(0))
        statuses = tuple(
            replace(each, allowed=False, remaining=0)
            if each.limit is not None and each.remaining < request.cost
            else each
            for each in look.statuses
        )
        return replace(look, allowed=False, reason=Reason.OVER_LIMIT, statuses=statuses)

    def extend(self, request: Request, reservation: str) -> Steps[Decision]:
        """Holds what is held for longer. To try again does no harm."""
        extending = replace(request, call=Call.RESERVE, reservation=reservation)
        try:
            return (yield from self._ask(extending, _GIVE_BACK_ATTEMPTS, again=True))
        except UnavailableError as error:
            return self._by_policy(error)

    def settle(
        self, request: Request, reserved: int | None, actual: int, decision: Decision
    ) -> Steps[Decision]:
        """Settles what is held, or charges and gives back what was reserved otherwise.

        If it is held, `reserved` is None. What was charged is charged further, or given back in
        part. Where there is no room for all of it, what is left of the limit is charged.
        `decision` is that of the reservation, and the answer if nothing is left to do.
        """
        if reserved is None:
            return (yield from self._settle(request, actual, decision.reservation))
        if actual == reserved:
            return decision
        if actual < reserved:
            return (yield from self.refund(request.costing(reserved - actual)))
        extra = actual - reserved
        charged = yield from self.ask(request.costing(extra))
        for _ in range(_FILL_ATTEMPTS):
            if charged.allowed or not charged.counted:
                break
            look = yield from self.ask(request.costing(0))
            room = min(look.remaining or 0, extra) if look.allowed else 0
            if not room or (yield from self.ask(request.costing(room))).allowed:
                break
        return charged

    def _settle(self, request: Request, actual: int, reservation: str) -> Steps[Decision]:
        """Counts what was used. To try again does no harm: it is counted once."""
        if self._denials:
            self._denials.clear()
        settling = replace(request, cost=actual, call=Call.SETTLE, reservation=reservation)
        try:
            return (yield from self._ask(settling, _GIVE_BACK_ATTEMPTS, again=True))
        except UnavailableError as error:
            return self._by_policy(error, _UNSETTLED)

    def give_back(self, request: Request, lease: str) -> Steps[None]:
        """Gives a lease back. If that fails it ends by itself, with its window.

        To try again does no harm: a lease that is not there gives back nothing.
        """
        if self._denials:
            self._denials.clear()
        try:
            yield from self._ask(request.given_back(lease), _GIVE_BACK_ATTEMPTS, again=True)
        except UnavailableError as error:
            self._say(f"a lease was not given back and ends with its window: {error}")

    def _ask(self, request: Request, attempts: int, *, again: bool) -> Steps[Decision]:
        """Asks until there is an answer. What may have been counted is sent `again` if it may."""
        until, attempt = self._now() + self._deadline, 1
        while True:
            try:
                answer = yield Ask(request, max(_LEAST_SECONDS, until - self._now()))
            except UnavailableError as error:
                wait = error.retry_after
                pause = _backoff(attempt) if wait is None else _later(wait)
                resumed = self._now() + pause
                if again and not error.retriable:  # it has used up its time
                    until = resumed + self._deadline
                if attempt >= attempts or resumed >= until or not (again or error.retriable):
                    raise
            else:
                if answer is not None:
                    return answer
                raise RuntimeError("a call ended without an answer and without an error")
            attempt += 1
            yield Sleep(pause)

    def _say_unlimited(self, request: Request) -> None:
        """Logs once that no rule limits what is asked: a name may be mistyped."""
        with self._lock:
            logged, self._said_unlimited = self._said_unlimited, True
        if not logged:
            keys = [[key for key, _ in each.entries] for each in request.descriptors]
            log.warning(
                "no limit holds for the domain %r with the entries %s: unless that is meant, look "
                "for a mistyped domain, key or parameter; this is said once",
                request.domain,
                " and ".join(", ".join(map(repr, each)) for each in keys),
            )

    def _say(self, message: str) -> None:
        """Logs a failure, unless others have just been logged."""
        with self._lock:
            now = self._now()
            if self._logged_at is not None and now - self._logged_at < _LOG_SECONDS:
                self._unlogged += 1
                return
            before, self._unlogged, self._logged_at = self._unlogged, 0, now
        others = f" ({before} more since the last line)" if before else ""
        log.warning("%s%s", message, others)


def passed(decision: Decision) -> Decision:
    """The same. Raises DeniedError if it is a denial."""
    if not decision:
        raise DeniedError(decision)
    return decision


def charged_by(request: Request, decision: Decision) -> int | None:
    """What a reservation has charged; None if it is held."""
    if decision.reservation:
        return None
    return request.cost if decision.counted else 0  # what was not counted cannot be given back


def _backoff(attempt: int) -> float:
    """A pause with jitter, for what nobody has set a time for."""
    longest = min(_LONGEST_PAUSE_SECONDS, _PAUSE_SECONDS * (1 << min(attempt - 1, 10)))
    return longest * random.uniform(0.5, 1.0)  # noqa: S311


def _later(wait: float) -> float:
    """Not before the wait is over, and not all at once."""
    return wait + random.uniform(0, max(_PAUSE_SECONDS, _SPREAD * wait))  # noqa: S311
