"""The connections of the thin transport, from where they are made to their end."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
from collections.abc import Callable

from ratelimit_service import listening
from ratelimit_service.health import Health
from ratelimit_service.service import Service
from ratelimit_service.transport.h2.calls import METHODS, ServiceCalls
from ratelimit_service.transport.h2.protocol import Protocol
from ratelimit_service.transport.health import HealthService
from ratelimit_service.transport.tls import TLS

__all__ = ["H2Server"]

log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0


class H2Server:
    """Serves `ShouldRateLimit`, health and reflection on one port, or where it is given sockets."""

    def __init__(
        self,
        address: str,
        service: Service,
        health: Health,
        max_connection_age_us: int = 0,
        tls: TLS | None = None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`address` is `HOST:PORT` or `unix:PATH`; port 0 takes a free one. An age of 0 is any.

        `changed` is called when there are more or fewer connections.
        """
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._address = address
        self._context = tls.context() if tls else None
        self._calls = ServiceCalls(service, HealthService(health))
        self._max_age = max_connection_age_us / 1_000_000
        self._protocols: dict[Protocol, float] = {}
        self._sockets: list[socket.socket] = []
        self._servers: list[asyncio.Server] = []
        self._adopting: set[asyncio.Task[None]] = set()
        self._emptied = asyncio.Event()
        self._stopping = False
        self._looking = self._loop.call_later(_LOOK_SECONDS, self._look)

    @property
    def connections(self) -> int:
        """How many there are, those included that are just being made."""
        return len(self._protocols) + len(self._adopting)

    async def start(self) -> int:
        """Opens the port and returns its number, which for a socket says nothing.

        Raises TransportError if it cannot be opened.
        """
        self._sockets = listening.listen(self._address, "gRPC")
        for each in self._sockets:
            self._servers.append(
                await self._loop.create_server(
                    self._connected, sock=each, ssl=self._context, backlog=listening.BACKLOG
                )
            )
        return listening.port_of(self._sockets)

    def adopt(self, connection: socket.socket) -> None:
        """Serves a connection that somebody else has accepted."""
        task = self._loop.create_task(self._adopt(connection))
        self._adopting.add(task)
        task.add_done_callback(self._adopted)

    async def stop(self, grace_us: int) -> None:
        """Takes no new calls, and lets those in flight finish for at most `grace_us`."""
        listening.unlink(self._sockets)
        for server in self._servers:
            server.close()
        self._stopping = True
        for protocol in list(self._protocols):
            protocol.connection.shut_down()
            protocol.flush()
        if self.connections:
            self._emptied.clear()
            try:
                async with asyncio.timeout(grace_us / 1_000_000):
                    await self._emptied.wait()
            except TimeoutError:
                for task in self._adopting:
                    task.cancel()
                for protocol in list(self._protocols):
                    protocol.abort()
        self._looking.cancel()

    async def _adopt(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._connected, connection, ssl=self._context)
        except OSError as error:  # its client has gone, or speaks no TLS
            log.debug("a connection failed: %s", error)
            connection.close()

    def _adopted(self, task: asyncio.Task[None]) -> None:
        self._adopting.discard(task)
        self._changed()
        self._tell_if_empty()

    def _connected(self) -> Protocol:
        protocol = Protocol(self._calls, METHODS, self._disconnected)
        if self._stopping:
            protocol.connection.shut_down()
        # Jitter, so that connections made together do not end together.
        self._protocols[protocol] = self._max_age * random.uniform(0.9, 1.1)  # noqa: S311
        return protocol

    def _disconnected(self, protocol: Protocol) -> None:
        self._protocols.pop(protocol, None)
        self._changed()
        self._tell_if_empty()

    def _tell_if_empty(self) -> None:
        if not self.connections:
            self._emptied.set()

    def _look(self) -> None:
        now = self._loop.time()
        for protocol, max_age in list(self._protocols.items()):
            protocol.look(now, max_age)
        self._looking = self._loop.call_later(_LOOK_SECONDS, self._look)
