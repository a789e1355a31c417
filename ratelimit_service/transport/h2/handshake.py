"""TLS handshakes in turns: however many clients shake hands at once, others come in between.

A step of a handshake takes up to a millisecond, and asyncio would take all steps whose bytes have
come in one turn of the loop. So until both sides have agreed, the bytes of a connection wait for
their turn (`turns`), as the bytes of calls do. All handshakes together have the share of time that
one client has who makes calls. After a handshake the bytes go straight to the loop's own TLS.
What must not live here: which files TLS needs, and what is spoken over it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import deque
from typing import Final, cast

from ratelimit_service.clock import elapsed_us
from ratelimit_service.turns import Turns

__all__ = ["Handshakes"]

log = logging.getLogger(__name__)

_PIECE_BYTES: Final = 16_384
"""So many bytes are handled before it is another client's turn."""

_STEPS_AT_ONCE: Final = 4
"""So many steps are taken in one turn. What follows from a step is done after it, by the loop: a
handshake begins, or a connection that is lost is forgotten."""

_INBOX_BYTES: Final = 65_536
"""A client is not read from while so many of its bytes wait."""


class Handshakes:
    """All handshakes that are under way; the first in line takes its step next."""

    def __init__(self, turns: Turns) -> None:
        self.used_us = 0
        """How much time the handshakes have taken, for `turns` to compare."""
        self.dear = False
        self._turns = turns
        self._line: deque[_Handshake | _Beginning] = deque()
        self._waiting = False
        """Whether a turn has been asked for."""
        self._steps = 0
        """How many were taken in this turn."""

    async def agreed(
        self,
        connection: socket.socket,
        protocol: asyncio.Protocol,
        context: ssl.SSLContext,
        seconds: float,
    ) -> None:
        """Hands a connection to its protocol once both sides have agreed on TLS.

        Raises OSError if that fails or takes longer than so many seconds.
        """
        loop = asyncio.get_running_loop()
        beginning = _Beginning()
        self.line_up(beginning)
        await beginning.come
        raw, handshake = await loop.connect_accepted_socket(lambda: _Handshake(self), connection)
        if raw.is_closing():
            raise ConnectionResetError("the client has gone")
        guard = _Guard(protocol)
        # This must happen before TLS hears of the connection and of its first bytes.
        loop.call_soon(handshake.stand_before_tls)
        try:
            secured = await loop.start_tls(
                raw,
                guard,
                context,
                server_side=True,
                ssl_handshake_timeout=seconds,
                ssl_shutdown_timeout=seconds,
            )
        finally:
            handshake.stand_aside()
        if secured is None or guard.lost:
            raise ConnectionResetError("the client has gone")
        guard.let_through(secured)

    def line_up(self, handshake: _Handshake | _Beginning) -> None:
        """Takes in a handshake that can take a step."""
        self._line.append(handshake)
        self._ask_for_a_turn()

    def _ask_for_a_turn(self) -> None:
        if self._line and not self._waiting and self._steps < _STEPS_AT_ONCE:
            self._waiting = True
            self._turns.add(self, elapsed_us())

    def handle_piece(self, _now_us: int) -> bool:
        """Lets one handshake take a step; returns whether others can."""
        first = self._line.popleft()
        try:
            if first.step():
                self._line.append(first)
        except Exception as error:  # its fault must not cost others their turn
            first.fail(error)
        if not self._steps:
            asyncio.get_running_loop().call_soon(self._next_turn)
        self._steps += 1
        self._waiting = bool(self._line) and self._steps < _STEPS_AT_ONCE
        return self._waiting

    def _next_turn(self) -> None:
        self._steps = 0
        self._ask_for_a_turn()

    def end_turn(self) -> None:
        """Does nothing: TLS writes by itself."""

    def fail(self, error: Exception) -> None:
        """Does nothing, and is never called: the two above raise nothing."""


