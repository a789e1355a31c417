"""The errors this package raises. Each text is for the person who reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ratelimit_client.model import Decision

__all__ = [
    "BadRequestError",
    "DeniedError",
    "LimiterError",
    "MissingExtraError",
    "UnavailableError",
]


class LimiterError(Exception):
    """The root of all errors below."""


class BadRequestError(LimiterError, ValueError):
    """The request cannot be decided as it is. It is raised whatever `on_failure` says."""


class DeniedError(LimiterError):
    """A request was denied where the code cannot go on: in a lease, a budget or a decorator."""

    def __init__(self, decision: Decision) -> None:
        wait = decision.retry_after
        said = decision.detail if wait is None else f"try again in {wait:g} s"
        super().__init__("the request is denied" + (f": {said}" if said else ""))
        self.decision = decision


class UnavailableError(LimiterError):
    """The service gave no answer: it is away, late, overloaded, or leaves the decision to us.

    `retriable` says that the request was certainly not counted and may be sent again at once;
    `retry_after`, in seconds, that this makes no sense earlier.
    """

    def __init__(
        self, message: str, *, retriable: bool = False, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.retriable = retriable
        self.retry_after = retry_after


class MissingExtraError(LimiterError, ImportError):
    """A library is needed that an extra of this package brings."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs more: pip install 'ratelimit-client[{extra}]'")
