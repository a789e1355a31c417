"""The headers that most web APIs send: `X-RateLimit-Limit`, `-Remaining`, `-Reset`."""

from __future__ import annotations

from ratelimit_service.limiter.additions.addition import Said, Told
from ratelimit_service.limiter.additions.header_set import ChosenHeaders
from ratelimit_service.model import Header, HeaderSet, whole_seconds

__all__ = ["XRateLimitHeaders"]


class XRateLimitHeaders(ChosenHeaders):
    """Shows the status that matters most to the caller. The reset is in seconds from now."""

    def __init__(self) -> None:
        super().__init__(HeaderSet.X_RATELIMIT)

    def add(self, told: Told, said: Said) -> None:
        """Adds nothing if nothing was counted, but when a ban ends."""
        foremost = self._foremost(told)
        if foremost is not None:
            limit, remaining, reset_us = foremost
            said.response_headers += [
                Header("X-RateLimit-Limit", str(limit.requests_per_unit)),
                Header("X-RateLimit-Remaining", str(remaining)),
                Header("X-RateLimit-Reset", str(whole_seconds(reset_us))),
            ]
        if foremost is not None or self._banned(told):
            said.retry_after(told)
