"""The headers a decision adds: the three of envoyproxy/ratelimit, off by default."""

from __future__ import annotations

from collections.abc import Sequence

from ratelimit_service.model import Code, Header, Status, whole_seconds
from ratelimit_service.settings import Settings

__all__ = ["limit_headers"]


def limit_headers(statuses: Sequence[Status], settings: Settings) -> tuple[Header, ...]:
    """Limit, remaining and reset (whole seconds) of the status that matters most to the caller.

    That is one over its limit, then the one with the least remaining, then the first. None
    if the headers are off, or nothing was counted.
    """
    if not settings.limit_response_headers:
        return ()
    counted = [
        (status, status.limit, status.reset_us)
        for status in statuses
        if status.limit is not None and status.reset_us is not None
    ]
    if not counted:
        return ()
    status, limit, reset_us = min(
        counted, key=lambda shown: (shown[0].code is not Code.OVER_LIMIT, shown[0].remaining)
    )
    return (
        Header(settings.limit_header, str(limit.requests_per_unit)),
        Header(settings.remaining_header, str(status.remaining)),
        Header(settings.reset_header, str(whole_seconds(reset_us))),
    )
