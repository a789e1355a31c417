"""A warning where a limit is passed in its soft part."""

from __future__ import annotations

from typing import Final

from ratelimit_service.limiter.additions.addition import OfLimits, Said, Told
from ratelimit_service.model import Header, Limit

__all__ = ["Soft"]

_WARNING: Final = Header("x-ratelimit-warning", "soft")


class Soft(OfLimits):
    """Warns the caller, and tells the request's destination."""

    def asked_by(self, limit: Limit) -> bool:
        """Of limits with a soft part."""
        return limit.soft_ppm > 0

    def add(self, told: Told, said: Said) -> None:
        """Says nothing of what is counted here alone: a share says nothing of the limit."""
        for limit, _, outcome in told.passed():
            if outcome.remaining < limit.soft and not outcome.local:
                said.response_headers.append(_WARNING)
                said.request_headers.append(_WARNING)
                said.metadata["soft"] = True
                return
