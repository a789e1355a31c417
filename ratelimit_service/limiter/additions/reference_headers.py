"""The three headers of envoyproxy/ratelimit: limit, remaining and reset. Off by default."""

from __future__ import annotations

from ratelimit_service.limiter.additions.addition import Said, Told
from ratelimit_service.limiter.additions.header_set import ChosenHeaders
from ratelimit_service.model import Header, HeaderSet, whole_seconds

__all__ = ["ReferenceHeaders"]


class ReferenceHeaders(ChosenHeaders):
    """Shows the status that matters most to the caller, by the names in the settings."""

    def __init__(self) -> None:
        super().__init__(HeaderSet.REFERENCE)

    def add(self, told: Told, said: Said) -> None:
        """Adds nothing if nothing was counted."""
        foremost = self._foremost(told)
        if foremost is not None:
            limit, remaining, reset_us = foremost
            settings = told.settings
            said.response_headers += [
                Header(settings.limit_header, str(limit.requests_per_unit)),
                Header(settings.remaining_header, str(remaining)),
                Header(settings.reset_header, str(whole_seconds(reset_us))),
            ]