class _Beginning:
    """A connection whose handshake has not begun."""

    def __init__(self) -> None:
        self.come: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Is done when the handshake may begin."""

    def step(self) -> bool:
        """Lets it begin."""
        if not self.come.done():
            self.come.set_result(None)
        return False

    def fail(self, error: Exception) -> None:
        """Tells whoever waits of a fault of ours."""
        if not self.come.done():
            self.come.set_exception(error)


class _Guard(asyncio.Protocol):
    """Stands before a protocol, and tells it nothing before its connection is made."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        self._protocol = protocol
        self._through = False
        self._early: list[bytes] = []
        self.lost = False

    def let_through(self, transport: asyncio.Transport) -> None:
        """The connection is made."""
        self._through = True
        transport.set_protocol(self._protocol)
        self._protocol.connection_made(transport)
        for data in self._early:
            self._protocol.data_received(data)
        self._early.clear()

    def data_received(self, data: bytes) -> None:
        """Called by TLS: the end of the handshake may bring the client's first bytes with it."""
        self._early.append(data)

    def connection_lost(self, error: Exception | None) -> None:
        """Called by TLS."""
        self.lost = True
        if self._through:
            self._protocol.connection_lost(error)


class _Handshake(asyncio.Protocol):
    """Stands between a connection and its TLS until both sides have agreed."""

    def __init__(self, handshakes: Handshakes) -> None:
        self._handshakes = handshakes
        self._tls: asyncio.BufferedProtocol | None = None
        self._raw: asyncio.Transport | None = None
        self._inbox = bytearray()
        self._paused = False
        self._waiting = False
        """Whether it stands in line for its next step."""
        self._begun = False
        """Whether TLS knows of the connection."""
        self._aside = False
        self._lost = False
        self._error: Exception | None = None
        """The error with which the connection was lost."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        # uvloop's transports are none of asyncio's classes, so the type is asyncio's word.
        self._raw = cast(asyncio.Transport, transport)

    def stand_before_tls(self) -> None:
        """Takes the connection's bytes from now on, and hands them on in turns."""
        if self._raw is None or self._aside:
            return
        self._tls = cast(asyncio.BufferedProtocol, self._raw.get_protocol())
        self._raw.set_protocol(self)
        # What came already must not be there when TLS hears of the connection: it would take its
        # first step at once.
        asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._begun = True
        self._line_up()

    def stand_aside(self) -> None:
        """Ends the handshake: TLS gets the bytes that wait here, and all later ones by itself."""
        self._aside = True
        if self._raw is None or self._tls is None:
            return
        self._raw.set_protocol(self._tls)
        while self._inbox and not self._raw.is_closing():
            self._hand_on()
        if self._paused:
            self._raw.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        self._inbox += data
        if len(self._inbox) > _INBOX_BYTES and self._raw is not None and not self._paused:
            self._paused = True
            self._raw.pause_reading()
        self._line_up()

    def connection_lost(self, error: Exception | None) -> None:
        """Called by asyncio. The end of a handshake takes a turn, too: many may end at once."""
        self._raw = None
        # Without an error TLS would take a client that hung up for one that has agreed.
        self._lost, self._error = True, error or ConnectionResetError("the client has gone")
        self._inbox.clear()
        self._line_up()

    def step(self) -> bool:
        """Takes a step of the handshake; returns whether there are bytes for another."""
        if self._lost and self._tls is not None:
            # The exception refers to the task that waits for this object: kept here, it would
            # make a cycle.
            error, self._error = self._error, None
            self._tls.connection_lost(error)
            return False
        if self._aside or self._raw is None:
            self._waiting = False
            return False
        self._hand_on()
        self._waiting = bool(self._inbox)
        if not self._waiting and self._paused and not self._aside and self._raw is not None:
            self._paused = False
            self._raw.resume_reading()
        return self._waiting

    def fail(self, error: Exception) -> None:
        """Drops the connection for a fault of ours."""
        log.error("a fault in a TLS handshake: please report this", exc_info=error)
        if self._raw is not None:
            self._raw.abort()

    def _line_up(self) -> None:
        if (self._inbox or self._lost) and self._begun and not self._waiting:
            self._waiting = True
            self._handshakes.line_up(self)

    def _hand_on(self) -> None:
        assert self._tls is not None  # noqa: S101 -- nobody asks for a turn before
        room = memoryview(self._tls.get_buffer(_PIECE_BYTES))
        size = min(len(self._inbox), _PIECE_BYTES, len(room))
        room[:size] = self._inbox[:size]
        del self._inbox[:size]
        self._tls.buffer_updated(size)
