"""TLS in turns: handshakes, and what clients send over TLS, a few records at a time.

asyncio would take all steps of handshakes, and open all records, whose bytes have come in one turn
of the loop. A step takes up to a millisecond. A record of 27 bytes that changes the keys takes some
35 us, so that what is read in one go would take a third of a second. So here the bytes of a
connection wait for their turn (`turns`). Until both sides have agreed, all handshakes together have
the share of time that one client has who makes calls. From then on the connection's `Opener` says
when it is its turn. What must not live here: which files TLS needs, and what is spoken over it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import deque
from typing import Final, Protocol, cast

from ratelimit_service.eventloop.clock import elapsed_us
from ratelimit_service.eventloop.turns import Turns

__all__ = ["Handshakes", "Opener", "Sealed", "empty_records"]

log = logging.getLogger(__name__)

_RECORDS_OF_STEP: Final = 4
"""So many records are a step of a handshake: what a usual client says at once."""

_RECORDS_AT_ONCE: Final = 32
"""So many records are opened before it is another client's turn: a millisecond at most."""

_PIECE_BYTES: Final = 16_384
"""After so many bytes no further record is opened."""

_INBOX_BYTES: Final = 65_536
"""A client is not read from while so many of its bytes wait for its handshake."""

_HEAD_BYTES: Final = 5
_MOST_RECORD_BYTES: Final = _HEAD_BYTES + 16_384 + 2_048
_KINDS: Final = range(20, 24)
"""How records begin (RFC 8446 5.1), and the most that one may have (of TLS 1.2)."""

_WRAP_BYTES: Final = 22
"""What a record of TLS 1.3 has beside its contents: head, kind and tag."""

_KEY_UPDATE_BYTES: Final = 5
"""The shortest contents of which nothing comes."""


class Opener(Protocol):
    """Whoever a connection's bytes are opened for; it calls `Sealed.open_some` in its turns."""

    def open_from(self, sealed: Sealed, early: bytes) -> None:
        """Both sides have agreed; `early` was opened already, and more may have come."""

    def sealed_received(self, data: bytes) -> None:
        """Bytes have come: takes them in with `Sealed.put`, and asks for a turn."""


class Secured(Protocol):
    """Whoever hears what was in a connection's records. All of it is as asyncio's protocols."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Both sides have agreed."""

    def data_received(self, data: bytes) -> None:
        """So much was opened."""

    def eof_received(self) -> bool | None:
        """Nothing more will come."""

    def pause_writing(self) -> None:
        """Too much waits to be sent."""

    def resume_writing(self) -> None:
        """It does no longer."""

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is gone."""


class Handshakes:
    """All handshakes that are under way; the first in line takes its step next.

    A turn has one step. What follows from it is done after the turn, by the loop: a handshake
    begins, or a connection that is lost is forgotten.
    """

    def __init__(self, turns: Turns) -> None:
        self.used_us = 0
        """How much time the handshakes have taken, for `turns` to compare."""
        self.dear = self.brought_calls = self.late = False
        self.little_pieces = 0
        self._turns = turns
        self.reads = turns.reads
        self._line: deque[Sealed | _Beginning] = deque()
        self._waiting = False
        """Whether a turn has been asked for, or will be in the next round of the loop."""

    async def agreed(
        self,
        connection: socket.socket,
        protocol: Secured,
        opener: Opener,
        context: ssl.SSLContext,
        seconds: float,
    ) -> None:
        """Hands a connection to its protocol and opener once both sides have agreed on TLS.

        Raises OSError if that fails or takes longer than so many seconds.
        """
        loop = asyncio.get_running_loop()
        beginning = _Beginning()
        self.line_up(beginning)
        await beginning.come
        raw, sealed = await loop.connect_accepted_socket(lambda: Sealed(self), connection)
        if raw.is_closing():
            raise ConnectionResetError("the client has gone")
        guard = _Guard(protocol)
        # This must happen before TLS hears of the connection and of its first bytes.
        loop.call_soon(sealed.stand_before_tls)
        secured = None
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
            if secured is None:
                sealed.give_up()
        if secured is None or guard.lost:
            raise ConnectionResetError("the client has gone")
        sealed.version = secured.get_extra_info("ssl_object").version()
        sealed.open_for(opener, guard.let_through(secured))

    def line_up(self, handshake: Sealed | _Beginning) -> None:
        """Takes in a handshake that can take a step."""
        self._line.append(handshake)
        if not self._waiting:
            self._waiting = True
            self._turns.add(self, elapsed_us())

    def handle_piece(self, _now_us: int, *, at_once: bool = False) -> bool:  # noqa: ARG002
        """Lets one handshake take a step; the next one has to wait for another turn."""
        first = self._line.popleft()
        try:
            if first.step():
                self._line.append(first)
        except Exception as error:  # its fault must not cost others their turn
            first.fail(error)
        asyncio.get_running_loop().call_soon(self._next_turn)
        return False

    def _next_turn(self) -> None:
        self._waiting = bool(self._line)
        if self._waiting:
            self._turns.add(self, elapsed_us())

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

    def __init__(self, protocol: Secured) -> None:
        self._protocol = protocol
        self._through = False
        self._early: list[bytes] = []
        self.lost = False

    def let_through(self, transport: asyncio.Transport) -> bytes:
        """The connection is made; returns what the client has said already."""
        self._through = True
        self._protocol.connection_made(transport)
        early = b"".join(self._early)
        self._early.clear()
        return early

    def data_received(self, data: bytes) -> None:
        """Called by TLS: the end of the handshake may bring the client's first bytes with it."""
        if self._through:
            self._protocol.data_received(data)
        else:
            self._early.append(data)

    def eof_received(self) -> bool | None:
        """Called by TLS."""
        return self._protocol.eof_received() if self._through else None

    def pause_writing(self) -> None:
        """Called by TLS."""
        if self._through:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """Called by TLS."""
        if self._through:
            self._protocol.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        """Called by TLS."""
        self.lost = True
        if self._through:
            self._protocol.connection_lost(error)


