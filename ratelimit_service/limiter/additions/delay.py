"""How long a request that a queue has admitted is to wait."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ratelimit_service.limiter.additions.addition import Said, Told
from ratelimit_service.model import Header, Limit
from ratelimit_service.rules.tree import Rule
from ratelimit_service.settings import Settings

__all__ = ["Delay"]

_HEADER: Final = "x-ratelimit-delay-ms"
_MILLISECOND_US: Final = 1_000


class Delay:
    """The longest delay of the request's queues, in whole milliseconds, rounded up."""

    needs_request = False

    def wanted(self, settings: Settings) -> bool:  # noqa: ARG002
        """Always."""
        return True

    def speaks_of(
        self,
        settings: Settings,  # noqa: ARG002
        rule: Rule | None,  # noqa: ARG002
        limits: Sequence[Limit],
    ) -> bool:
        """Of queues."""
        return any(limit.max_wait_us for limit in limits)

    def add(self, told: Told, said: Said) -> None:
        """Says nothing of what is counted here alone: a share says nothing of the limit."""
        delays_us = []
        for limit, hit, outcome in told.passed():
            queued = limit.limit.max_wait_us and not outcome.local
            if queued and (outcome.charged or not hit.addend):
                # The bucket is empty after the hits' own time and what was in it before them.
                own_us = -(-hit.addend * hit.spec.window_us // hit.spec.rate)
                delays_us.append(outcome.reset_us - own_us)
        if delays_us:
            delay_ms = -(-max(0, *delays_us) // _MILLISECOND_US)
            said.request_headers.append(Header(_HEADER, str(delay_ms)))
            said.metadata["delay_ms"] = delay_ms
