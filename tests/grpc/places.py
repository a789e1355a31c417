"""A server of the h2 transport for tests of connections: it accepts, or is given them."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from ratelimit_service.grpc.server import H2Server
from ratelimit_service.grpc.tls import TLSFiles
from ratelimit_service.net.accepting import ConnectionLimiter
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from tests.grpc.test_addresses import Files
from tests.grpc.test_transports import RULES
from tests.service.asking import Asking


class Place:
    """A server that accepts by itself, or one that is given connections."""

    def __init__(
        self, tmp_path: Path, *, given: bool, tls: bool, limiter: ConnectionLimiter | None
    ) -> None:
        rules = tmp_path / "rules"
        rules.mkdir()
        self.files = Files(tmp_path)
        self.stats = Stats()
        self.given = given
        self.gone = 0
        self.server = H2Server(
            "127.0.0.1:0",
            Asking(rules, RULES).service,
            Health(),
            0,
            TLSFiles(self.files.cert, self.files.key).read() if tls else None,
            stats=self.stats,
            limiter=limiter,
        )
        self.port = 0

    async def client(self) -> socket.socket:
        """A new connection to the server."""
        if self.given:
            ours, theirs = socket.socketpair()
            theirs.setblocking(False)
            self.server.adopt(theirs, self._left)
            return ours
        self.port = self.port or await self.server.start()
        client = socket.socket()
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", self.port))
        return client

    def _left(self) -> None:
        self.gone += 1
