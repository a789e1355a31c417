"""A warning where a limit is passed in its soft part."""

from __future__ import annotations

from typing import Final

from ratelimit_service.limiter.additions.addition import (
    CountedAddition,
    DecisionContext,
    ResponseExtras,
)
from ratelimit_service.model import Header, Limit

__all__ = ["Soft"]

_WARNING: Final = Header("x-ratelimit-warning", "soft")


class Soft(CountedAddition):
    """Warns the caller, and tells the request's destination."""

    def applies_to_limit(self, limit: Limit) -> bool:
        """Of limits with a soft part."""
        return limit.soft_ppm > 0

    def add(self, context: DecisionContext, extras: ResponseExtras) -> None:
        """Says nothing of what is counted here alone: a share says nothing of the limit."""
        for limit, _, outcome in context.passed():
            if outcome.remaining < limit.soft and not outcome.local:
                extras.response_headers.append(_WARNING)
                extras.request_headers.append(_WARNING)
                extras.metadata["soft"] = True
                return
