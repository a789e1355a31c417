"""The HTTP endpoints over aiohttp. They show and pass on; nothing is decided here.

Who may ask is `origin`'s business, how long a connection may take that of `doors`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol

from aiohttp import web

from ratelimit_service.accepting import Acceptor, Guests
from ratelimit_service.admin.doors import (
    BODY_SECONDS,
    CLOSE_SECONDS,
    HEAD_SECONDS,
    MOST,
    MOST_OF_PEER,
    WRITE_SECONDS,
    Doors,
)
from ratelimit_service.admin.faults import faults_log
from ratelimit_service.admin.origin import is_ours
from ratelimit_service.errors import BadRequestError, StatusCode
from ratelimit_service.health import Health
from ratelimit_service.model import Code
from ratelimit_service.observer import Counters
from ratelimit_service.rules.dump import dump
from ratelimit_service.rules.tree import Snapshot
from ratelimit_service.service import Answer, Refusal
from ratelimit_service.settings import Settings
from ratelimit_service.slices import SLICE, slowly, stepwise
from ratelimit_service.wire import decision_to_json, decode_decision, request_from_json

__all__ = ["Admin"]

log = logging.getLogger(__name__)

_MAX_BODY_BYTES = 1 << 17
"""JSON is wordier than protobuf; the message itself is held to its own bound, half of this."""

_MAX_SHOWN = 200
"""Characters of a caller's text that an answer repeats."""

_LINGER_SECONDS = 1.0
"""How long what is left of a refused body is read, so that its sender sees the answer."""

_LAST_SECONDS = 1.0
"""How long answers under way may take when the port is closed."""

_PROBES = frozenset({"/healthcheck", "/livez", "/readyz"})
"""Answered under any name."""

_HTTP_STATUS = {
    StatusCode.INVALID_ARGUMENT: 400,
    StatusCode.RESOURCE_EXHAUSTED: 400,
    StatusCode.UNAVAILABLE: 503,
}


class Certificate(Protocol):
    """What the port shows to callers that speak TLS."""

    def context(self) -> ssl.SSLContext:
        """For asyncio."""


