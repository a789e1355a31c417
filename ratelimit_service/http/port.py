"""One HTTP port over aiohttp: its sockets, its connections, its certificate, and who may ask.

How long a connection may take is `connections`' business, who may ask `origin`'s. What is answered
is known by those who derive from it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from typing import Concatenate, ParamSpec, Protocol

from aiohttp import HttpVersion11, web
from aiohttp.http import RawRequestMessage
from yarl import URL

from ratelimit_service.eventloop.slices import pause, stand_in_line
from ratelimit_service.http.connections import WRITE_SECONDS, HttpConnections
from ratelimit_service.http.faults import faults_log
from ratelimit_service.http.origin import is_ours
from ratelimit_service.http.peers import address_of
from ratelimit_service.net.accepting import Acceptor

__all__ = ["SAFE_HEADERS", "Certificate", "Port", "refused", "shown", "streamed"]

log = logging.getLogger(__name__)

SAFE_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
"""Of what is for one reader only, and nothing but what it says to be."""

_MAX_SHOWN = 200
"""Characters of a caller's text that an answer repeats."""

_NO_HOST = URL("/")
"""Stands for addresses whose host cannot be read. No other request has this very object."""

_LINGER_SECONDS = 1.0
"""How long what is left of a refused body is read, so that its sender sees the answer."""

_LAST_SECONDS = 1.0
"""How long answers under way may take when the port is closed, and first requests to come."""


_Rest = ParamSpec("_Rest")

RouteHandler = Callable[[web.Request], Awaitable[web.StreamResponse]]
"""Answers a request."""


class Certificate(Protocol):
    """What the port shows to callers that speak TLS."""

    def context(self) -> ssl.SSLContext:
        """For asyncio."""


