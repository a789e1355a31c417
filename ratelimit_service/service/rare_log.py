"""What the log says of requests, seldom: a line for each request would hold the service up."""

from __future__ import annotations

import logging
from typing import Final

from ratelimit_service.eventloop.clock import Clock, elapsed_us
from ratelimit_service.text.display import count

__all__ = ["RareLog"]

log = logging.getLogger(__name__)

_MAX_DOMAINS: Final = 1_000
"""So many unknown domains are named, each once."""

_MOST_CHARACTERS: Final = 100
"""Of a domain in a field."""

_EVERY_US: Final = 10_000_000
"""How often the log speaks of requests that were decided by policy."""


class RareLog:
    """Warnings about requests, bounded in number."""

    def __init__(self, clock: Clock = elapsed_us) -> None:
        self._clock = clock
        self._domains: set[str] = set()
        self._uncounted = 0
        """Requests decided by failure policy since the log last said so."""
        self._uncounted_said_us: int | None = None

    def unknown_domain(self, domain: str) -> None:
        """A request asked for a domain that no rule file has."""
        if domain not in self._domains and len(self._domains) < _MAX_DOMAINS:
            self._domains.add(domain)
            log.warning(
                "no rule file has the domain %.100r: its requests are allowed",
                domain,
                extra={"fields": {"domain": domain[:_MOST_CHARACTERS]}},
            )

    def by_policy(self) -> None:
        """A request was decided without a count."""
        self._uncounted += 1
        now = self._clock()
        if self._uncounted_said_us is None or now - self._uncounted_said_us >= _EVERY_US:
            log.warning(
                "%s decided by failure policy, not by count: /healthcheck says why",
                count(self._uncounted, "request"),
                extra={"fields": {"requests": self._uncounted}},
            )
            self._uncounted, self._uncounted_said_us = 0, now
