"""The HTTP port of a service in the test's own process."""

from __future__ import annotations

from ratelimit_service.http import HttpPort, Shown
from ratelimit_service.metrics import Metrics, Sources
from tests.service.asking import Asking

__all__ = ["http_port"]


def http_port(asking: Asking) -> HttpPort:
    """A port that is not open yet; seven counters are in memory, and its process is the seventh."""
    sources = Sources(asking.stats, asking.health, lambda: asking.rules.snapshot, lambda: 7)
    return HttpPort(
        asking.settings,
        asking.service.decide,
        asking.health,
        asking.stats,
        Shown(lambda: asking.rules.snapshot, Metrics(sources).render, lambda: {"pid": 7}),
    )
