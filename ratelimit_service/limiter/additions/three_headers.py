"""The sets of three headers: limit, remaining and reset, by names of the rule's choice."""

from __future__ import annotations

from ratelimit_service.limiter.additions.addition import DecisionContext, ResponseExtras
from ratelimit_service.limiter.additions.header_set import ChosenHeaders
from ratelimit_service.model import AnswerStyle, Header, HeaderSet, Reset, whole_seconds

__all__ = ["ThreeHeaders"]

_NO_STYLE = AnswerStyle()


class ThreeHeaders(ChosenHeaders):
    """Shows the status that matters most to the caller.

    The names begin with `prefix` where neither the rule nor the settings choose others.
    """

    def __init__(self, chosen: HeaderSet, prefix: str, *, tells_wait: bool) -> None:
        super().__init__(chosen)
        self._prefix = prefix
        self._tells_wait = tells_wait

    def add(self, context: DecisionContext, extras: ResponseExtras) -> None:
        """Adds nothing if nothing was counted, but when a ban ends."""
        foremost = self._foremost(context)
        if foremost is not None:
            planned, limit, remaining, reset_us = foremost
            declared, settings, prefix = planned.declared, context.settings, self._prefix
            style = (declared.answer if declared is not None else None) or _NO_STYLE
            if (style.reset or settings.reset_value) == Reset.UNIX:
                reset_us += context.clock()
            for own, set_, part, value in (
                (style.limit_header, settings.limit_header, "Limit", limit.requests_per_unit),
                (style.remaining_header, settings.remaining_header, "Remaining", remaining),
                (style.reset_header, settings.reset_header, "Reset", whole_seconds(reset_us)),
            ):
                extras.response_headers.append(Header(own or set_ or prefix + part, str(value)))
        if self._tells_wait and (foremost is not None or self._banned(context)):
            extras.retry_after(context)
