"""Connections of gRPC clients: accepted by the supervisor, and given to its workers.

What must not live here: which worker gets one (`workers`), and when accepting is in order.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from ratelimit_service.net import listening
from ratelimit_service.net.accepting import Acceptor, ConnectionLimiter
from ratelimit_service.observability.log_throttle import LogThrottle
from ratelimit_service.observability.stats import Stats
from ratelimit_service.runtime.signals import log
from ratelimit_service.text.display import count

__all__ = ["Connections"]

_LOG_EVERY_US = 10_000_000
"""The log tells at most so often of connections that no worker took."""


class Connections:
    """The gRPC port, as long as the supervisor has it."""

    def __init__(
        self, give: Callable[[socket.socket, str], bool], limiter: ConnectionLimiter, stats: Stats
    ) -> None:
        """`give` hands a connection to a worker, and returns whether one took it."""
        self.port: list[socket.socket] = []
        """Its listening sockets; none where a worker opens the port itself."""
        self._give = give
        self._limiter = limiter
        self._refused = stats.refused_connections
        self._dropped = LogThrottle(_LOG_EVERY_US)
        self._acceptor: Acceptor | None = None

    def accept(self) -> None:
        """Accepts connections from now on."""
        if self._acceptor is None:
            loop = asyncio.get_running_loop()
            self._acceptor = Acceptor(loop, self.port, self._accepted, self._no_files)
        self._acceptor.start()

    def pause(self) -> None:
        """Leaves those that come to wait in the system's queue."""
        if self._acceptor is not None:
            self._acceptor.stop()

    def close(self) -> None:
        """Closes the port."""
        self.pause()
        listening.unlink(self.port)
        for listener in self.port:
            listener.close()
        self.port = []

    def _accepted(self, connection: socket.socket, peer: str) -> None:
        with connection:
            refused = self._limiter.admit(peer)
            if refused:
                self._refused[refused] += 1
            elif not self._give(connection, peer):
                self._limiter.leave(peer)
                self._refused["no_worker"] += 1
                if dropped := self._dropped.take():
                    log.warning("%s dropped: no worker took it", count(dropped, "connection"))

    def _no_files(self) -> None:
        self._refused["no_files"] += 1
