"""Faults of our own: they are counted and logged, and refuse one request."""

from __future__ import annotations

from typing import Final

from ratelimit_service.errors import StatusCode
from ratelimit_service.model.refusal import Refusal
from ratelimit_service.observability.bugs import Bugs
from ratelimit_service.observability.stats import Stats

__all__ = ["FAILED_REQUEST", "Faults"]

FAILED_REQUEST: Final = Refusal(
    StatusCode.INTERNAL, "the service failed to decide this request: see its log"
)


class Faults:
    """What becomes of exceptions that nobody expected."""

    def __init__(self, stats: Stats) -> None:
        self._stats = stats
        self._bugs = Bugs()

    def request(self, error: Exception) -> Refusal:
        """Refuses the request that met the fault; the log gets a traceback now and then."""
        self._stats.refusals["internal"] += 1
        self.note("a request could not be decided", error)
        return FAILED_REQUEST

    def note(self, what: str, error: Exception) -> None:
        """Logs a fault that has cost no request its answer."""
        self._bugs.note(what, error)
