"""Connections that come in at listening sockets: accepted, counted, and handed to their server.

What must not live here: how sockets are opened, and what is spoken over them.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable, Sequence

__all__ = ["ACCEPTED_AT_ONCE", "Acceptor", "ConnectionLimiter", "peer_of", "unmapped"]

log = logging.getLogger(__name__)

ACCEPTED_AT_ONCE = 8
"""Connections taken from one socket before others have their turn: some 50 us each."""

_NO_FILES_SECONDS = 0.1
"""How long to wait when no more files may be open."""


class ConnectionLimiter:
    """Who is connected: so many in all, and so many from one address. 0 is no bound."""

    def __init__(self, most: int = 0, most_per_peer: int = 0) -> None:
        self._most = most
        self._most_per_peer = most_per_peer
        self._count = 0
        self._peers: Counter[str] = Counter()

    def admit(self, peer: str) -> str:
        """Counts one more from an address; "" has none. Returns the bound that forbids it."""
        if self._most and self._count >= self._most:
            return "max_connections"
        if peer and self._most_per_peer and self._peers[peer] >= self._most_per_peer:
            return "max_connections_per_peer"
        self.count(peer)
        return ""

    def count(self, peer: str) -> None:
        """Counts one that is here already."""
        self._count += 1
        if peer:
            self._peers[peer] += 1

    def leave(self, peer: str) -> None:
        """One that was admitted has gone."""
        self._count -= 1
        if peer:
            self._peers[peer] -= 1
            if not self._peers[peer]:
                del self._peers[peer]


class Acceptor:
    """Takes connections from listening sockets, also after no more files could be opened."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sockets: Sequence[socket.socket],
        take: Callable[[socket.socket, str], None],
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        """`take` owns the connection it gets; the other end's address is "" for a Unix socket.

        `failed` is called when no connection can be accepted, as no more files can be opened.
        """
        self._loop = loop
        self.sockets = sockets
        self._take = take
        self._failed = failed
        self._started = False
        self._waiting: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Accepts from now on."""
        if not self._started:
            self._started = True
            self._listen()

    def stop(self) -> None:
        """Accepts no more; what waits in the sockets stays there."""
        if self._started:
            self._started = False
            if self._waiting is not None:
                self._waiting.cancel()
                self._waiting = None
            else:
                self._deafen()

    def _listen(self) -> None:
        self._waiting = None
        for each in self.sockets:
            self._loop.add_reader(each.fileno(), self._accept, each)

    def _deafen(self) -> None:
        for each in self.sockets:
            self._loop.remove_reader(each.fileno())

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            if not self._started:
                return
            try:
                connection, address = listener.accept()
            except (BlockingIOError, ConnectionError):
                return
            except OSError as error:
                log.error(  # noqa: TRY400 -- it says all
                    "no connection can be accepted: %s; trying again in %g s",
                    error.strerror,
                    _NO_FILES_SECONDS,
                )
                self._failed()
                self._deafen()
                self._waiting = self._loop.call_later(_NO_FILES_SECONDS, self._listen)
                return
            connection.setblocking(False)
            self._take(connection, "" if listener.family == socket.AF_UNIX else address[0])


def peer_of(connection: socket.socket) -> str:
    """The address at the other end; "" for a Unix socket, and where the other end has gone."""
    if connection.family == socket.AF_UNIX:
        return ""
    try:
        address = connection.getpeername()
    except OSError:
        return ""
    return unmapped(str(address[0]))


def unmapped(address: str) -> str:
    """An IPv4 address as such, also where a socket for both writes it as one of IPv6."""
    return address.removeprefix("::ffff:") if "." in address else address
