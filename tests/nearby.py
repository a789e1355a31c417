"""A network within this process: listening sockets, and connections to them, which are pairs.

Nobody else can reach them, and no port is taken. Clients in this process find who listens by the
number of a port all the same, while `reachable`.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import socket
import ssl
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

__all__ = ["Listener", "reachable"]

_LOOPBACK = "127.0.0.1"

_ports = itertools.count(1)
_listeners: dict[int, Listener] = {}
_connect = socket.create_connection


class _End(socket.socket):
    """One end of a pair, which says of itself what a socket of TCP does."""

    names = (("", 0), ("", 0))
    """Its own address, and that of the other end."""

    @property
    def family(self) -> socket.AddressFamily:
        return socket.AF_INET

    def setsockopt(self, level: int, *option: Any) -> None:
        """Those of TCP mean nothing here."""
        if level != socket.IPPROTO_TCP:
            super().setsockopt(level, *option)

    def getsockname(self) -> tuple[str, int]:
        return self.names[0]

    def getpeername(self) -> tuple[str, int]:
        return self.names[1]


def _pair(near: tuple[str, int], far: tuple[str, int]) -> tuple[_End, _End]:
    ends = [_End(fileno=each.detach()) for each in socket.socketpair()]
    ends[0].names, ends[1].names = (near, far), (far, near)
    return ends[0], ends[1]


class Listener(_End):
    """A listening socket. There is something to be read while somebody waits to be accepted."""

    def __init__(self, host: str = _LOOPBACK) -> None:
        self._bell, knocked = socket.socketpair()
        super().__init__(fileno=knocked.detach())
        self.setblocking(False)
        self.port = next(_ports)
        self.names = ((host, self.port), ("", 0))
        self._waiting = deque[_End]()
        _listeners[self.port] = self

    def connection(self, host: str = _LOOPBACK) -> socket.socket:
        """A new connection to it from an address. Raises ConnectionRefusedError once closed."""
        if self.fileno() < 0:
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        client, server = _pair((host, next(_ports)), self.names[0])
        self._waiting.append(server)
        self._bell.send(b".")
        return client

    async def connected(
        self, host: str = _LOOPBACK, tls: ssl.SSLContext | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """The same for asyncio, over TLS if there is a context."""
        name = "localhost" if tls else None
        return await asyncio.open_connection(
            sock=self.connection(host), ssl=tls, server_hostname=name
        )

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        self.recv(1)  # BlockingIOError if nobody waits
        connection = self._waiting.popleft()
        return connection, connection.getpeername()

    def close(self) -> None:
        while self._waiting:
            self._waiting.popleft().close()
        self._bell.close()
        super().close()


@contextmanager
def reachable() -> Iterator[None]:
    """Within, `socket.create_connection` finds who listens here before it looks elsewhere."""

    def found(address: tuple[str, int], *more: Any, **named: Any) -> socket.socket:
        listener = _listeners.get(address[1])
        if listener is None:
            return _connect(address, *more, **named)
        connection = listener.connection()
        for timeout in (*more[:1], named.get("timeout")):
            if isinstance(timeout, int | float):  # else it is as sockets have it
                connection.settimeout(timeout)
        return connection

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "create_connection", found)
        yield
