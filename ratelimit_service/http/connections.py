"""What a connection to an HTTP port may take: time, and room beside others.

aiohttp waits for a request for as long as a client likes. Here each connection has a deadline for
what it is to do next, and there are so many of them at most. aiohttp and TLS also handle all that
was read in one go, which takes long where a body comes in chunks of one byte, or where hundreds
shake hands at once. So in each round of the event loop one connection has a kilobyte handed on.
What requests mean is not known here.
"""

from __future__ import annotations

import asyncio
import ssl
from asyncio.sslproto import SSLProtocol
from collections import Counter, deque
from collections.abc import Callable
from math import inf

__all__ = ["BODY_SECONDS", "WRITE_SECONDS", "HttpConnections"]

HEAD_SECONDS = 10.0
"""How long the head of a request may take: from the connection, or from its own first byte, to the
end. A TLS handshake is part of it."""

BODY_SECONDS = 10.0
"""How long a body may take, from the end of the head."""

IDLE_SECONDS = 75.0
"""How long a connection may be idle after an answer. Scrapers come once a minute or more often."""

WRITE_SECONDS = 30.0
"""How long a part of an answer may wait for its reader."""

CLOSE_SECONDS = 5.0
"""How long a closed connection may take to hand over what is left of its answer."""

MAX_CONNECTIONS = 512
MAX_CONNECTIONS_PER_PEER = 128
"""How many connections there may be, in all and of one address."""

_PIECE_BYTES = 1_024
"""So much of what a client has sent is handled in a round of the event loop. That is a step of a
TLS handshake, or up to 170 chunks of one byte: a millisecond."""

_LAST_ANSWER_SECONDS = 0.1
"""How long an answer may take for a client that sends no more."""

_LOOK_SECONDS = 1.0

_ENDED_AT_ONCE = 4
"""How many late connections are ended in one round of the event loop: aiohttp takes its time for
what each leaves behind."""


class HttpConnections:
    """The connections of one HTTP port."""

    def __init__(self, make: Callable[[], asyncio.Protocol], closed: Counter[str]) -> None:
        """`make` gives each connection its protocol; `closed` counts those ended here, by reason.

        The reasons are `slow`, `crowded` and `handshake`.
        """
        self._make = make
        self._closed = closed
        self._loop = asyncio.get_running_loop()
        self._open: dict[asyncio.Protocol, _Connection] = {}
        """By the protocol that `make` has made; the oldest first."""
        self._waiting: deque[_Connection] = deque()
        """Those whose client has sent something, in the order in which it is handed on."""
        self._changed = asyncio.Event()
        """Set whenever one has its answer, or is gone."""
        self.room = memoryview(bytearray(_PIECE_BYTES))
        """What is read is here for a moment."""
        self._look()

    def __len__(self) -> int:
        return len(self._open)

    def protocol(self, context: ssl.SSLContext | None) -> asyncio.BufferedProtocol:
        """The protocol of the next connection, which speaks TLS if there is a context."""
        return _Connection(self, self._make(), context)

    async def answered(self) -> None:
        """Waits until no connection expects an answer, not even its first one."""
        while not all(connection.idle for connection in self._open.values()):
            self._changed.clear()
            await self._changed.wait()

    def close(self) -> None:
        """Ends those that have not asked for anything yet; looks for late ones no more."""
        self._looking.cancel()
        for connection in list(self._open.values()):
            if not (connection.busy or connection.idle):
                connection.transport.abort()

    def begin(self, inner: asyncio.Protocol) -> None:
        """A request's head has come on the connection of this protocol."""
        if (connection := self._open.get(inner)) is not None:
            connection.busy, connection.idle, connection.deadline = True, False, inf

    def finish(self, inner: asyncio.Protocol) -> None:
        """The request has its answer."""
        if (connection := self._open.get(inner)) is not None:
            connection.busy, connection.idle = False, True
            connection.deadline = self._loop.time() + IDLE_SECONDS
            self._changed.set()

    def opened(self, connection: _Connection) -> None:
        """If there is no room, the one goes that has waited longest for a request."""
        self._open[connection.inner] = connection
        crowd = [other for other in self._open.values() if other.peer == connection.peer]
        if len(crowd) <= MAX_CONNECTIONS_PER_PEER:
            crowd = list(self._open.values()) if len(self._open) > MAX_CONNECTIONS else []
        if crowd:
            self._end(next(other for other in crowd if not other.busy), "crowded")

    def lost(self, connection: _Connection) -> None:
        """The connection is gone."""
        self._open.pop(connection.inner, None)
        self._changed.set()

    def handshake_done(self, agreed: asyncio.Future[None]) -> None:
        """Both sides have agreed on TLS, or have not."""
        if agreed.exception() is not None:
            self._closed["handshake"] += 1

    def line_up(self, connection: _Connection) -> None:
        """Has what this connection's client has sent handed on when it is its turn."""
        self._waiting.append(connection)
        if len(self._waiting) == 1:
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        first = self._waiting.popleft()
        if self._waiting:
            self._loop.call_soon(self._next)
        first.hand_on()

    def _look(self) -> None:
        """Ends what is late, a few in each round of the event loop; looks again in a second."""
        now, late = self._loop.time(), []
        for connection in self._open.values():
            if connection.transport.is_closing():
                connection.deadline = min(connection.deadline, now + CLOSE_SECONDS)
            if now >= connection.deadline:
                late.append(connection)
        for connection in late[:_ENDED_AT_ONCE]:
            self._end(connection, "slow")
        self._looking = self._loop.call_later(0 if late else _LOOK_SECONDS, self._look)

    def _end(self, connection: _Connection, reason: str) -> None:
        self._closed[reason] += 1
        self.lost(connection)
        connection.transport.abort()


