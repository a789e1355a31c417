"""One client's socket: bytes between asyncio and the connection, and all that needs a clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, cast
from typing import Protocol as Signature

from ratelimit_service.transport.h2.connection import Connection, Event, Methods
from ratelimit_service.transport.h2.frames import ErrorCode

__all__ = ["Calls", "Protocol"]

GREETING_SECONDS: Final = 10.0
"""How long a client may take to speak HTTP/2 at all."""

BLOCKED_SECONDS: Final = 30.0
"""How long a client may keep its windows shut while answers wait."""

TURN_SECONDS: Final = 0.002
"""For how long one connection's calls are handled before others have their turn."""

_PIECE_CALLS: Final = 32
"""What is handled between two looks at the clock."""

PING_SECONDS: Final = 30.0
"""How often a silent client is asked whether it is there, and how long it has to answer."""


class Calls(Signature):
    """What the events of a connection are for."""

    def handle(self, protocol: Protocol, events: list[Event]) -> None:
        """Takes the events of one read, in order."""

    def forget(self, protocol: Protocol) -> None:
        """The connection is gone: nothing can be answered any more."""

    def failed(self, error: Exception) -> None:
        """Hears of a fault of ours, of which the connection ends."""


class Protocol(asyncio.Protocol):
    """One connection's socket. What is written within one tick goes out in one write."""

    def __init__(self, calls: Calls, methods: Methods, closed: Callable[[Protocol], None]) -> None:
        """`closed` is called once, when the connection is gone."""
        self._loop = asyncio.get_running_loop()
        self._calls = calls
        self._closed = closed
        self._transport: asyncio.Transport | None = None
        self._flushing = False
        self._writing_paused = self._reading_paused = False
        self._opened_at = self._heard_at = self._loop.time()
        self._blocked_since: float | None = None
        self._pinged_at: float | None = None
        self.connection = Connection(methods)
        self.made = False
        """Whether the connection was made: with TLS, when both have agreed."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        # uvloop's transports are none of asyncio's classes, so the type is asyncio's word.
        self._transport = cast(asyncio.Transport, transport)
        self.made = True
        self.flush()

    def data_received(self, data: bytes) -> None:
        """Called by asyncio: everything in one read is handled as one batch."""
        self._heard_at = self._loop.time()
        self._pinged_at = None
        self._read_on(data)

    def _read_on(self, data: bytes = b"") -> None:
        """Handles what was read, for a while; then it is other connections' turn."""
        connection = self.connection
        until = self._loop.time() + TURN_SECONDS
        self._flushing = True  # as happens below, so no answer need ask for it
        try:
            while True:
                events = connection.receive(data, _PIECE_CALLS)
                if events:
                    self._calls.handle(self, events)
                if not connection.has_more:
                    self._resume_reading()
                    break
                if self._loop.time() > until:
                    self._pause_reading()
                    self._loop.call_soon(self._next_turn)
                    break
                data = b""
        except Exception as error:  # nobody knows what was read, so nothing more can be
            self._calls.failed(error)
            connection.abandon(ErrorCode.INTERNAL_ERROR, "the service failed: see its log")
        finally:
            self._flushing = False
        self.flush()

    def _next_turn(self) -> None:
        if self._transport is not None and self.connection.has_more:
            self._read_on()

    def connection_lost(self, _: Exception | None) -> None:
        """Called by asyncio."""
        self._transport = None
        self.connection.closing = True
        self._calls.forget(self)
        self._closed(self)

    def pause_writing(self) -> None:
        """Called by asyncio: a client that does not read is not read from."""
        self._writing_paused = True
        self._pause_reading()

    def resume_writing(self) -> None:
        """Called by asyncio."""
        self._writing_paused = False
        self._resume_reading()

    def _pause_reading(self) -> None:
        if self._transport is not None and not self._reading_paused:
            self._reading_paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._reading_paused and not self.connection.has_more and not self._writing_paused:
            self._reading_paused = False
            if self._transport is not None:
                self._transport.resume_reading()

    def flush(self) -> None:
        """Writes what the connection has to say, at once."""
        transport = self._transport
        if transport is None:
            return
        output = self.connection.take_output()
        if output:
            transport.write(output)
        if self.connection.closing:
            transport.close()

    def flush_soon(self) -> None:
        """Writes at the end of this tick, together with whatever else is said until then."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._flushing = False
        self.flush()

    def abort(self) -> None:
        """Drops the connection without a word."""
        if self._transport is not None:
            self._transport.abort()

    def look(self, now: float, max_age: float) -> None:
        """Gives up what hangs, asks what is silent, ends what is old; call it once a second."""
        connection = self.connection
        connection.calm()
        if not connection.greeted:
            if now - self._opened_at > GREETING_SECONDS:
                connection.abandon(ErrorCode.PROTOCOL_ERROR, "nothing was said")
        elif self._is_stuck(now):
            connection.abandon(ErrorCode.ENHANCE_YOUR_CALM, "answers cannot be delivered")
            self.flush()
            self.abort()
        elif self._pinged_at is not None:
            if now - self._pinged_at > PING_SECONDS:
                self.abort()
        elif now - self._heard_at > PING_SECONDS:
            self._pinged_at = now
            connection.ping()
        if max_age and now - self._opened_at > max_age:
            connection.shut_down()
        self.flush()

    def _is_stuck(self, now: float) -> bool:
        if not self.connection.blocked:
            self._blocked_since = None
            return False
        if self._blocked_since is None:
            self._blocked_since = now
        return now - self._blocked_since > BLOCKED_SECONDS