class Sealed(asyncio.BufferedProtocol):
    """Stands between a connection and its TLS: keeps what was read until it may be opened."""

    def __init__(self, handshakes: Handshakes) -> None:
        self._handshakes = handshakes
        self._reads = handshakes.reads
        self._opener: Opener | None = None
        """Who opens what comes, once both sides have agreed."""
        self._tls: asyncio.BufferedProtocol | None = None
        self._raw: asyncio.Transport | None = None
        self._data, self._at = b"", 0
        """The bytes to be opened next, and where they begin."""
        self._later: deque[tuple[int, bytes]] = deque()
        """What was read after these, each with the time of its read."""
        self.came_us = 0
        """When what is opened next was read, by `elapsed_us`."""
        self.size = 0
        """How many bytes wait."""
        self.ready = False
        """Whether there may be a whole record among them."""
        self.version: str | None = None
        """Of TLS, once both sides have agreed."""
        self._paused = False
        self._waiting = False
        """Whether it stands in line for its next step."""
        self._begun = False
        """Whether TLS knows of the connection."""
        self._lost = self._given_up = False
        self._error: Exception | None = None
        """The error with which the connection was lost."""

    # The handshake

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        # uvloop's transports are none of asyncio's classes, so the type is asyncio's word.
        self._raw = cast(asyncio.Transport, transport)

    def stand_before_tls(self) -> None:
        """Takes the connection's bytes from now on, and hands them on in turns."""
        if self._raw is None or self._given_up:
            return
        self._tls = cast(asyncio.BufferedProtocol, self._raw.get_protocol())
        self._raw.set_protocol(self)
        # What came already must not be there when TLS hears of the connection: it would take its
        # first step at once.
        asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._begun = True
        self._line_up()

    def step(self) -> bool:
        """Takes a step of the handshake; returns whether there are bytes for another."""
        self._waiting = False
        if self._lost and self._tls is not None:
            # The exception refers to the task that waits for this object: kept here, it would
            # make a cycle.
            error, self._error = self._error, None
            tls, self._tls = self._tls, None
            tls.connection_lost(error)
        elif self._opener is None and self._raw is not None and not self._given_up:
            self.open_some(_RECORDS_OF_STEP)
            self._waiting = self.ready
            if self._paused and self.size <= _INBOX_BYTES:
                self.resume_reading()
        return self._waiting

    def fail(self, error: Exception) -> None:
        """Drops the connection for a fault of ours."""
        log.error("a fault in a TLS handshake: please report this", exc_info=error)
        if self._raw is not None:
            self._raw.abort()

    def give_up(self) -> None:
        """The handshake has failed: TLS gets nothing more."""
        self._given_up = True
        self._forget()

    def open_for(self, opener: Opener, early: bytes) -> None:
        """The handshake is done: from now on `opener` says when records are opened.

        `early` was opened already.
        """
        if self._lost:
            return
        self._opener = opener
        if self._paused:
            self.resume_reading()
        opener.open_from(self, early)

    def _line_up(self) -> None:
        if (self.ready or self._lost) and self._begun and not self._waiting:
            self._waiting = True
            self._handshakes.line_up(self)

    # What asyncio calls

    def get_buffer(self, _: int) -> memoryview:
        """Called by asyncio before it reads."""
        return self._reads.room

    def buffer_updated(self, nbytes: int) -> None:
        """Called by asyncio when it has read."""
        self.received(bytes(self._reads.whole[:nbytes]))
        if self.size:
            self._reads.charge(nbytes)

    def received(self, data: bytes) -> None:
        """Takes in what was read."""
        if self._opener is not None:
            self._opener.sealed_received(data)
        elif not self._given_up:
            self.put(elapsed_us(), data)
            full = self.size > _INBOX_BYTES or self._reads.is_much(self.size)
            if full and not self._paused:
                self.pause_reading()
            self._line_up()

    def eof_received(self) -> bool | None:
        """Called by asyncio. Without an opener the connection is closed."""
        return self._tls.eof_received() if self._opener is not None and self._tls else None

    def pause_writing(self) -> None:
        """Called by asyncio."""
        if self._tls is not None:
            self._tls.pause_writing()

    def resume_writing(self) -> None:
        """Called by asyncio."""
        if self._tls is not None:
            self._tls.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        """Called by asyncio. The end of a handshake takes a turn, too: many may end at once."""
        self._raw = None
        self._forget()
        if self._opener is not None:
            tls, self._tls, self._opener = self._tls, None, None
            if tls is not None:
                tls.connection_lost(error)
            return
        # Without an error TLS would take a client that hung up for one that has agreed.
        self._lost, self._error = True, error or ConnectionResetError("the client has gone")
        self._line_up()

    # What the opener calls

    def pause_reading(self) -> None:
        """Reads nothing more from the client for now."""
        self._paused = True
        if self._raw is not None:
            self._raw.pause_reading()

    def resume_reading(self) -> None:
        """Reads on."""
        self._paused = False
        if self._raw is not None and not self._raw.is_closing():
            self._raw.resume_reading()

    def put(self, came_us: int, data: bytes) -> None:
        """Takes in what was read at this time."""
        if self.size:
            self._later.append((came_us, data))
        else:
            self._data, self._at, self.came_us = data, 0, came_us
        self.size += len(data)
        self.ready = True

    def open_some(self, most: int = _RECORDS_AT_ONCE) -> tuple[int, int]:
        """Has TLS open so many whole records at most; what was in them comes before this returns.

        Returns how many there were, and how many bytes they had.
        """
        records, size = self._whole(most)
        while not size and self._later:
            _, data = self._later.popleft()
            self._data, self._at = self._data[self._at :] + data, 0
            records, size = self._whole(most)
        if size and self._tls is not None:
            part = self._data[self._at : self._at + size]
            self._at += size
            self.size -= size
            room = memoryview(self._tls.get_buffer(size))
            room[:size] = part
            self._tls.buffer_updated(size)
        if self._at == len(self._data) and self._later:
            self.came_us, self._data = self._later.popleft()
            self._at = 0
        self.ready = bool(self._later) or self._whole(1)[1] > 0
        if not self.ready:
            self._data, self._at = self._data[self._at :], 0
        return records, size

    def _whole(self, most: int) -> tuple[int, int]:
        """How many whole records are to be opened next, and how many bytes they have."""
        data, stop, records = self._data, self._at, 0
        while records < most and stop - self._at < _PIECE_BYTES and stop + _HEAD_BYTES <= len(data):
            size = _HEAD_BYTES + (data[stop + 3] << 8 | data[stop + 4])
            if data[stop] not in _KINDS or size > _MOST_RECORD_BYTES:
                # TLS ends the connection for it, and must hear of it for that.
                return records + 1, min(len(data) - self._at, _MOST_RECORD_BYTES)
            if stop + size > len(data):
                break
            stop += size
            records += 1
        return records, stop - self._at

    def _forget(self) -> None:
        self._data, self._at, self.size, self.ready = b"", 0, 0, False
        self._later.clear()


def empty_records(version: str | None, records: int, size: int, contents: int) -> int:
    """How many of these opened records had no contents for the protocol behind TLS.

    The records had `size` bytes, and `contents` of these were for the protocol. Only TLS 1.3 has
    thousands of records without contents. There each record has a few bytes of its own.
    """
    if version != "TLSv1.3":
        return 0 if contents else records
    return min(records, max(0, size - contents - _WRAP_BYTES * records) // _KEY_UPDATE_BYTES)
