"""The listening socket of the thin transport, its connections, and their end."""

from __future__ import annotations

import asyncio
import errno
import random
import socket
from pathlib import Path

from ratelimit_service.errors import TransportError
from ratelimit_service.health import Health
from ratelimit_service.service import Service
from ratelimit_service.settings import split_address, unix_path
from ratelimit_service.transport.h2.calls import STREAMING_PATHS, ServiceCalls
from ratelimit_service.transport.h2.protocol import Protocol
from ratelimit_service.transport.health import HealthService
from ratelimit_service.transport.tls import TLS

__all__ = ["H2Server"]

_LOOK_SECONDS = 1.0
_BACKLOG = 1_024


class H2Server:
    """Serves `ShouldRateLimit`, health and reflection on one port."""

    def __init__(
        self,
        address: str,
        service: Service,
        health: Health,
        max_connection_age_us: int = 0,
        tls: TLS | None = None,
    ) -> None:
        """`address` is `HOST:PORT` or `unix:PATH`; port 0 takes a free one. An age of 0 is any."""
        self._address = address
        self._path = unix_path(address)
        self._tls = tls
        self._calls = ServiceCalls(service, HealthService(health))
        self._max_age = max_connection_age_us / 1_000_000
        self._protocols: dict[Protocol, float] = {}
        self._server: asyncio.Server | None = None
        self._looking: asyncio.TimerHandle | None = None
        self._emptied = asyncio.Event()

    async def start(self) -> int:
        """Opens the port and returns its number, which for a socket says nothing.

        Raises TransportError if it cannot be opened.
        """
        loop = asyncio.get_running_loop()
        context = self._tls.context() if self._tls else None
        try:
            if self._path is not None:
                _check_free(self._path)
                self._server = await loop.create_unix_server(
                    self._connected, self._path, ssl=context, backlog=_BACKLOG
                )
            else:
                host, port = split_address(self._address)
                self._server = await loop.create_server(
                    self._connected, host, port, ssl=context, backlog=_BACKLOG
                )
        except OSError as error:
            raise TransportError(
                f"cannot open the gRPC port {self._address}: {error.strerror or error}; "
                "choose another with --grpc HOST:PORT"
            ) from error
        self._looking = loop.call_later(_LOOK_SECONDS, self._look)
        if self._path is not None:
            return 0
        opened: int = self._server.sockets[0].getsockname()[1]
        return opened

    async def stop(self, grace_us: int) -> None:
        """Takes no new calls, and lets those in flight finish for at most `grace_us`."""
        if self._server is None:
            return
        self._server.close()
        self._remove_socket()
        for protocol in list(self._protocols):
            protocol.connection.shut_down()
            protocol.flush()
        if self._protocols:
            self._emptied.clear()
            try:
                async with asyncio.timeout(grace_us / 1_000_000):
                    await self._emptied.wait()
            except TimeoutError:
                for protocol in list(self._protocols):
                    protocol.abort()
        if self._looking is not None:
            self._looking.cancel()

    def _remove_socket(self) -> None:
        if self._path is not None:
            Path(self._path).unlink(missing_ok=True)

    def _connected(self) -> Protocol:
        protocol = Protocol(self._calls, STREAMING_PATHS, self._disconnected)
        # Jitter, so that connections made together do not end together.
        self._protocols[protocol] = self._max_age * random.uniform(0.9, 1.1)  # noqa: S311
        return protocol

    def _disconnected(self, protocol: Protocol) -> None:
        self._protocols.pop(protocol, None)
        if not self._protocols:
            self._emptied.set()

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for protocol, max_age in list(self._protocols.items()):
            protocol.look(now, max_age)
        self._looking = loop.call_later(_LOOK_SECONDS, self._look)


def _check_free(path: str) -> None:
    """Raises OSError if somebody listens there, or it is no socket; a stale socket is replaced."""
    place = Path(path)
    if not place.exists():
        return
    if not place.is_socket():
        raise FileExistsError(errno.EEXIST, "there is a file that is no socket")
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(path)
        except ConnectionRefusedError:
            return
    raise OSError(errno.EADDRINUSE, "somebody else listens there")
