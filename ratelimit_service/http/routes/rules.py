"""`/rlconfig`: the rules that hold."""

from __future__ import annotations

from collections.abc import Iterator

from ratelimit_service.http.pages import rules_page
from ratelimit_service.http.port import streamed
from ratelimit_service.http.route import AdminRequest, Operating, Route

__all__ = ["routes"]


def routes(operating: Operating) -> Iterator[Route]:
    """The routes of this file."""
    page = rules_page(operating.snapshot)

    async def rlconfig(request: AdminRequest) -> object:
        return await streamed(request.http, *page(""))

    yield Route("GET", "/rlconfig", "the rules, one a line", rlconfig)
