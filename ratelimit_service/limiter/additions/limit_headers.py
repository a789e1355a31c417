"""The three headers of envoyproxy/ratelimit: limit, remaining and reset. Off by default."""

from __future__ import annotations

from collections.abc import Sequence

from ratelimit_service.limiter.additions.addition import Said, Told
from ratelimit_service.model import Code, Header, Limit, whole_seconds
from ratelimit_service.settings import Settings

__all__ = ["LimitHeaders"]


class LimitHeaders:
    """Shows the status that matters most to the caller.

    That is one over its limit, then the one with the least remaining, then the first.
    """

    needs_request = False

    def wanted(self, settings: Settings) -> bool:
        """If `limit_response_headers` is on."""
        return settings.limit_response_headers

    def speaks_of(self, limits: Sequence[Limit]) -> bool:
        """Of all that is counted."""
        return bool(limits)

    def add(self, told: Told, said: Said) -> None:
        """Adds nothing if nothing was counted."""
        counted = [
            (status, status.limit, status.reset_us)
            for status in told.statuses()
            if status.limit is not None and status.reset_us is not None
        ]
        if not counted:
            return
        status, limit, reset_us = min(
            counted, key=lambda each: (each[0].code is not Code.OVER_LIMIT, each[0].remaining)
        )
        settings = told.settings
        said.response_headers += [
            Header(settings.limit_header, str(limit.requests_per_unit)),
            Header(settings.remaining_header, str(status.remaining)),
            Header(settings.reset_header, str(whole_seconds(reset_us))),
        ]
