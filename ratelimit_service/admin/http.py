"""The HTTP endpoints over aiohttp. They show and pass on; nothing is decided here."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from aiohttp import web

from ratelimit_service import listening
from ratelimit_service.admin.faults import faults_log
from ratelimit_service.errors import BadRequestError, StatusCode
from ratelimit_service.health import Health
from ratelimit_service.model import Code
from ratelimit_service.observer import Counters
from ratelimit_service.rules.dump import dump
from ratelimit_service.rules.tree import Snapshot
from ratelimit_service.service import Answer, Refusal
from ratelimit_service.slices import SLICE, slowly
from ratelimit_service.wire import decision_to_json, decode_decision, request_from_json

__all__ = ["Admin"]

_MAX_BODY_BYTES = 1 << 20
"""JSON is wordier than protobuf; the message itself is held to its own bound."""

_LAST_SECONDS = 1.0
"""How long answers under way may take when the port is closed."""

_HTTP_STATUS = {
    StatusCode.INVALID_ARGUMENT: 400,
    StatusCode.RESOURCE_EXHAUSTED: 400,
    StatusCode.UNAVAILABLE: 503,
}


class Admin:
    """Serves `/json`, `/healthcheck`, `/metrics`, `/rlconfig` and `/processes`."""

    def __init__(
        self,
        decide: Callable[[Sequence[bytes]], Awaitable[list[Answer]]],
        health: Health,
        counters: Counters,
        snapshot: Callable[[], Snapshot],
        render_metrics: Callable[[str], tuple[str, AsyncIterator[bytes]]],
        processes: Callable[[], object],
    ) -> None:
        """`decide` answers serialized requests.

        `render_metrics` makes content type and page for a scraper's Accept header, `processes`
        what `/processes` shows.
        """
        self._decide = decide
        self._health = health
        self._counters = counters
        self._snapshot = snapshot
        self._render_metrics = render_metrics
        self._processes = processes
        app = web.Application(client_max_size=_MAX_BODY_BYTES)
        app.router.add_route("*", "/json", self._json)
        app.router.add_get("/healthcheck", self._healthcheck)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/rlconfig", self._rlconfig)
        app.router.add_get("/processes", self._show_processes)
        app.router.add_route("*", "/{tail:.*}", self._not_found)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=faults_log(),
            handle_signals=False,
            shutdown_timeout=_LAST_SECONDS,
        )

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        """Serves on sockets that listen already."""
        await self._runner.setup()
        for each in sockets:
            await web.SockSite(self._runner, each, backlog=listening.BACKLOG).start()

    async def close(self) -> None:
        """Closes the sockets and their connections."""
        await self._runner.cleanup()

    async def _json(self, request: web.Request) -> web.Response:
        """One decision: 200 OK, 429 over limit, 400 a bad request, 503 the policy `error`."""
        try:
            body = request_from_json(await request.read())
        except BadRequestError as error:
            self._counters.refusals[error.reason] += 1
            return web.Response(status=400, text=f"{error}\n")
        except web.RequestPayloadError as error:
            self._counters.refusals["json"] += 1
            return web.Response(status=400, text=f"the body cannot be read: {error}\n")
        (answer,) = await self._decide([body])
        if isinstance(answer, Refusal):
            status = _HTTP_STATUS.get(answer.code, 500)
            return web.Response(status=status, text=f"{answer.message}\n")
        over = decode_decision(answer).code is Code.OVER_LIMIT
        return web.Response(
            status=429 if over else 200,
            body=decision_to_json(answer),
            content_type="application/json",
        )

    async def _healthcheck(self, _: web.Request) -> web.Response:
        """200 while requests are answered, also degraded; 500 before and after."""
        if not self._health.serving:
            return web.Response(status=500, text=f"{self._health.phase}\n")
        faults = self._health.faults
        if not faults:
            return web.Response(text="OK")
        lines = ["degraded", *(f"{component}: {reason}" for component, reason in faults.items())]
        return web.Response(text="\n".join(lines) + "\n")

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        content_type, pages = self._render_metrics(request.headers.get("Accept", ""))
        return await _streamed(request, content_type, pages)

    async def _rlconfig(self, request: web.Request) -> web.StreamResponse:
        return await _streamed(request, "text/plain; charset=utf-8", self._rules())

    async def _show_processes(self, _: web.Request) -> web.Response:
        return web.json_response(self._processes())

    async def _rules(self) -> AsyncIterator[bytes]:
        lines = []
        async for line in slowly(dump(self._snapshot())):
            lines.append(line)
            if len(lines) == SLICE:
                yield "".join(lines).encode()
                lines.clear()
        yield "".join(lines).encode()

    async def _not_found(self, request: web.Request) -> web.Response:
        paths = "/healthcheck /json /metrics /rlconfig /processes"
        return web.Response(status=404, text=f"{request.path} is not here: {paths} are\n")


async def _streamed(
    request: web.Request, content_type: str, parts: AsyncIterator[bytes]
) -> web.StreamResponse:
    """An answer that may be megabytes, written part by part."""
    response = web.StreamResponse(headers={"Content-Type": content_type})
    await response.prepare(request)
    async for part in parts:
        await response.write(part)
    await response.write_eof()
    return response