class Port:
    """Serves what is routed by `app`, once it is started."""

    def __init__(
        self,
        hosts: str,
        closed: Counter[str],
        *,
        probes: Collection[str] = (),
        most_bytes: int = 0,
        flag: str = "--http-hosts",
        strict: bool | None = None,
    ) -> None:
        """`hosts` are public names of the service, as the setting has them.

        `closed` counts connections that were closed for their client. `probes` are paths that are
        answered under any name. A request's body has at most `most_bytes`. `flag` is the setting's.
        `strict` is whether names of a private network are no names of it; None: where it is bound
        to loopback.
        """
        self._hosts = frozenset(name.strip().lower() for name in hosts.split(",") if name.strip())
        self._flag = flag
        self._strict = strict
        self._closed = closed
        self._probes = frozenset(probes)
        self.app = web.Application(client_max_size=most_bytes, middlewares=[self._checked])
        self._runner = web.AppRunner(
            self.app,
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
        self._adopting: set[asyncio.Task[None]] = set()

    def route(self, method: str, path: str, handler: RouteHandler) -> None:
        """Has requests of a method, `*` for any, for a path answered."""
        # aiohttp's own answer to `Expect` repeats what was sent, which may be no text.
        self.app.router.add_route(method, path, handler, expect_handler=_expected)

    def show(self, path: str, handler: RouteHandler) -> None:
        """Has requests to see what is at a path answered."""
        self.app.router.add_get(path, handler, expect_handler=_expected)

    @property
    def serves(self) -> bool:
        """Whether it was started."""
        return self._acceptor is not None

    async def renew(self, tls: Certificate) -> None:
        """Greets clients with another certificate from now on; who is connected stays."""
        self._context = await asyncio.to_thread(tls.context)

    async def start(self, sockets: Sequence[socket.socket], tls: Certificate | None = None) -> None:
        """Serves on sockets that listen already, which are closed at the end."""
        self._context = tls.context() if tls else None
        await self._runner.setup()
        make = self._runner.server
        assert make is not None  # noqa: S101 -- it was just set up
        make.request_factory = _whatever_host(make.request_factory)
        self.connections = HttpConnections(make, self._closed)
        self._sockets = sockets
        if self._strict is None:
            self._strict = all(map(_on_loopback, sockets))
        self._acceptor = Acceptor(asyncio.get_running_loop(), sockets, self._accepted)
        self._acceptor.start()

    async def close(self) -> None:
        """Closes the sockets and their connections, once who has just come has an answer."""
        if self._acceptor is not None:
            self._acceptor.stop()
            await self._last_answers()
            self.connections.close()
        for listening in self._sockets:
            listening.close()
        await self._runner.cleanup()

    async def _last_answers(self) -> None:
        """Waits for the first requests of connections that were accepted just now, not for long.

        Their clients would see a connection that ends without an answer, also while this port
        only changes hands and the next program answers all who come later.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_SECONDS):
                if self._adopting:
                    await asyncio.wait(self._adopting)
                await self.connections.answered()

    def _accepted(self, connection: socket.socket, _: str) -> None:
        task = asyncio.get_running_loop().create_task(self._adopt(connection))
        self._adopting.add(task)
        task.add_done_callback(self._adopting.discard)

    async def _adopt(self, connection: socket.socket) -> None:
        protocol = partial(self.connections.protocol, self._context)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(protocol, connection)
        except OSError as error:  # its client has gone
            log.debug("a connection to the HTTP port failed: %s", error)
            connection.close()

    @web.middleware
    async def _checked(
        self,
        request: web.Request,
        handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        """Lets in who names this service; tells its connection when a request begins and ends."""
        self.connections.begin(request.protocol)
        stand_in_line()
        try:
            await pause()  # many may have come at once
            if request.transport is None:
                raise ConnectionResetError("the client has gone")
            if request.rel_url is _NO_HOST:
                return refused(400, "the host in the request's address is no host")
            host = request.headers.get("Host", "")
            # No page can ask a Unix socket, whatever a program calls it.
            strict = bool(self._strict) and address_of(request) != "unix"
            known = is_ours(host, self._hosts, strict=strict)
            if request.path not in self._probes and not known:
                why = f"{shown(host)} is no known name of this service: see {self._flag}"
                return refused(421, why)
            return await handler(request)
        finally:
            self.connections.finish(request.protocol)
            if (
                error := request.content.exception()
            ):  # aiohttp keeps it, and with it all frames on its way
                error.__traceback__ = None


def _whatever_host(
    make: Callable[Concatenate[RawRequestMessage, _Rest], web.BaseRequest],
) -> Callable[Concatenate[RawRequestMessage, _Rest], web.BaseRequest]:
    """Makes requests also of addresses whose host cannot be read: aiohttp's own way answers none.

    Such a request has another address, and is refused.
    """

    def made(
        message: RawRequestMessage, /, *args: _Rest.args, **more: _Rest.kwargs
    ) -> web.BaseRequest:
        try:
            return make(message, *args, **more)
        except ValueError:
            return make(message._replace(url=_NO_HOST), *args, **more)

    return made


def _on_loopback(listening: socket.socket) -> bool:
    """Whether only this machine reaches a listening socket."""
    if listening.family == socket.AF_UNIX:
        return True
    return ip_address(listening.getsockname()[0].partition("%")[0]).is_loopback


async def streamed(
    request: web.Request,
    content_type: str,
    parts: AsyncIterator[bytes],
    headers: Mapping[str, str] | None = None,
) -> web.StreamResponse:
    """An answer that may be megabytes, written part by part."""
    response = web.StreamResponse(headers={**(headers or {}), "Content-Type": content_type})
    await response.prepare(request)
    try:
        async for part in parts:
            async with asyncio.timeout(WRITE_SECONDS):
                await response.write(part)
            await pause()  # many readers may have become ready at once
        async with asyncio.timeout(WRITE_SECONDS):
            await response.write_eof()
    except TimeoutError as error:
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError("the reader does not read") from error
    return response


async def _expected(request: web.Request) -> web.StreamResponse | None:
    """Answers a header `Expect`."""
    if request.version < HttpVersion11:
        return None
    if request.headers.get("Expect", "").lower() != "100-continue":
        return refused(417, "what Expect asks for is not known here: leave it out")
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    request.writer.output_size = 0  # of the answer nothing is written yet
    return None


def shown(text: str) -> str:
    """What a caller has sent, fit for an answer."""
    return ascii(text[:_MAX_SHOWN])[1:-1]


def refused(status: int, why: str) -> web.Response:
    """An answer after which the connection closes: a body that is not read costs nothing."""
    response = web.Response(status=status, text=f"{why}\n")
    response.force_close()
    return response
