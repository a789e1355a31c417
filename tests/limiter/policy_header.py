"""The header `ratelimit-policy`: each limit that applies, and its window in seconds."""

from __future__ import annotations

from collections.abc import Sequence

from ratelimit_service.limiter.additions.addition import DecisionContext, ResponseExtras
from ratelimit_service.model import SECOND_US, Header, Limit
from ratelimit_service.rules.tree import Rule
from ratelimit_service.settings import Settings

__all__ = ["PolicyHeader"]


class PolicyHeader:
    """Tells callers the limits before they meet them."""

    needs_request = False
    covers_bans = False

    def enabled(self, settings: Settings) -> bool:
        """Where the other headers of limits are wanted, too."""
        return settings.limit_response_headers

    def applies_to(self, _settings: Settings, _rule: Rule | None, limits: Sequence[Limit]) -> bool:
        """Of all that is counted."""
        return bool(limits)

    def add(self, context: DecisionContext, extras: ResponseExtras) -> None:
        """One header with the limits that the statuses show."""
        shown = [status.limit for status in context.statuses() if status.limit]
        policies = [f"{one.requests_per_unit};w={one.window_us // SECOND_US}" for one in shown]
        if policies:
            extras.response_headers.append(Header("ratelimit-policy", ", ".join(policies)))
