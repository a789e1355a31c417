"""The limiter of programs without asyncio. Methods say and do what those of `Limiter` do."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Mapping
from typing import ParamSpec, Self, TypeVar

from ratelimit_client.clock import Clock, SystemClock
from ratelimit_client.descriptors import (
    Computed,
    Cost,
    Described,
    computed,
    held_for,
    request_of,
    reserving,
)
from ratelimit_client.errors import UnavailableError
from ratelimit_client.model import Decision, DeniedError, Request, Value
from ratelimit_client.steps import Ask, Asking, OnFailure, Step, Steps, charged_by, log, passed
from ratelimit_client.tls import TLS
from ratelimit_client.transport import SyncTransport, sync_transport

__all__ = ["SyncBudget", "SyncLease", "SyncLimiter"]

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")


class SyncLimiter:
    """`Limiter`, blocking. Threads share one. It connects with the first call, so fork before."""

    def __init__(
        self,
        address: str,
        *,
        domain: str,
        deadline: float = 0.5,
        on_failure: OnFailure = "open",
        attempts: int = 2,
        remember_denials: int = 0,
        tls: TLS | None = None,
        transport: SyncTransport | None = None,
        clock: Clock | None = None,
    ) -> None:
        """As `Limiter`."""
        self.domain = domain
        self._clock = clock or SystemClock()
        self._asking = Asking(deadline, on_failure, attempts, remember_denials, self._clock)
        self._transport = transport or sync_transport(address, tls)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._transport.close()

    def check(self, *descriptors: Described, cost: int = 1, **entries: Value) -> Decision:
        """As `Limiter.check`."""
        return self._run(self._asking.check(self._of(descriptors, entries, cost)))

    def charge(self, *descriptors: Described, cost: int, **entries: Value) -> Decision:
        """As `Limiter.charge`."""
        return self._run(self._asking.ask(self._of(descriptors, entries, cost)))

    def refund(self, *descriptors: Described, cost: int = 1, **entries: Value) -> Decision:
        """As `Limiter.refund`."""
        return self._run(self._asking.refund(self._of(descriptors, entries, cost)))

    def wait(
        self, *descriptors: Described, at_most: float, cost: int = 1, **entries: Value
    ) -> Decision:
        """As `Limiter.wait`."""
        return self._run(self._asking.wait(self._of(descriptors, entries, cost), at_most))

    def lease(self, *descriptors: Described, cost: int = 1, **entries: Value) -> SyncLease:
        """As `Limiter.lease`: `with limiter.lease(user="alice")`."""
        request = self._of(descriptors, entries, cost)
        return SyncLease(self, request, self._passed(request))

    def reserve(
        self, *descriptors: Described, cost: int, ttl: float | None = None, **entries: Value
    ) -> SyncBudget:
        """As `Limiter.reserve`: `with limiter.reserve(user="alice", cost=500) as budget`."""
        request = reserving(self._of(descriptors, entries, cost), ttl)
        return SyncBudget(self, request, self._reserved(request))

    def limited(
        self, *descriptors: Mapping[str, Computed], cost: Cost = 1, **entries: Computed
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """As `Limiter.limited`, for functions that are no coroutine functions."""

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            if inspect.iscoroutinefunction(function):
                raise TypeError(f"{function!r} is a coroutine function: use Limiter")

            @functools.wraps(function)
            def checked(*arguments: P.args, **keywords: P.kwargs) -> R:
                values, own = computed(descriptors, entries, cost, arguments, keywords)
                decision = self.check(*values, cost=own)
                if not decision:
                    raise DeniedError(decision)
                return function(*arguments, **keywords)

            return checked

        return decorate

    def _of(
        self, descriptors: tuple[Described, ...], entries: Mapping[str, Value], cost: int
    ) -> Request:
        return request_of(self.domain, descriptors, entries, cost)

    def _passed(self, request: Request) -> Decision:
        return passed(self._run(self._asking.ask(request)))

    def _reserved(self, request: Request) -> Decision:
        return passed(self._run(self._asking.reserve(request)))

    def _run(self, steps: Steps[T]) -> T:
        try:
            step = next(steps)
            while True:
                try:
                    answer = self._do(step)
                except UnavailableError as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as ended:
            result: T = ended.value
            return result
        finally:
            steps.close()

    def _do(self, step: Step) -> Decision | None:
        if isinstance(step, Ask):
            return self._transport.ask(step.request, step.seconds)
        self._clock.sleep(step.seconds)
        return None

    def _give_back(self, request: Request, lease: str) -> None:
        self._run(self._asking.give_back(request, lease))

    def _extend(self, request: Request, reservation: str) -> Decision:
        return self._run(self._asking.extend(request, reservation))

    def _settle(
        self, request: Request, reserved: int | None, actual: int, decision: Decision
    ) -> Decision:
        return self._run(self._asking.settle(request, reserved, actual, decision))


class SyncLease:
    """As `Lease`."""

    def __init__(self, limiter: SyncLimiter, request: Request, decision: Decision) -> None:
        self.decision = decision
        self._limiter = limiter
        self._request = request
        self._held = bool(decision.lease)
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """As `Lease.release`."""
        with self._lock:
            held, self._held = self._held, False
        if held:
            self._limiter._give_back(self._request, self.decision.lease)  # noqa: SLF001


class SyncBudget:
    """As `Budget`. It is for one thread."""

    def __init__(self, limiter: SyncLimiter, request: Request, decision: Decision) -> None:
        self.decision = decision
        self.spent: int | None = None
        self._limiter = limiter
        self._request = request
        self._charged = charged_by(request, decision)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        actual = self.spent
        if actual is None and self._charged is None:
            actual = self._request.cost
        if actual is None or actual == self._charged:
            return
        try:
            self.settle(actual)
        except UnavailableError as failure:
            if error is None:
                raise
            log.warning("a budget was not settled: %s", failure)

    def spend(self, cost: int) -> None:
        """As `Budget.spend`."""
        self.spent = (self.spent or 0) + cost

    def extend(self, ttl: float | None = None) -> Decision:
        """As `Budget.extend`."""
        request = held_for(self._request, ttl)
        if self._charged is not None:  # nothing is held that could end
            return self.decision
        return self._limiter._extend(request, self.decision.reservation)  # noqa: SLF001

    def settle(self, actual: int | None = None) -> Decision:
        """As `Budget.settle`."""
        if actual is None:
            actual = self.spent or 0
        self.spent, charged, self._charged = actual, self._charged, actual
        return self._limiter._settle(  # noqa: SLF001
            self._request, charged, actual, self.decision
        )
