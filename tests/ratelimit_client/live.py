"""The service in a thread of its own: both ports, a store in memory, and a clock to be moved."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

from ratelimit_service.grpc.server import H2Server
from ratelimit_service.grpc.tls import TLS
from ratelimit_service.net import listening
from ratelimit_service.observability.health import Phase
from ratelimit_service.settings import Settings
from tests.http.serving import http_port
from tests.service.asking import Asking

__all__ = ["Live"]


class Live:
    """Serves until it is closed. `asking.now_us` is its clock."""

    def __init__(
        self,
        directory: Path,
        rules: str,
        settings: Settings | None = None,
        *,
        grpc: str = "127.0.0.1:0",
        tls: TLS | None = None,
    ) -> None:
        settings = settings or Settings(json_refunds=True, decision_metadata=True)
        self.asking = Asking(directory, rules, settings=settings)
        self._grpc, self._tls = grpc, tls
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(30)

    @property
    def addresses(self) -> dict[str, str]:
        """The address for each way to ask."""
        return {
            "grpc": f"127.0.0.1:{self.grpc_port}",
            "http": f"http://127.0.0.1:{self.http_port}",
        }

    async def _start(self) -> None:
        asking = self.asking
        self._server = H2Server(self._grpc, asking.service, asking.health, tls=self._tls)
        self.grpc_port = await self._server.start()
        self._admin = http_port(asking)
        sockets = listening.listen("127.0.0.1:0", "HTTP")
        self.http_port = listening.port_of(sockets)
        await self._admin.start(sockets, self._tls and replace(self._tls, protocols=()))
        asking.health.enter(Phase.SERVING)

    async def _stop(self) -> None:
        await self._admin.close()
        await self._server.stop(0)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()
