"""The limiter of asyncio programs."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from typing import Generic, ParamSpec, Protocol, Self, TypeVar

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
from ratelimit_client.transport import AsyncTransport, async_transport

__all__ = ["Budget", "Lease", "Limiter"]

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")


class Limiter:
    """Asks one service about one domain. One is enough for a program; tasks share it.

    It connects with the first call. Use it as a context manager, or `close` it at the end.
    """

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
        transport: AsyncTransport | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`address` is `HOST:PORT` or `unix:PATH` for gRPC, a URL for HTTP.

        `deadline` is in seconds, for all `attempts` of a call together. `on_failure` decides when
        the service gives no answer: `open` allows, `closed` denies, `raise` raises
        UnavailableError. `remember_denials` is how many denials are remembered, so that the
        service is not asked again before their window is over; use it only with rules without
        `concurrency` and `count_denied`. `transport` and `clock` are for tests.

        Raises ValueError for numbers that make no sense and an address without a port,
        MissingExtraError if the library for the address is not installed, LimiterError for files
        of `tls` that cannot be read.
        """
        self.domain = domain
        self._clock = clock or SystemClock()
        self._asking = Asking(deadline, on_failure, attempts, remember_denials, self._clock)
        self._transport = transport or async_transport(address, tls)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections."""
        await self._transport.close()

    async def check(self, *descriptors: Described, cost: int = 1, **entries: Value) -> Decision:
        """Asks whether a request may go on, and counts it if it may.

        Keywords are the entries of a descriptor; mappings are further ones. They pass together or
        not at all. A cost of 0 only looks.

        Raises BadRequestError for what the service refuses, UnavailableError with
        `on_failure="raise"`.
        """
        return await self._run(self._asking.check(self._of(descriptors, entries, cost)))

    async def charge(self, *descriptors: Described, cost: int, **entries: Value) -> Decision:
        """Counts a cost that is known only afterwards. No remembered denial stands in its way.

        A rule counts it beyond its limit only if it says `count_denied`, or the service has
        `--count-denied all`. Raises as `check`.
        """
        return await self._run(self._asking.ask(self._of(descriptors, entries, cost)))

    async def refund(self, *descriptors: Described, cost: int = 1, **entries: Value) -> Decision:
        """Gives hits back, the newest first. Over HTTP the service needs --json-refunds.

        Behind envoyproxy/ratelimit it charges instead: that server knows no refunds.

        It is not tried again if it may have been counted. Raises as `check`.
        """
        return await self._run(self._asking.refund(self._of(descriptors, entries, cost)))

    async def wait(
        self, *descriptors: Described, at_most: float, cost: int = 1, **entries: Value
    ) -> Decision:
        """Waits until the request may go on, and counts it.

        A denied request is asked again when its wait is over, a little later each time so that not
        all come back at once. The answer is a denial if it would have to wait for longer than
        `at_most` seconds. A request that a queue (`max_wait`) has admitted waits for its turn,
        however long the rule lets it. Raises as `check`.
        """
        return await self._run(self._asking.wait(self._of(descriptors, entries, cost), at_most))

    def lease(self, *descriptors: Described, cost: int = 1, **entries: Value) -> Opening[Lease]:
        """Takes a place under a rule with `concurrency`: `async with limiter.lease(user="alice")`.

        The place is given back at the end of the block, also if the task is cancelled. Or await
        it, and `release` it yourself. Without such a rule, and behind envoyproxy/ratelimit, it is
        an ordinary charge that holds no place. Raises DeniedError if there is no place, else as
        `check`.
        """
        request = self._of(descriptors, entries, cost)

        async def take() -> Lease:
            return Lease(self, request, await self._passed(request))

        return Opening(take)

    def reserve(
        self, *descriptors: Described, cost: int, ttl: float | None = None, **entries: Value
    ) -> Opening[Budget]:
        """Holds an estimate, to be settled later: `async with limiter.reserve(...) as budget`.

        It is held for `ttl` seconds, or for as long as the limit lets; `budget.extend` holds it for
        longer.
        Where no limit takes reservations, and where a descriptor has a cost of its own, it is
        charged, and a refund gives back what was not used. Behind envoyproxy/ratelimit that is
        charged once more: that server knows no refunds. With a cost of 0 it only looks, for rules
        with `count_denied`. A descriptor's own cost is not settled. Raises DeniedError if there is
        no room, else as `check`.
        """
        request = reserving(self._of(descriptors, entries, cost), ttl)

        async def take() -> Budget:
            return Budget(self, request, await self._reserved(request))

        return Opening(take)

    def limited(
        self, *descriptors: Mapping[str, Computed], cost: Cost = 1, **entries: Computed
    ) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Awaitable[R]]]:
        """Decorates a coroutine function: each call is checked first.

        Values and the cost may be functions of its arguments. A call raises DeniedError if it is
        denied, else as `check`. Raises TypeError for what is no coroutine function.
        """

        def decorate(function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
            if not inspect.iscoroutinefunction(function):
                raise TypeError(f"{function!r} is no coroutine function: use SyncLimiter")

            @functools.wraps(function)
            async def checked(*arguments: P.args, **keywords: P.kwargs) -> R:
                values, own = computed(descriptors, entries, cost, arguments, keywords)
                decision = await self.check(*values, cost=own)
                if not decision:
                    raise DeniedError(decision)
                return await function(*arguments, **keywords)

            return checked

        return decorate

    def _of(
        self, descriptors: tuple[Described, ...], entries: Mapping[str, Value], cost: int
    ) -> Request:
        return request_of(self.domain, descriptors, entries, cost)

    async def _passed(self, request: Request) -> Decision:
        return passed(await self._run(self._asking.ask(request)))

    async def _reserved(self, request: Request) -> Decision:
        return passed(await self._run(self._asking.reserve(request)))

    async def _run(self, steps: Steps[T]) -> T:
        try:
            step = next(steps)
            while True:
                try:
                    answer = await self._do(step)
                except UnavailableError as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as ended:
            result: T = ended.value
            return result
        finally:
            steps.close()

    async def _do(self, step: Step) -> Decision | None:
        if isinstance(step, Ask):
            return await self._transport.ask(step.request, step.seconds)
        await self._clock.pause(step.seconds)
        return None

    async def _give_back(self, request: Request, lease: str) -> None:
        await self._run(self._asking.give_back(request, lease))

    async def _extend(self, request: Request, reservation: str) -> Decision:
        return await self._run(self._asking.extend(request, reservation))

    async def _settle(
        self, request: Request, reserved: int | None, actual: int, decision: Decision
    ) -> Decision:
        return await self._run(self._asking.settle(request, reserved, actual, decision))


class _Block(Protocol):
    """What ends with its block."""

    async def __aexit__(self, _: object, error: BaseException | None, __: object, /) -> None: ...


H = TypeVar("H", bound=_Block)


class Opening(Generic[H]):
    """To be awaited, or entered as a block."""

    def __init__(self, take: Callable[[], Coroutine[None, None, H]]) -> None:
        self._take = take
        self._held: H | None = None

    def __await__(self) -> Generator[None, None, H]:
        return self._take().__await__()

    async def __aenter__(self) -> H:
        self._held = await self._take()
        return self._held

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._held is not None:
            await self._held.__aexit__(kind, error, trace)


class Lease:
    """A place that is held. Without a rule that hands out leases it holds nothing."""

    def __init__(self, limiter: Limiter, request: Request, decision: Decision) -> None:
        self.decision = decision
        self._limiter = limiter
        self._request = request
        self._held = bool(decision.lease)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await _seen_through(self.release())

    async def release(self) -> None:
        """Gives the place back, once. It is logged if that fails; then it ends with its window."""
        if self._held:
            self._held = False
            await self._limiter._give_back(self._request, self.decision.lease)  # noqa: SLF001


class Budget:
    """A cost that was reserved, and what of it was used.

    At the end of its block it is settled with what was spent. If nobody has reported anything, the
    whole estimate is counted.
    """

    def __init__(self, limiter: Limiter, request: Request, decision: Decision) -> None:
        self.decision = decision
        self.spent: int | None = None
        self._limiter = limiter
        self._request = request
        self._charged = charged_by(request, decision)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        await _seen_through(self._end(error))

    def spend(self, cost: int) -> None:
        """Notes that so much more was used. Nothing is charged yet."""
        self.spent = (self.spent or 0) + cost

    async def extend(self, ttl: float | None = None) -> Decision:
        """Holds the estimate for `ttl` seconds from now on, or for as long as the limit lets.

        The answer is a denial if the hold had ended and others have taken its room; what is held
        stays as it is then. What was charged does not end, and needs no longer. Raises as `check`.
        """
        request = held_for(self._request, ttl)
        if self._charged is not None:  # nothing is held that could end
            return self.decision
        return await self._limiter._extend(request, self.decision.reservation)  # noqa: SLF001

    async def settle(self, actual: int | None = None) -> Decision:
        """Counts what was used in place of what is reserved.

        `actual` is what was used in all, else what `spend` was told. What is held is settled, and
        all that was used is counted. What was charged is charged further, or given back in part:
        without room for all of it, what is left of the limit is charged, and the answer is a
        denial. Raises as `check`.
        """
        if actual is None:
            actual = self.spent or 0
        self.spent, charged, self._charged = actual, self._charged, actual
        return await self._limiter._settle(  # noqa: SLF001
            self._request, charged, actual, self.decision
        )

    async def _end(self, error: BaseException | None) -> None:
        actual = self.spent
        if actual is None and self._charged is None:
            actual = self._request.cost
        if actual is None or actual == self._charged:
            return
        try:
            await self.settle(actual)
        except UnavailableError as failure:
            if error is None:
                raise
            log.warning("a budget was not settled: %s", failure)


_under_way: set[asyncio.Task[None]] = set()
"""The loop itself does not keep them."""


async def _seen_through(work: Coroutine[None, None, None]) -> None:
    """Finishes it, also if who waits for it is cancelled."""
    task = asyncio.ensure_future(work)
    _under_way.add(task)
    task.add_done_callback(_under_way.discard)
    await asyncio.shield(task)