class Admin:
    """Serves `/json`, probes, `/metrics`, `/rlconfig` and `/processes`."""

    def __init__(
        self,
        settings: Settings,
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
        self._settings = settings
        self._hosts = frozenset(
            name.strip().lower() for name in settings.http_hosts.split(",") if name.strip()
        )
        self._decide = decide
        self._health = health
        self._counters = counters
        self._snapshot = snapshot
        self._render_metrics = render_metrics
        self._processes = processes
        app = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=[self._at_the_door])
        if not settings.no_json:
            app.router.add_route("*", "/json", self._json)
        app.router.add_get("/healthcheck", self._healthcheck)
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/readyz", self._readyz)
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
            lingering_time=_LINGER_SECONDS,
            auto_decompress=False,
        )
        self._sockets: Sequence[socket.socket] = ()
        self._acceptor: Acceptor | None = None
        self._context: ssl.SSLContext | None = None
        self._coming = Guests(MOST, MOST_OF_PEER)
        """Those whose TLS handshake is not over: no door knows them yet."""
        self._greeting: set[asyncio.Task[None]] = set()

    async def renew(self, tls: Certificate) -> None:
        """Greets clients with another certificate from now on; who is connected stays."""
        self._context = await asyncio.to_thread(tls.context)

    async def start(self, sockets: Sequence[socket.socket], tls: Certificate | None = None) -> None:
        """Serves on sockets that listen already, which are closed at the end."""
        self._context = tls.context() if tls else None
        await self._runner.setup()
        make = self._runner.server
        assert make is not None  # noqa: S101 -- it was just set up
        self.doors = Doors(make, self._counters.http_closed)
        self.doors.watch()
        self._sockets = sockets
        self._acceptor = Acceptor(asyncio.get_running_loop(), sockets, self._accepted)
        self._acceptor.start()

    async def close(self) -> None:
        """Closes the sockets and their connections."""
        if self._acceptor is not None:
            self._acceptor.stop()
            self.doors.close()
        for each in self._sockets:
            each.close()
        for task in self._greeting:
            task.cancel()
        await self._runner.cleanup()

    def _accepted(self, connection: socket.socket, peer: str) -> None:
        if self._coming.admit(peer):
            self._counters.http_closed["crowded"] += 1
            connection.close()
            return
        task = asyncio.get_running_loop().create_task(self._greet(connection, peer))
        self._greeting.add(task)
        task.add_done_callback(self._greeting.discard)

    async def _greet(self, connection: socket.socket, peer: str) -> None:
        """Hands a connection to a door, after its TLS handshake where there is one."""
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self.doors.door,
                connection,
                ssl=self._context,
                ssl_handshake_timeout=HEAD_SECONDS if self._context else None,
                ssl_shutdown_timeout=CLOSE_SECONDS if self._context else None,
            )
        except OSError as error:  # its client has gone, is too slow, or speaks no TLS
            log.debug("a connection to the HTTP port failed: %s", error)
            self._counters.http_closed["handshake"] += 1
            connection.close()
        finally:
            self._coming.leave(peer)

    @web.middleware
    async def _at_the_door(
        self,
        request: web.Request,
        handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        """Lets in who names this service; tells the door when a request begins and ends."""
        self.doors.begin(request.protocol)
        try:
            host = request.headers.get("Host", "")
            if request.path not in _PROBES and not is_ours(host, self._hosts):
                why = f"{_shown(host)} is no known name of this service: see --http-hosts"
                return _refused(421, why)
            return await handler(request)
        finally:
            self.doors.finish(request.protocol)
            if error := request.content.exception():  # it is kept, and with it all that it passed
                error.__traceback__ = None

    async def _json(self, request: web.Request) -> web.Response:
        """One decision: 200 OK, 429 over limit, 400 a bad request, 503 the policy `error`."""
        if refusal := _why_not_json(request):
            return refusal
        try:
            async with asyncio.timeout(BODY_SECONDS):
                text = await request.read()
            refunds = self._settings.json_refunds
            body = await stepwise(request_from_json(text, refunds=refunds))
        except TimeoutError:
            return _refused(408, f"the body did not come within {BODY_SECONDS:g} s")
        except web.HTTPRequestEntityTooLarge:
            return _too_large()
        except ConnectionError:
            return _refused(400, "the caller has gone")
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
            body=await stepwise(decision_to_json(answer)),
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

    async def _livez(self, _: web.Request) -> web.Response:
        """200 for as long as anything is answered, also before and after it serves."""
        return web.Response(text="OK")

    async def _readyz(self, _: web.Request) -> web.Response:
        """200 while requests are welcome, also degraded; 503 before and after."""
        ready = self._health.serving
        return web.Response(
            status=200 if ready else 503, text="OK" if ready else f"{self._health.phase}\n"
        )

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
        json = "" if self._settings.no_json else "/json "
        paths = f"/healthcheck /livez /readyz {json}/metrics /rlconfig /processes"
        return web.Response(status=404, text=f"{_shown(request.path)} is not here: {paths} are\n")


async def _streamed(
    request: web.Request, content_type: str, parts: AsyncIterator[bytes]
) -> web.StreamResponse:
    """An answer that may be megabytes, written part by part."""
    response = web.StreamResponse(headers={"Content-Type": content_type})
    await response.prepare(request)
    try:
        async for part in parts:
            async with asyncio.timeout(WRITE_SECONDS):
                await response.write(part)
        async with asyncio.timeout(WRITE_SECONDS):
            await response.write_eof()
    except TimeoutError as error:
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError("the reader does not read") from error
    return response


def _why_not_json(request: web.Request) -> web.Response | None:
    """Why a request for a decision is refused before its body is read; None if it is not."""
    if "Origin" in request.headers:
        return _refused(403, "web pages cannot ask for decisions: this has an Origin header")
    if request.content_type != "application/json":
        return _refused(415, "send the request as Content-Type: application/json")
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        return _refused(415, "send the body as it is, without Content-Encoding")
    if (request.content_length or 0) > _MAX_BODY_BYTES:
        return _too_large()
    return None


def _shown(text: str) -> str:
    """What a caller has sent, fit for an answer."""
    return ascii(text[:_MAX_SHOWN])[1:-1]


def _too_large() -> web.Response:
    return _refused(413, f"the body is too large: at most {_MAX_BODY_BYTES} bytes are read")


def _refused(status: int, why: str) -> web.Response:
    """An answer after which the connection closes: a body that is not read costs nothing."""
    response = web.Response(status=status, text=f"{why}\n")
    response.force_close()
    return response
