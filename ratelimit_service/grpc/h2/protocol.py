"""One client's socket: moves bytes between asyncio and the connection, and keeps the time.

What must not live here: what bytes say (`connection`), what becomes of calls (`calls`), how a late
client's socket is read (`drawing`), when none is read (`read_pauses`), whether the client is still
there (`presence`).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol, cast

from ratelimit_service.eventloop.clock import elapsed_us
from ratelimit_service.eventloop.reads import LITTLE_BYTES
from ratelimit_service.eventloop.turns import TURN_US, Turns
from ratelimit_service.grpc.h2.budget import Memory
from ratelimit_service.grpc.h2.connection import Connection, Methods, Received
from ratelimit_service.grpc.h2.drawing import NEVER_US, Drawing
from ratelimit_service.grpc.h2.frames import ErrorCode
from ratelimit_service.grpc.h2.inbox import PIECE_BYTES, Inbox
from ratelimit_service.grpc.h2.limits import INBOX_BYTES
from ratelimit_service.grpc.h2.overload import FRESH_US, Allowance, Backlog
from ratelimit_service.grpc.h2.presence import Presence
from ratelimit_service.grpc.h2.read_pauses import ReadPauses
from ratelimit_service.net.handshakes import Sealed, empty_records

__all__ = ["CallHandler", "Http2Protocol"]

_PIECE_CALLS: Final = 32
"""So many calls or frames are handled before it is another client's turn."""

_BULK_CALLS: Final = 64
_BULK_BYTES: Final = 16_384
"""The same, and how many bytes, of a client that sends many usual calls at once, and is in time:
what it has under way is one piece then. Each piece has costs of its own."""

_LATE_CALLS: Final = 256
"""The same of calls that there is no time for: to refuse one takes a microsecond or two. Among them
may be calls of callers who name no deadline. So many of these take about a turn."""

_SHORT_US: Final = TURN_US // 2
"""A piece that took less is followed by another one of the same read. So what came in one read is
answered in one write, and the client's next calls come in one read as well. If each piece waited
for those of others, reads and writes would be as small as pieces."""

_OPENINGS: Final = 8
"""So often some records are opened in one visit, unless one of them had no contents. Then their
calls can be handled, or refused, together."""


class CallHandler(Protocol):
    """Takes what a connection hears, and answers it."""

    def handle(self, protocol: Http2Protocol, received: Received, *, at_once: bool) -> None:
        """Takes what came of one piece, in order, to be decided `at_once` or with the turn."""

    def forget(self, protocol: Http2Protocol) -> None:
        """Hears that the connection is gone: nothing can be answered any more."""

    @property
    def wants_origins(self) -> bool:
        """Whether somebody asks who makes calls."""

    def next_are_late(self, protocol: Http2Protocol) -> bool:
        """Whether there is no time to count the calls of its next piece, as far as is known."""

    def store_us(self, protocol: Http2Protocol) -> int | None:
        """For how long calls wait in the store now; None if nobody waits for a store."""

    @property
    def allowance(self) -> Allowance:
        """How much is counted of clients that are late."""

    def failed(self, error: Exception) -> None:
        """Hears of a fault of ours that ends the connection."""


