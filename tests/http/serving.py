"""The HTTP port of a service in the test's own process."""

from __future__ import annotations

from collections.abc import Sequence

from ratelimit_service.http import HttpPort, Shown
from ratelimit_service.metrics import Metrics, Sources
from ratelimit_service.model.refusal import Answer
from ratelimit_service.service import CallOrigin
from ratelimit_service.wire.reservations import unmarked
from tests.service.asking import Asking

__all__ = ["http_port"]


def http_port(asking: Asking) -> HttpPort:
    """A port that is not open yet; seven counters are in memory, and its process is the seventh."""
    service = asking.service

    async def decide(
        bodies: Sequence[bytes], *, origins: Sequence[CallOrigin] | None = None
    ) -> list[Answer]:
        if (reserving := unmarked(bodies[0])) is not None:  # as the process that decides
            return [await service.reservations.call(*reserving)]
        return list(await service.decide(bodies, origins=origins))

    sources = Sources(asking.stats, asking.health, lambda: asking.rules.snapshot, lambda: 7)
    return HttpPort(
        asking.settings,
        decide,
        asking.health,
        asking.stats,
        Shown(lambda: asking.rules.snapshot, Metrics(sources).render, lambda: {"pid": 7}),
    )
