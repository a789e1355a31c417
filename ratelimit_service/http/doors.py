"""What a connection to the HTTP port may take: time, turns, and room beside others.

aiohttp waits for a request for as long as a client likes. Here each connection has a deadline for
what it is to do next, and there are so many of them at most. aiohttp also parses all that was read
in one go, which takes long where a body comes in chunks of one byte. So here it gets what was read
a piece at a time, in the turns that gRPC's clients have as well. All of the port's clients together
count as one of these. What requests mean is not known here.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable
from math import inf

from ratelimit_service.eventloop.clock import elapsed_us
from ratelimit_service.eventloop.turns import shared_turns
from ratelimit_service.http.faults import faults_log
from ratelimit_service.net.handshakes import Sealed

__all__ = ["BODY_SECONDS", "MOST", "MOST_OF_PEER", "WRITE_SECONDS", "Doors"]

HEAD_SECONDS = 10.0
"""How long the head of a request may take: from the connection, or from its own first byte, to the
end."""

BODY_SECONDS = 10.0
"""How long a body may take, from the end of the head."""

IDLE_SECONDS = 75.0
"""How long a connection may be idle after an answer. Scrapers come once a minute or more often."""

WRITE_SECONDS = 30.0
"""How long a part of an answer may wait for its reader."""

CLOSE_SECONDS = 5.0
"""How long a closed connection may take to hand over what is left of its answer."""

_PIECE_BYTES = 1_024
"""So much of what a client has sent is parsed before another one has its turn. That is up to 170
chunks of one byte. To parse them takes half a millisecond, and to read them as long again."""

_REQUEST_US = 500
"""What it takes to answer a usual request, for `turns` to compare."""

_LOOK_SECONDS = 1.0

_ENDED_AT_ONCE = 4
"""How many late connections are ended in one turn of the loop. aiohttp takes its time for what each
leaves behind, and other callers wait meanwhile."""

MOST = 512
MOST_OF_PEER = 128
"""How many connections there may be, in all and of one address."""


class Doors:
    """The connections of the HTTP port, which take turns as one client of the service."""

    dear = True
    """What follows a piece, in aiohttp's tasks, takes longer than to hand it on: so `turns` hands
    on one in each turn, after the pieces of clients that ask little."""

    brought_calls = late = False

    def __init__(self, make: Callable[[], asyncio.Protocol], closed: Counter[str]) -> None:
        """`make` gives each connection its protocol; `closed` counts those ended here, by reason.

        The reasons are `slow` and `crowded`.
        """
        self._make = make
        self._closed = closed
        self._open: dict[asyncio.Protocol, _Door] = {}
        self._looking: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()
        """Set whenever one has its answer, or is gone."""
        self._turns = shared_turns()
        self.used_us = self.little_pieces = 0
        """How much time all of them have taken, for `turns` to compare: a microsecond a byte, with
        what the tasks take."""
        self._line: deque[_Door | asyncio.Future[None]] = deque()
        """Those with bytes to be handed on, and requests that are to be answered, in the order of
        their turns."""
        self._passed = False
        """Whether a request has come through in this round of the loop."""
        self._waiting = False
        """Whether a turn has been asked for."""

    def __len__(self) -> int:
        return len(self._open)

    def door(self) -> _Door:
        """The protocol of the next connection."""
        return _Door(self, self._make())

    def watch(self) -> None:
        """Looks for what is late, now and every second from now on, until `close`."""
        loop = asyncio.get_running_loop()
        self.look(loop.time())
        self._looking = loop.call_later(_LOOK_SECONDS, self.watch)

    async def answered(self) -> None:
        """Waits until no connection expects an answer, not even its first one."""
        while not all(door.idle for door in self._open.values()):
            self._changed.clear()
            await self._changed.wait()

    def close(self) -> None:
        """Stops looking; closes nothing."""
        if self._looking is not None:
            self._looking.cancel()

    async def turn(self) -> None:
        """Waits until a request may be answered: about one in each round of the loop."""
        loop = asyncio.get_running_loop()
        if not self._line and not self._passed:
            self._passed = True
            loop.call_soon(self._next_round)
        else:
            waiter: asyncio.Future[None] = loop.create_future()
            self.line_up(waiter)
            await waiter

    def _next_round(self) -> None:
        self._passed = False

    def line_up(self, waiting: _Door | asyncio.Future[None]) -> None:
        """Asks for a turn for who does not wait for one."""
        self._line.append(waiting)
        if not self._waiting:
            self._waiting = True
            self._turns.add(self, elapsed_us())

    def handle_piece(self, _now_us: int, *, at_once: bool = False) -> bool:  # noqa: ARG002
        """Hands on a piece of whoever is first, or lets a request through.

        Returns whether anybody else waits.
        """
        first = self._line.popleft()
        if isinstance(first, asyncio.Future):
            if not first.done():  # it is, if its client has gone
                self.used_us += _REQUEST_US
                first.set_result(None)
        else:
            try:
                self.used_us += first.hand_on()
            except Exception as error:  # its fault must not cost others their turn
                faults_log().error("a connection to the HTTP port failed", exc_info=error)
                first.transport.abort()
        self._waiting = bool(self._line)
        return self._waiting

    def end_turn(self) -> None:
        """Nothing: aiohttp writes by itself."""

    def fail(self, error: Exception) -> None:
        """Never called: what fails is a connection."""
        faults_log().error("the HTTP port failed", exc_info=error)

    def look(self, now: float) -> None:
        """Closes what is late at this time of the event loop, a few in each of its turns."""
        late = []
        for door in self._open.values():
            if door.transport.is_closing():
                door.deadline = min(door.deadline, now + CLOSE_SECONDS)
            if now >= door.deadline:
                late.append(door)
        late.reverse()
        self._end_late(late, now)

    def _end_late(self, late: list[_Door], now: float) -> None:
        ended = 0
        while late and ended < _ENDED_AT_ONCE:
            door = late.pop()
            if door.inner in self._open and now >= door.deadline:
                self._end(door, "slow")
                ended += 1
        if late:
            asyncio.get_running_loop().call_soon(self._end_late, late, now)

    def begin(self, inner: asyncio.Protocol) -> None:
        """A request's head has come on the connection of this protocol."""
        if (door := self._open.get(inner)) is not None:
            door.busy, door.idle, door.deadline = True, False, inf

    def finish(self, inner: asyncio.Protocol) -> None:
        """The request has its answer."""
        if (door := self._open.get(inner)) is not None:
            door.busy, door.idle = False, True
            door.deadline = asyncio.get_running_loop().time() + IDLE_SECONDS
            self._changed.set()

    def opened(self, door: _Door) -> bool:
        """Whether there is room. Else the one goes that has waited longest for a request."""
        crowd = [each for each in self._open.values() if each.peer == door.peer]
        if len(crowd) < MOST_OF_PEER:
            crowd = list(self._open.values()) if len(self._open) >= MOST else []
        if crowd:
            waiting = next((each for each in crowd if not each.busy), door)
            self._end(waiting, "crowded")
            if waiting is door:
                return False
        self._open[door.inner] = door  # the oldest first
        return True

    def lost(self, door: _Door) -> None:
        """The connection is gone."""
        self._open.pop(door.inner, None)
        self._changed.set()

    def _end(self, door: _Door, reason: str) -> None:
        self._closed[reason] += 1
        self.lost(door)
        door.transport.abort()


