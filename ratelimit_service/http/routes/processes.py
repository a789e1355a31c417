"""`/processes` and `/health`: what runs, and how well."""

from __future__ import annotations

from collections.abc import Iterator

from ratelimit_service.http.route import AdminRequest, Operating, Route
from ratelimit_service.settings import redacted

__all__ = ["processes_of", "routes"]


async def processes_of(operating: Operating) -> dict[str, object]:
    """The processes and where their counters are. Raises QuestionError."""
    return {
        "supervisor": operating.processes(),
        "deciding": await operating.ask_all("process"),
        "store": redacted(operating.settings.store),
    }


def routes(operating: Operating) -> Iterator[Route]:
    """The routes of this file."""

    async def processes(_: AdminRequest) -> object:
        return await processes_of(operating)

    async def health(_: AdminRequest) -> object:
        health = operating.health
        return {"serving": health.serving, "phase": health.phase, "faults": health.faults}

    yield Route("GET", "/processes", "the processes, and what each holds", processes)
    yield Route("GET", "/health", "whether requests are served, and what is degraded", health)
