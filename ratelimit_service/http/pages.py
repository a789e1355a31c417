"""A port that shows pages and answers nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping

from aiohttp import web

from ratelimit_service.eventloop.slices import SLICE, slowly
from ratelimit_service.http.port import Port, refused, shown, streamed
from ratelimit_service.rules.dump import dump
from ratelimit_service.rules.tree import Snapshot

__all__ = ["Content", "Pages", "rules_page"]

Content = Callable[[str], tuple[str, AsyncIterator[bytes]]]
"""Makes of an Accept header a content type and a page, part by part."""


class Pages(Port):
    """Shows each page at its path."""

    def __init__(self, pages: Mapping[str, Content], hosts: str, closed: Counter[str]) -> None:
        """`hosts` and `closed` are as for every port."""
        super().__init__(hosts, closed)
        self._pages = dict(pages)
        self.show("/{tail:.*}", self._show)
        self.route("*", "/{tail:.*}", _take_nothing)

    async def _show(self, request: web.Request) -> web.StreamResponse:
        content = self._pages.get(request.path)
        if content is None:
            paths = " ".join(self._pages)
            return web.Response(
                status=404, text=f"{shown(request.path)} is not here: {paths} are\n"
            )
        return await streamed(request, *content(request.headers.get("Accept", "")))


async def _take_nothing(_: web.Request) -> web.Response:
    response = refused(405, "pages are read here, and nothing else can be done")
    response.headers["Allow"] = "GET, HEAD"
    return response


def rules_page(snapshot: Callable[[], Snapshot]) -> Content:
    """The rules that hold now, one a line: `/rlconfig`."""

    async def lines() -> AsyncIterator[bytes]:
        some = []
        async for line in slowly(dump(snapshot())):
            some.append(line)
            if len(some) == SLICE:
                yield "".join(some).encode()
                some.clear()
        yield "".join(some).encode()

    return lambda _accept: ("text/plain; charset=utf-8", lines())