class Http2Protocol(asyncio.BufferedProtocol):
    """One connection's socket. What is written within one tick goes out in one write."""

    def __init__(
        self,
        calls: CallHandler,
        methods: Methods,
        turns: Turns,
        closed: Callable[[Http2Protocol], None],
        memory: Memory | None = None,
    ) -> None:
        """`closed` is called once, when the connection is gone. It sees to it that `forget` is.

        `memory` is what all connections share.
        """
        self._loop = asyncio.get_running_loop()
        self._calls = calls
        self._turns = turns
        self._reads = turns.reads
        self._closed = closed
        self._inbox = Inbox()
        self._more = self._waiting = False
        """Whether the connection holds complete frames that it has not handled, and whether a turn
        has been asked for."""
        self._steps = 0
        """How many of its calls are decided in turns of their own, and are not yet."""
        self._greeted = False
        """Whether the client had begun to speak HTTP/2 before the piece in hand."""
        self._handled = self._left = False
        """Whether pieces were handled in this turn whose answers are not written yet, and whether
        calls of the piece in hand are decided at its end."""
        self._in_bulk = False
        """Whether many usual calls came at once, and none since that is not usual."""
        self.pauses = ReadPauses(self._loop)
        self.arrived_us = 0
        """The earliest time, by `elapsed_us`, at which the piece in hand can have come."""
        self.now_us = 0
        """When that piece began to be handled."""
        self.waited_us = 0
        """How long the calls of that piece have waited for it; 0 if they are counted anyhow."""
        self.fresh = True
        """Whether that is so short that nobody need ask whether they are late."""
        self.backlog = Backlog(calls.allowance)
        self.drawing = Drawing(self.backlog)
        self.used_us = self.undecided = self._most = self._most_before = 0
        """How much time the client's bytes have taken, for `turns` to compare. How many usual calls
        those are worth that are to be decided, and are not yet; the most that there were since the
        last look, and in the second before."""
        self.dear, self.brought_calls, self.late, self.little_pieces = False, True, False, 0
        """For `turns`: whether the next piece may take long; whether calls were begun in the last
        one, or may follow the greeting in it; whether there was no time for them; see there."""
        self._sealed: Sealed | None = None
        """What is read and not opened yet, if the client speaks TLS."""
        self._transport: asyncio.Transport | None = None
        self._lost: asyncio.Transport | None = None
        """The transport of a connection that is gone, until `forget`."""
        self.flushing = self._writing_paused = False
        """Whether what is said is written soon anyhow, and whether the client reads too slowly."""
        self._memory = memory or Memory()
        self.connection = Connection(methods, self._memory)
        self.presence = Presence(self.connection, self._loop.time())
        self.made = False
        """Whether the connection was made; with TLS once both sides have agreed."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        # uvloop's transports are none of asyncio's classes, so the type is asyncio's word.
        self._transport = self.pauses.source = cast(asyncio.Transport, transport)
        self.made = True
        self.flush()

    def get_buffer(self, _: int) -> memoryview:
        """Called by asyncio before it reads."""
        return self._reads.room

    def buffer_updated(self, nbytes: int) -> None:
        """Called by asyncio when it has read."""
        self.data_received(bytes(self._reads.whole[:nbytes]))
        if self._inbox.size:
            self._reads.charge(nbytes)

    def data_received(self, data: bytes) -> None:
        """Takes bytes in, also of what was opened, to be handled when it is this client's turn."""
        try:
            now_us, inbox, turns = elapsed_us(), self._inbox, self._turns
            if self._sealed is not None:
                arrived_us = self._sealed.came_us
            elif self.pauses.since_us or turns.scheduled:
                arrived_us = self._came_us(now_us)
            else:
                arrived_us = now_us
            self.presence.heard = True
            inbox.chunks.append((arrived_us, data))
            inbox.size += len(data)
            if inbox.size >= LITTLE_BYTES:
                self._read_on_or_not(inbox.size)
            if not self._waiting and not self._writing_paused and not self._steps:
                self._waiting = True
                turns.add(self, now_us)
        except Exception as error:  # else the loop would drop the connection without a word
            self.fail(error)

    def open_from(self, sealed: Sealed, early: bytes) -> None:
        """Called once both sides have agreed on TLS: from now on this opens what comes."""
        self._sealed = self.pauses.source = sealed
        if early:
            self.data_received(early)
        else:
            self._ask_for_turn()

    def sealed_received(self, data: bytes) -> None:
        """Called for what is read from a client that speaks TLS: takes it in, to be opened."""
        sealed = self._sealed
        if sealed is not None:
            self.presence.heard = True
            sealed.put(self._came_us(elapsed_us()), data)
            self._read_on_or_not(self._inbox.size + sealed.size)
            self._ask_for_turn()

    def _read_on_or_not(self, waiting: int) -> None:
        """Reads nothing more until what has come is handled, if so many bytes wait for that."""
        much = waiting > INBOX_BYTES or self._reads.is_much(waiting)
        if much and self.pauses.pause():
            self._memory.paused_unhandled += 1

    def _came_us(self, now_us: int) -> int:
        """When what is read now has come."""
        # Bytes read after a pause may have come at its beginning.
        turns = self._turns
        return self.pauses.since_us or (turns.came_us(now_us) if turns.scheduled else now_us)

    def handle_piece(self, now_us: int, *, at_once: bool = False) -> bool:
        """Handles some of what was read; returns whether there is more, and it may be handled.

        That is a piece, or two that take little. Calls are decided `at_once`, or with the turn.
        """
        connection, chunks, late, found = self.connection, self._inbox.chunks, False, True
        latest = connection.streams.latest
        # This turn writes at its end, so nobody need ask for a write.
        self._handled = self.flushing = True
        self._left = False
        try:
            self.now_us = now_us
            found = bool(chunks) or self._more or self._fetch(now_us)
            if found:
                late = self._handle_some(now_us, at_once=at_once)
                if chunks or self._more:
                    late = self._follow(now_us, latest, late=late, at_once=at_once)
        except Exception as error:  # where the next frame begins is unknown now
            self._calls.failed(error)
            self._abandon()
        if connection.life.closing:
            self._inbox.clear()
            self._more = False
        if found or not self.drawing.begun:  # of a visit that came too early nothing can be said
            self.brought_calls = connection.streams.latest > latest or not self._greeted
        self._greeted = self._greeted or connection.greeted
        self.late = late or self.drawing.begun
        may_be = not (self._writing_paused or self._steps)
        sealed = self._sealed
        has_bytes = bool(chunks) or self._more or (sealed is not None and sealed.ready)
        self._waiting = has_bytes and may_be
        if self._waiting:
            return True
        drawing = self.drawing
        drawing.chosen_us = NEVER_US
        if may_be and (late or drawing.begun) and self._draws_on(now_us, late=late):
            self._waiting = True
            rest_us = drawing.rest_us(late=late)
            if rest_us:
                self._turns.rest(self, now_us + rest_us)
            return not rest_us
        if drawing.begun:
            self._stop_drawing()
        if self.pauses.paused and not self._writing_paused:
            self.pauses.resume()
        return False

    @property
    def _has_bytes(self) -> bool:
        """Whether there is anything to be handled."""
        return (
            bool(self._inbox.chunks)
            or self._more
            or (self._sealed is not None and self._sealed.ready)
        )

    def _fetch(self, now_us: int) -> bool:
        """Gets the next bytes, where the loop has not brought them; returns whether there are any.

        Whoever sends many records without contents is told to calm down.
        """
        sealed = self._sealed
        if sealed is None:
            return not self.drawing.begun or self._draw(now_us)
        inbox = self._inbox
        for _ in range(_OPENINGS):
            before = inbox.size
            records, size = sealed.open_some()
            empty = empty_records(sealed.version, records, size, inbox.size - before)
            if empty and self.connection.closing:
                self.abort()  # it was told to calm down, and does not
            if empty:
                self.connection.charge_records(empty)
            if empty or not sealed.ready:
                break
        return bool(inbox.chunks)

    def _follow(self, now_us: int, before: int, *, late: bool, at_once: bool) -> bool:
        """Handles more of what has come, if it follows at once; returns whether calls are late.

        `before` was the highest stream before the piece in hand, which began at `now_us`. The rest
        of a read does not follow if something of that piece is left for the end of the turn, or
        calls are late.
        """
        connection = self.connection
        if not late:
            if connection.streams.latest == before or connection.closing or self.drawing.begun:
                return False
            if self._steps or self._left or self.dear:
                return False
            started = elapsed_us()
            if self.backlog.was_late(now_us) or started - now_us >= _SHORT_US:
                return False
            self.now_us = started
            return self._handle_some(started, at_once=at_once)
        # Late calls come first. What came behind them is in time, and is next.
        for _ in range(2):
            if self._more or not self._inbox.chunks:
                break
            if not self._handle_some(now_us, at_once=at_once):
                break
        return True

    def most_undecided(self, calls: int = 0) -> int:
        """How many usual calls were undecided at once lately, with so many more now.

        Lately is in the last second or two. So a client that always has many calls under way is
        known by that, also while it has just been answered and its next calls are on their way.
        """
        undecided = self.undecided + calls
        self._most = max(self._most, undecided)
        return max(self._most_before, self._most)

    def draw_from(self, its_socket: socket.socket) -> None:
        """Gives the socket that the transport reads, so that this can read by itself."""
        self.drawing.socket = its_socket

    def _draws_on(self, now_us: int, *, late: bool) -> bool:
        """Whether it goes on to read by itself, or begins to, as `late` calls make it do."""
        if not self.drawing.begun:
            return late and self._start_drawing(now_us)
        return self.drawing.goes_on(late=late)

    def _start_drawing(self, now_us: int) -> bool:
        """Reads by itself from now on, if that can be; each visit of a turn begins with a read."""
        transport = self._transport
        if self.drawing.socket is None or transport is None or not self._turns.busy:
            return False
        if self.connection.closing or transport.is_closing():
            return False
        transport.pause_reading()
        self.drawing.begin(now_us)
        return True

    def _stop_drawing(self) -> None:
        """Has the loop read again, which also finds out if the client has gone."""
        self.drawing.end()
        transport = self._transport
        if transport is not None and not transport.is_closing() and not self.pauses.paused:
            transport.resume_reading()

    def _draw(self, now_us: int) -> bool:
        """Reads what has come; returns whether anything has."""
        if not self.drawing.draw(now_us, self._inbox, self._calls.store_us(self)):
            return False
        self.presence.heard = True
        return True

    def _handle_some(self, now_us: int, *, at_once: bool) -> bool:
        """Handles the next bytes; returns whether calls are late. Then more may be handled."""
        connection, inbox, drawing = self.connection, self._inbox, self.drawing
        has_next = bool(inbox.chunks) and not self._more
        if has_next:
            self.arrived_us = inbox.chunks[0][0]
        self.waited_us = 0 if self.arrived_us >= drawing.chosen_us else now_us - self.arrived_us
        # Visits in quick succession find nothing but fresh calls, also where there are too many.
        self.fresh = self.waited_us <= FRESH_US and not drawing.begun
        late = not self.fresh and self._calls.next_are_late(self)
        in_bulk, most, piece = self._in_bulk and not drawing.begun, _PIECE_CALLS, b""
        if late:
            most = _LATE_CALLS
            if has_next:
                caught_up_us = min(self.backlog.caught_up_us(now_us), drawing.fresh_us)
                piece = inbox.take_before(caught_up_us)
        elif in_bulk:
            most = _BULK_CALLS
            if has_next:
                piece = inbox.take(_BULK_BYTES)
        elif has_next:
            piece = inbox.take(PIECE_BYTES)
        connection.callers.wanted = self._calls.wants_origins
        received = connection.receive(piece, most)
        self.dear = received.dear
        if received.unusual:
            self._in_bulk = False
        elif len(piece) >= PIECE_BYTES // 2:
            self._in_bulk = True
        if received.events:
            self._calls.handle(self, received, at_once=at_once)
        self._more = connection.has_more
        return late and not connection.life.closing

    def at_end_of_turn(self, finish: Callable[[int], None], calls: int) -> None:
        """Has `finish` called once at the end of this turn, as `Turns.later` says."""
        self._left = True
        self._turns.later(finish, calls)

    def in_a_turn_alone(self, step: Callable[[], None], calls: int) -> None:
        """Has `step` called in a turn of its own, as `Turns.alone` says.

        What has come behind it is not handled before.
        """
        self._steps += 1
        self._turns.alone(partial(self._do_step, step), calls)

    def hold_steps(self) -> None:
        """Lets no step begin for any client until `release_steps`, as `Turns` has it."""
        self._turns.hold_steps()

    def release_steps(self) -> None:
        """Ends what `hold_steps` has begun."""
        self._turns.release_steps()

    def _do_step(self, step: Callable[[], None]) -> None:
        self._steps -= 1
        try:
            step()
            self._ask_for_turn()
        except Exception as error:
            self.fail(error)

    def _ask_for_turn(self) -> None:
        """Asks for a turn if there is anything that may be handled."""
        may_be = not (self._waiting or self._writing_paused or self._steps)
        if may_be and self._has_bytes:
            self._waiting = True
            self._turns.add(self, elapsed_us())

    def end_turn(self) -> None:
        """Writes the answers to the pieces of this turn."""
        if self._handled:
            self._handled = self.flushing = False
            connection = self.connection
            silent = not connection.output and not connection.life.closing
            if not (silent or (self.drawing.begun and self._says_more_soon())):
                self.flush()

    def _says_more_soon(self) -> bool:
        """Whether refusals can wait for the answers of their visit's other calls, and be in time.

        Each write costs about as much as counting a call.
        """
        drawing = self.drawing
        if not self.undecided or self.connection.closing:
            return False
        return self.backlog.is_soon(drawing.spread_us + drawing.store_us)

    def fail(self, error: Exception) -> None:
        """Ends the connection after a fault of ours: what is said may not be whole any more.

        The client is told so, if that can still be done.
        """
        self._calls.failed(error)
        self._inbox.clear()
        self._more = False
        try:
            self._abandon()
            self.flush()
        except Exception:  # the log has the first fault, which is the cause
            self.connection.close()
            self.abort()

    def _abandon(self) -> None:
        """Has the client told that a fault of ours ends the connection."""
        self.connection.abandon(ErrorCode.INTERNAL_ERROR, "the service failed: see its log")

    def connection_lost(self, _: Exception | None) -> None:
        """Called by asyncio, for hundreds in one round of the loop where many go together.

        So this does little. `forget` does the rest, and what it frees takes longer.
        """
        self._lost, self._transport = self._transport, None
        self._sealed = self.pauses.source = None
        self.connection.close()
        self._closed(self)

    def forget(self) -> None:
        """Frees what was kept for a connection that is gone."""
        self._lost = None
        self.connection.forget()
        self._inbox.clear()
        self._calls.forget(self)

    def pause_writing(self) -> None:
        """Called by asyncio: the client does not read, so we do not read from it."""
        self._writing_paused = self.connection.congested = True
        if self.pauses.pause():
            self._memory.paused_unread += 1

    def resume_writing(self) -> None:
        """Called by asyncio."""
        self._writing_paused = self.connection.congested = False
        self._more = self.connection.has_more
        self._ask_for_turn()
        if not self._waiting:
            self.pauses.resume()

    def flush(self) -> None:
        """Writes what the connection has to say, at once."""
        transport = self._transport
        if transport is None:
            return
        output = self.connection.take_output()
        if output:
            transport.write(output)
        if self.connection.life.closing:
            transport.close()

    def flush_soon(self) -> None:
        """Writes at the end of this turn, together with whatever else is said until then."""
        if not self.flushing:
            self.flushing = True
            self._turns.before_write(self._flush_now)

    def _flush_now(self) -> None:
        self.flushing = False
        try:
            self.flush()
        except Exception as error:  # what it was to say may not be whole any more
            self.fail(error)

    def abort(self) -> None:
        """Drops the connection without a word."""
        if self._transport is not None:
            self._transport.abort()

    def look(self, now: float, max_age: float) -> None:
        """Ends what hangs or is too old, and pings who is silent; call it once a second."""
        self.connection.tick()
        self._most_before, self._most = self._most, self.undecided
        gone = self.presence.look(now, max_age)
        self.flush()
        if gone:
            self.abort()