class _Tls(SSLProtocol):
    """asyncio's TLS, which is handed what was read: `ssl=` of the event loop reads by itself."""

    max_size = 16_384
    """Bytes of a connection's buffer, of which asyncio gives each connection 256 KiB."""


class _Connection(asyncio.BufferedProtocol):
    """One connection: hands on what its client sends, to TLS if that is spoken, else to aiohttp."""

    transport: asyncio.Transport

    def __init__(
        self, connections: HttpConnections, inner: asyncio.Protocol, context: ssl.SSLContext | None
    ) -> None:
        self._connections = connections
        self._loop = loop = asyncio.get_running_loop()
        self.inner = inner
        """aiohttp's protocol."""
        self._tls: _Tls | None = None
        if context is not None:
            agreed: asyncio.Future[None] = loop.create_future()
            agreed.add_done_callback(connections.handshake_done)
            self._tls = _Tls(
                loop, inner, context, agreed, server_side=True, ssl_shutdown_timeout=CLOSE_SECONDS
            )
        self._receiver: asyncio.Protocol | _Tls = self._tls or inner
        """Who hears of the connection next."""
        self._piece = b""
        """What is to be handed on; meanwhile nothing more is read."""
        self.peer = ""
        self.busy = False
        """Whether a request is being answered."""
        self.idle = False
        """Whether nothing has come since the last answer."""
        self.deadline = loop.time() + HEAD_SECONDS

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        address = transport.get_extra_info("peername")
        self.peer = str(address[0]) if address else ""
        self._receiver.connection_made(transport)
        self._connections.opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._connections.room

    def buffer_updated(self, nbytes: int) -> None:
        if self.idle:
            self.idle = False
            self.deadline = self._loop.time() + HEAD_SECONDS
        if not self._piece:
            self._connections.line_up(self)
        self._piece += self._connections.room[:nbytes]
        self.transport.pause_reading()

    def hand_on(self) -> None:
        """Hands on what was read; then more is read, unless aiohttp or TLS wants no more."""
        piece, self._piece = self._piece, b""
        if self.transport.is_closing():
            return
        self.transport.resume_reading()
        if self._tls is None:
            self.inner.data_received(piece)
        else:
            self._tls.get_buffer(len(piece))[: len(piece)] = piece
            self._tls.buffer_updated(len(piece))

    def eof_received(self) -> bool:
        """Leaves a little time for the answer if the client sends no more after its request."""
        if self._tls is not None:
            self._tls.eof_received()
            return False
        if not self.idle:
            self._loop.call_later(_LAST_ANSWER_SECONDS, self.transport.close)
        return not self.idle

    def pause_writing(self) -> None:
        self._receiver.pause_writing()

    def resume_writing(self) -> None:
        self._receiver.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.lost(self)
        self._receiver.connection_lost(exc)
