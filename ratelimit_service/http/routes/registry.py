"""All routes of the admin listener: a line for each file here."""

from __future__ import annotations

from collections.abc import Iterator

from ratelimit_service.http.route import Operating, Route
from ratelimit_service.http.routes import console, counters, overrides, processes, queues, rules

__all__ = ["GROUPS", "routes"]

GROUPS = (
    console.routes,
    counters.routes,
    overrides.routes,
    processes.routes,
    queues.routes,
    rules.routes,
)


def routes(operating: Operating) -> Iterator[Route]:
    """Every route."""
    for group in GROUPS:
        yield from group(operating)
