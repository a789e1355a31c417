"""The errors this package raises, except a denial (`model`), which carries the answer.

Each text is for the person who reads it.
"""

from __future__ import annotations

__all__ = [
    "BadRequestError",
    "LimiterError",
    "MissingExtraError",
    "UnavailableError",
]


class LimiterError(Exception):
    """The root of all errors below."""


class BadRequestError(LimiterError, ValueError):
    """The request cannot be decided as it is. It is raised whatever `on_failure` says."""


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


class NotTakenError(UnavailableError):
    """The service takes no reservations."""


class MissingExtraError(LimiterError, ImportError):
    """A library is needed that an extra of this package brings."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs more: pip install 'ratelimit-client[{extra}]'")
