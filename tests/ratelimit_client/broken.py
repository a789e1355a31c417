"""Limiters with the real rules on a clock that stands still, and a line to them that breaks."""

from __future__ import annotations

import asyncio

from ratelimit_client import (
    Decision,
    Limiter,
    UnavailableError,
)
from ratelimit_client.model import Request
from ratelimit_client.steps import OnFailure
from ratelimit_client.testing import VirtualClock, VirtualLimiter
from ratelimit_client.virtual import Virtual
from ratelimit_service.settings import Settings
from tests.ratelimit_client.conftest import RULES


class Broken:
    """The service behind a line that breaks as the test says."""

    def __init__(
        self,
        *errors: UnavailableError | None,
        settings: Settings | None = None,
        clock: VirtualClock | None = None,
    ) -> None:
        """`clock` is the caller's, if it is another than the service's."""
        service = VirtualClock()
        self.service_clock, self.clock = service, clock or service
        self._service = Virtual(RULES, lambda: service.now_us, settings)
        self._errors = list(errors)
        self.asked: list[Request] = []

    async def ask(self, request: Request, seconds: float) -> Decision:
        assert seconds > 0
        self.asked.append(request)
        if self._errors and (error := self._errors.pop(0)):
            raise error
        await asyncio.sleep(0)
        return self._service.answer(request)

    async def close(self) -> None: ...

    def limiter(
        self, *, attempts: int = 2, on_failure: OnFailure = "raise", remember_denials: int = 0
    ) -> Limiter:
        return Limiter(
            "",
            domain="api",
            deadline=0.5,
            attempts=attempts,
            on_failure=on_failure,
            remember_denials=remember_denials,
            transport=self,
            clock=self.clock,
        )


def virtual(**options: int) -> VirtualLimiter:
    return VirtualLimiter(RULES, domain="api", **options)  # type: ignore[arg-type]


UNSENT = UnavailableError("no connection", retriable=True)
LOST = UnavailableError("no answer in time")
