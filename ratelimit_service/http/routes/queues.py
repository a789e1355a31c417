"""`/queues`: how the queues of denied requests stand."""

from __future__ import annotations

from collections.abc import Iterator

from ratelimit_service.http.route import AdminRequest, Operating, Route
from ratelimit_service.service.questions import QuestionError

__all__ = ["routes"]


def routes(operating: Operating) -> Iterator[Route]:
    """The routes of this file."""

    async def queues(request: AdminRequest) -> object:
        if unknown := sorted(request.query.keys() - {"domain"}):
            raise QuestionError(f"{unknown[0]!r} is nothing to ask for: there is domain")
        return await operating.ask("queues", dict(request.query))

    does = "the queues of rules with on_limit: enqueue (?domain=D)"
    yield Route("GET", "/queues", does, queues)
