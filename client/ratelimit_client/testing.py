"""Limiters for tests: one that answers as it is told, and one with the real rules on a clock.

Neither needs a service, and neither waits: their clocks move when tests move them, or when
something would have to wait. The second needs the extra `testing`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from ratelimit_client.errors import MissingExtraError, NotTakenError, UnavailableError
from ratelimit_client.limiter import Limiter
from ratelimit_client.model import Call, Decision, Limit, Reason, Request, Status, Unit, Value
from ratelimit_client.steps import OnFailure
from ratelimit_client.sync import SyncLimiter

__all__ = ["FakeLimiter", "FakeSyncLimiter", "VirtualClock", "VirtualLimiter", "VirtualSyncLimiter"]

_LIMIT = Limit(1, Unit.MINUTE)
_MILLION = 1_000_000
_START = datetime(2026, 1, 1, tzinfo=UTC)


class VirtualClock:
    """A clock that stands still until it is moved. To sleep moves it."""

    def __init__(self, start: datetime = _START) -> None:
        """`start` is the moment at which it stands at first; it must have a time zone."""
        self._start_us = round(start.timestamp() * _MILLION)
        self._passed_us = 0

    @property
    def now_us(self) -> int:
        """Microseconds since the Unix epoch."""
        return self._start_us + self._passed_us

    def advance(self, seconds: float) -> None:
        """Lets time pass. Raises ValueError for less than 0."""
        if seconds < 0:
            raise ValueError(f"a clock cannot go back by {-seconds} s")
        self._passed_us += round(seconds * _MILLION)

    def now(self) -> float:
        """As `Clock.now`."""
        return self._passed_us / _MILLION

    def wall(self) -> float:
        """As `Clock.wall`."""
        return self.now_us / _MILLION

    def sleep(self, seconds: float) -> None:
        """As `Clock.sleep`."""
        self.advance(seconds)

    async def pause(self, seconds: float) -> None:
        """As `Clock.pause`."""
        self.advance(seconds)


class _Fake:
    """Answers as it is told, and notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.denied: dict[tuple[tuple[str, str], ...], float] = {}
        self.away = False

    def answer(self, request: Request) -> Decision:
        """Denies a request if one of its descriptors has all entries of a denial."""
        if request.call is not Call.DECIDE:
            raise NotTakenError("a fake charges and refunds")
        self.asked.append(request)
        if self.away:
            raise UnavailableError("the fake service is away")
        statuses = []
        for descriptor in request.descriptors:
            waits = [
                wait
                for entries, wait in self.denied.items()
                if set(entries) <= set(descriptor.entries) and not descriptor.refund
            ]
            if waits:
                statuses.append(Status(False, _LIMIT, 0, max(waits)))
            else:
                statuses.append(Status(True, _LIMIT, 1, 60.0))
        allowed = all(status.allowed for status in statuses)
        reason = Reason.WITHIN_LIMIT if allowed else Reason.OVER_LIMIT
        return Decision(allowed, reason, tuple(statuses))


class _Scripted:
    """How tests tell a fake what to answer."""

    def __init__(self, fake: _Fake, clock: VirtualClock) -> None:
        self._fake = fake
        self.clock = clock

    @property
    def asked(self) -> list[Request]:
        """All requests until now, also those that give something back."""
        return self._fake.asked

    def deny(self, *, retry_after: float = 60, **entries: Value) -> None:
        """Denies requests with these entries in a descriptor; without entries all requests."""
        self._fake.denied[_pairs(entries)] = retry_after

    def allow(self, **entries: Value) -> None:
        """Takes back what `deny` was told with the same entries; without entries everything."""
        if entries:
            self._fake.denied.pop(_pairs(entries), None)
        else:
            self._fake.denied.clear()

    def fail(self) -> None:
        """Lets the service be away, so that `on_failure` decides."""
        self._fake.away = True

    def recover(self) -> None:
        """Lets it be back."""
        self._fake.away = False


def _pairs(entries: Mapping[str, Value]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((key, str(value)) for key, value in entries.items()))


class Service(Protocol):
    """What answers in this process."""

    def answer(self, request: Request) -> Decision:
        """As `AsyncTransport.ask`, at once."""


class _AsyncTransport:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def ask(self, request: Request, seconds: float) -> Decision:  # noqa: ARG002
        return self._service.answer(request)

    async def close(self) -> None:
        pass


class _SyncTransport:
    def __init__(self, service: Service) -> None:
        self._service = service

    def ask(self, request: Request, seconds: float) -> Decision:  # noqa: ARG002
        return self._service.answer(request)

    def close(self) -> None:
        pass


class FakeLimiter(_Scripted, Limiter):
    """A limiter that allows everything but what it is told to deny. It knows no rules."""

    def __init__(
        self,
        domain: str = "test",
        *,
        on_failure: OnFailure = "open",
        attempts: int = 2,
        remember_denials: int = 0,
    ) -> None:
        """As `Limiter`, without an address."""
        fake, clock = _Fake(), VirtualClock()
        _Scripted.__init__(self, fake, clock)
        Limiter.__init__(
            self,
            "",
            domain=domain,
            on_failure=on_failure,
            attempts=attempts,
            remember_denials=remember_denials,
            transport=_AsyncTransport(fake),
            clock=clock,
        )


class FakeSyncLimiter(_Scripted, SyncLimiter):
    """`FakeLimiter` in place of a `SyncLimiter`."""

    def __init__(
        self,
        domain: str = "test",
        *,
        on_failure: OnFailure = "open",
        attempts: int = 2,
        remember_denials: int = 0,
    ) -> None:
        """As `SyncLimiter`, without an address."""
        fake, clock = _Fake(), VirtualClock()
        _Scripted.__init__(self, fake, clock)
        SyncLimiter.__init__(
            self,
            "",
            domain=domain,
            on_failure=on_failure,
            attempts=attempts,
            remember_denials=remember_denials,
            transport=_SyncTransport(fake),
            clock=clock,
        )


def _virtual(rules: str | Path, clock: VirtualClock) -> Service:
    try:
        from ratelimit_client.virtual import Virtual  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise MissingExtraError("a virtual limiter", "testing") from error
    return Virtual(rules, lambda: clock.now_us)


class VirtualLimiter(Limiter):
    """A limiter with the service's own rules and algorithms, on a clock that the test moves."""

    def __init__(
        self,
        rules: str | Path,
        *,
        domain: str,
        on_failure: OnFailure = "open",
        attempts: int = 2,
        remember_denials: int = 0,
        start: datetime = _START,
    ) -> None:
        """`rules` is a path, or the text of a rule file. `start` is when the clock begins.

        Raises ValueError for rules with problems, MissingExtraError without the service.
        """
        self.clock = VirtualClock(start)
        super().__init__(
            "",
            domain=domain,
            on_failure=on_failure,
            attempts=attempts,
            remember_denials=remember_denials,
            transport=_AsyncTransport(_virtual(rules, self.clock)),
            clock=self.clock,
        )


class VirtualSyncLimiter(SyncLimiter):
    """`VirtualLimiter` in place of a `SyncLimiter`."""

    def __init__(
        self,
        rules: str | Path,
        *,
        domain: str,
        on_failure: OnFailure = "open",
        attempts: int = 2,
        remember_denials: int = 0,
        start: datetime = _START,
    ) -> None:
        """As `VirtualLimiter`."""
        self.clock = VirtualClock(start)
        super().__init__(
            "",
            domain=domain,
            on_failure=on_failure,
            attempts=attempts,
            remember_denials=remember_denials,
            transport=_SyncTransport(_virtual(rules, self.clock)),
            clock=self.clock,
        )