class _Door(asyncio.BufferedProtocol):
    """One connection: passes everything on to the protocol within, a piece in each turn."""

    transport: asyncio.Transport

    def __init__(self, doors: Doors, inner: asyncio.Protocol) -> None:
        self._doors = doors
        self._loop = asyncio.get_running_loop()
        self._reads = shared_turns().reads
        self._inbox, self._at = b"", 0
        """What was read, and how much of it was handed on."""
        self._sealed: Sealed | None = None
        """What is to be opened before, if the client speaks TLS."""
        self._waiting = False
        """Whether it stands in line for a turn."""
        self._held = False
        """Whether the protocol within wants no more for now."""
        self._reading = True
        self._gone = False
        self.inner = inner
        self.peer = ""
        self.busy = False
        """Whether a request is being answered."""
        self.idle = False
        """Whether nothing has come since the last answer."""
        self.deadline = self._loop.time() + HEAD_SECONDS
        self._let_in = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        address = transport.get_extra_info("peername")
        self.peer = str(address[0]) if address else ""
        self._let_in = self._doors.opened(self)
        if self._let_in:
            self.inner.connection_made(_Transport(transport, self))

    def get_buffer(self, _: int) -> memoryview:
        return self._reads.room

    def buffer_updated(self, nbytes: int) -> None:
        self._reads.charge(nbytes)
        self.data_received(bytes(self._reads.whole[:nbytes]))

    def data_received(self, data: bytes) -> None:
        """Takes in what was read or opened, and hands it on in turns."""
        if self.idle:
            self.idle = False
            self.deadline = self._loop.time() + HEAD_SECONDS
        if self._let_in:
            self._inbox, self._at = self._inbox[self._at :] + data, 0
            self._ask_for_turn()

    def open_from(self, sealed: Sealed, early: bytes) -> None:
        """From now on what comes is opened in turns as well; `early` was opened already."""
        self._sealed = sealed
        if early:
            self.data_received(early)
        self._ask_for_turn()

    def sealed_received(self, data: bytes) -> None:
        """Bytes have come that TLS has to open."""
        if self._sealed is not None:
            self._sealed.put(elapsed_us(), data)
            self._ask_for_turn()

    def hold(self, *, held: bool) -> None:
        """Hands nothing on for now, or goes on."""
        self._held = held
        self._ask_for_turn()

    def _ask_for_turn(self) -> None:
        """Stands in line if there is anything to hand on; reads if there is room for more."""
        sealed = self._sealed
        full = bool(self._inbox) or (sealed is not None and sealed.ready)
        if full and not self._held and not self._waiting:
            self._waiting = True
            self._doors.line_up(self)
        reading = not full and not self._held
        if reading != self._reading and not self._gone:
            self._reading = reading
            source = self.transport if sealed is None else sealed
            if reading:
                source.resume_reading()
            else:
                source.pause_reading()

    def hand_on(self) -> int:
        """Hands a piece on, or opens some records; returns how many bytes that were.

        Reads on, or asks for the next turn, once aiohttp's tasks have done what follows from the
        piece. So a client that ends its side after its request still gets what can be answered at
        once.
        """
        self._waiting = False
        self._loop.call_soon(self._ask_for_turn)
        if self._gone:
            return 0
        if not self._inbox and self._sealed is not None:
            return self._sealed.open_some()[1]
        piece = self._inbox[self._at : self._at + _PIECE_BYTES]
        self._at += len(piece)
        if self._at == len(self._inbox):
            self._inbox, self._at = b"", 0
        self.inner.data_received(piece)
        return len(piece)

    def eof_received(self) -> bool | None:
        return self.inner.eof_received() if self._let_in else None

    def pause_writing(self) -> None:
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        self.inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone = True
        self._inbox, self._at, self._sealed = b"", 0, None
        self._doors.lost(self)
        if self._let_in:
            self.inner.connection_lost(exc)


class _Transport(asyncio.Transport):
    """A connection as the protocol within sees it: that one pauses its door, not its socket."""

    def __init__(self, real: asyncio.Transport, door: _Door) -> None:
        super().__init__()
        self._real = real
        self._door = door

    def pause_reading(self) -> None:
        self._door.hold(held=True)

    def resume_reading(self) -> None:
        self._door.hold(held=False)

    def get_extra_info(self, name: str, default: object = None) -> object:
        return self._real.get_extra_info(name, default)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._real.write(data)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self._real.writelines(list_of_data)

    def is_closing(self) -> bool:
        return self._real.is_closing()

    def close(self) -> None:
        self._real.close()

    def abort(self) -> None:
        self._real.abort()
