"""The admin listener's port: opened, served, and left to the next program."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Sequence

from ratelimit_service.errors import TransportError
from ratelimit_service.grpc.tls import TLS
from ratelimit_service.http import AdminListener, Operating
from ratelimit_service.http.tokens import read_tokens
from ratelimit_service.net import listening
from ratelimit_service.runtime.channel import sockets
from ratelimit_service.runtime.signals import log
from ratelimit_service.settings import ADMIN_ADDRESS_BY_DEFAULT, DEFAULT_ADMIN, Settings

__all__ = ["AdminPort", "check_admin_free", "check_tokens"]

_KIND = "admin"


def check_tokens(settings: Settings) -> None:
    """Raises SettingsError if the file with tokens that the settings name cannot be used."""
    if settings.admin_token_file:
        read_tokens(settings.admin_token_file)


def check_admin_free(settings: Settings) -> None:
    """Raises TransportError if an address that was asked for cannot be opened; opens none."""
    if settings.admin not in {"", DEFAULT_ADMIN}:
        listening.check_free(settings.admin, _KIND)


class AdminPort:
    """The port where the settings say; it is open from `start` to `stop`."""

    def __init__(self, operating: Operating) -> None:
        """Reads the tokens. Raises SettingsError if they cannot be used."""
        self._settings = operating.settings
        self._listener = AdminListener(operating)
        self._sockets: list[socket.socket] = []
        """What listens: of the former program until `start`, then our own."""
        self._left = False
        self._watching: asyncio.Task[None] | None = None

    def inherit(self, former: Sequence[int]) -> None:
        """Takes over the port that a former program of this process has left open."""
        self._sockets = sockets(former)

    def leave(self) -> list[socket.socket]:
        """The port for the next program. It stays open when this one stops."""
        self._left = True
        return [listening_socket.dup() for listening_socket in self._sockets]

    async def start(self, tls: TLS | None = None) -> None:
        """Opens the port and answers there.

        If the default is taken, the log says so. Raises TransportError if an address that was
        asked for is.
        """
        inherited, self._sockets = self._sockets, []
        if not self._settings.admin:
            for unused in inherited:
                unused.close()
            return
        self._sockets = inherited or self._opened()
        if self._sockets:
            await self._listener.start(self._sockets, tls)
            if (tokens := self._listener.access.tokens) is not None:
                self._watching = asyncio.create_task(tokens.watch())

    async def renew(self, tls: TLS) -> None:
        """Greets callers with another certificate from now on."""
        await self._listener.renew(tls)

    async def stop(self) -> None:
        """Closes the port. A second call does nothing."""
        if self._watching is not None:
            self._watching.cancel()
        listened, self._sockets = self._sockets, []
        if listened:
            if not self._left:
                listening.unlink(listened)
            await self._listener.close()

    @contextlib.asynccontextmanager
    async def running(self, tls: TLS | None = None) -> AsyncIterator[None]:
        """From start to stop."""
        await self.start(tls)
        try:
            yield
        finally:
            await self.stop()

    @property
    def announced(self) -> str:
        """Where it is and for whom, for the announcement; empty if it is not open."""
        if not self._sockets:
            return ""
        port = listening.port_of(self._sockets)
        at = f"{self._address.rpartition(':')[0]}:{port}" if port else self._address
        settings = self._settings
        if settings.admin_token_file:
            return f"{at}, for callers with a token"
        whose = "with a certificate" if settings.admin_tls_client_ca else "on this machine"
        return f"{at}, for callers {whose}"

    @property
    def _address(self) -> str:
        wanted = self._settings.admin
        return ADMIN_ADDRESS_BY_DEFAULT if wanted == DEFAULT_ADMIN else wanted

    def _opened(self) -> list[socket.socket]:
        try:
            return listening.listen(self._address, _KIND, private=True)
        except TransportError as error:
            if self._settings.admin != DEFAULT_ADMIN:
                raise
            log.warning("the service runs without an admin listener: %s", error)
            return []
