"""What the log says of requests, seldom: a line for each request would hold the service up."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import Final

from ratelimit_service.eventloop.clock import Clock, elapsed_us
from ratelimit_service.observability.log_throttle import LogThrottle
from ratelimit_service.observability.stats import Stats
from ratelimit_service.text.display import count

__all__ = ["RareLog"]

log = logging.getLogger(__name__)

_MAX_DOMAINS: Final = 1_000
"""So many unknown domains are named, each once."""

_MOST_CHARACTERS: Final = 100
"""Of a domain in a field."""

_EVERY_US: Final = 60_000_000
"""How often the log speaks of requests that were decided by policy."""


class RareLog:
    """Warnings about requests, bounded in number."""

    def __init__(self, stats: Stats, clock: Clock = elapsed_us) -> None:
        """`stats` say why requests were not counted."""
        self._stats = stats
        self._domains: set[str] = set()
        self.uncounted: Counter[str] = Counter()
        """Requests decided by failure policy since the log last said so, by policy (the first, of
        several)."""
        self._throttle = LogThrottle(_EVERY_US, clock)
        self._reasons_said: Counter[str] = Counter()
        """Why hits were not counted, up to then."""

    def unknown_domain(self, domain: str) -> None:
        """A request asked for a domain that no rule file has."""
        if domain not in self._domains and len(self._domains) < _MAX_DOMAINS:
            self._domains.add(domain)
            log.warning(
                "no rule file has the domain %.100r: its requests are allowed",
                domain,
                extra={"fields": {"domain": domain[:_MOST_CHARACTERS]}},
            )

    def say_uncounted(self) -> None:
        """Says what is `uncounted`, if it has not said so lately."""
        if not self._throttle.take():
            return
        reasons = self._stats.uncounted_so_far()
        split, why = dict(self.uncounted), dict(reasons - self._reasons_said)
        number = sum(split.values())
        log.warning(
            "%s decided by failure policy, not by count (%s): %s",
            count(number, "request"),
            _listed(split),
            f"why, by hits: {_listed(why)}" if why else "/healthcheck says why",
            extra={"fields": {"requests": number, "policies": split, "reasons": why}},
        )
        self.uncounted.clear()
        self._reasons_said = reasons


def _listed(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in numbers.items())
