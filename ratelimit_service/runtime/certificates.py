"""The certificates of the ports: read by the process that was started, and renewed by it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from ratelimit_service.grpc.tls import TLS, TLSFiles
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.settings import Settings

__all__ = ["Certificates", "check_certificates"]

_Renew = Callable[[TLS], Awaitable[None]]


def check_certificates(settings: Settings) -> None:
    """Raises SettingsError if the TLS files that the settings name cannot be used."""
    for files in (
        TLSFiles.of_grpc(settings),
        TLSFiles.of_http(settings),
        TLSFiles.of_admin(settings),
    ):
        if files is not None:
            files.read()


class Certificates:
    """The certificates of the ports; None for a port without TLS."""

    def __init__(self, settings: Settings, health: Health, stats: Stats) -> None:
        """Reads the files. Raises SettingsError if they cannot be used."""
        grpc, http = TLSFiles.of_grpc(settings), TLSFiles.of_http(settings)
        self._grpc = grpc.renewed("tls", health, stats) if grpc else None
        self._http = http.renewed("http tls", health, stats) if http else None
        admin = TLSFiles.of_admin(settings)
        self._admin = admin.renewed("admin tls", health, stats) if admin else None

    @property
    def grpc(self) -> TLS | None:
        """The TLS of the gRPC port now."""
        return self._grpc.value if self._grpc else None

    @property
    def http(self) -> TLS | None:
        """The TLS of the HTTP port now."""
        return self._http.value if self._http else None

    @property
    def admin(self) -> TLS | None:
        """The TLS of the admin listener now."""
        return self._admin.value if self._admin else None

    @asynccontextmanager
    async def watched(self, grpc: _Renew, http: _Renew, admin: _Renew) -> AsyncIterator[None]:
        """Hands changed files to the ports, until it is left."""
        watching = []
        ports = ((self._grpc, grpc), (self._http, http), (self._admin, admin))
        for renewed, renew in ports:
            if renewed is not None:
                renewed.listen(renew)
                watching.append(asyncio.create_task(renewed.watch()))
        try:
            yield
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
