"""The listening socket of the thin transport, its connections, and their end."""

from __future__ import annotations

import asyncio
import logging
import random

from ratelimit_service.errors import TransportError
from ratelimit_service.health import Health
from ratelimit_service.service import Service
from ratelimit_service.settings import split_address
from ratelimit_service.transport.h2.calls import STREAMING_PATHS, ServiceCalls
from ratelimit_service.transport.h2.protocol import Protocol
from ratelimit_service.transport.health import HealthService

__all__ = ["H2Server"]

log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0


class H2Server:
    """Serves `ShouldRateLimit`, health and reflection on one port."""

    def __init__(
        self, address: str, service: Service, health: Health, max_connection_age_us: int = 0
    ) -> None:
        """`address` is `HOST:PORT`; port 0 takes a free one. An age of 0 is any."""
        self._address = address
        self._calls = ServiceCalls(service, HealthService(health))
        self._max_age = max_connection_age_us / 1_000_000
        self._protocols: dict[Protocol, float] = {}
        self._server: asyncio.Server | None = None
        self._looking: asyncio.TimerHandle | None = None
        self._emptied = asyncio.Event()

    async def start(self) -> int:
        """Opens the port and returns its number. Raises TransportError if it cannot be opened."""
        host, port = split_address(self._address)
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(self._connected, host, port, backlog=1024)
        except OSError as error:
            raise TransportError(
                f"cannot open the gRPC port {self._address}: {error.strerror}; "
                "choose another with --grpc HOST:PORT"
            ) from error
        self._looking = loop.call_later(_LOOK_SECONDS, self._look)
        opened: int = self._server.sockets[0].getsockname()[1]
        return opened

    async def stop(self, grace_us: int) -> None:
        """Takes no new calls, and lets those in flight finish for at most `grace_us`."""
        if self._server is None:
            return
        self._server.close()
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
