"""Both ends of one connection, with nobody behind it: calls are taken, and answered by nobody."""

from __future__ import annotations

import asyncio
import select
import socket
import time

from ratelimit_service.eventloop.clock import elapsed_us
from ratelimit_service.eventloop.scheduler import TURN_US, Scheduler
from ratelimit_service.grpc.calls import METHODS
from ratelimit_service.grpc.h2 import client, frames
from ratelimit_service.grpc.h2.budget import Memory
from ratelimit_service.grpc.h2.client import CallHandler, Visit
from ratelimit_service.grpc.h2.connection import Event
from ratelimit_service.grpc.h2.frames import PREFACE
from tests.grpc.h2_client import Client, messages

TURN_SECONDS = TURN_US / 1_000_000


class Calls:
    """Takes everything and answers nothing; keeps the messages, and may be slow."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.messages: list[bytes] = []
        self.visits: list[Visit] = []
        self.seconds = seconds

    def handle(self, client: client.Client, events: list[Event], visit: Visit) -> None:
        self.messages += [message for _, message in messages(events)]
        self.visits.append(visit)
        until = time.perf_counter() + self.seconds
        while time.perf_counter() < until:
            pass

    def forget(self, client: client.Client) -> None: ...

    wants_origins = False

    def failed(self, error: Exception) -> None: ...


class Wire:
    """A channel that keeps what is written to it, and of which the test says what is read."""

    empty, agreed = 0, True

    def __init__(self) -> None:
        self.socket, self._other = socket.socketpair()
        self.unread = b""
        self.most = 65_536
        self.behind = 0
        """How many bytes are said to be left, and never come."""
        self.written = b""
        self.closed = self.more = self.gone = self.unsent = False

    def end_comes(self) -> None:
        self.gone = True

    def read(self) -> bytes:
        data, self.unread = self.unread[: self.most], self.unread[self.most :]
        if not data:
            self.behind = 0
        self.more = bool(self.unread or self.behind)
        return data

    def left(self) -> int:
        return len(self.unread) + self.behind

    def write(self, data: bytes) -> None:
        self.written += data

    def write_on(self) -> None: ...

    def end(self) -> None: ...

    def close(self) -> None:
        self.closed = True
        self.socket.close()
        self._other.close()

    __del__ = close

    def kinds(self) -> list[int]:
        """The types of the frames written since the last call."""
        data, self.written, found = self.written, b"", []
        while data:
            found.append(data[3])
            data = data[9 + int.from_bytes(data[:3], "big") :]
        return found


def take_turn(scheduler: Scheduler) -> None:
    """Takes the next turn, where the event loop would."""
    scheduler._turn()


def take_turns(scheduler: Scheduler) -> None:
    """Takes turns until nobody waits for one."""
    while scheduler.busy:
        take_turn(scheduler)


def come(served: client.Client, data: bytes, waited_us: int = 0, *, evenly: bool = True) -> None:
    """Bytes have come, `evenly` since so long ago, or all of them then; they wait for a turn."""
    wire = served.channel
    assert isinstance(wire, Wire)
    wire.unread += data
    if waited_us and not evenly:
        wire.behind = 1_000 * len(data)  # as if much more had come since
    if waited_us:
        served._until_us = 0  # as if the socket had not been read from since
    if served.ready(elapsed_us() - waited_us, select.EPOLLIN):
        served.scheduler.add(served)


class Ends:
    """Both ends of a connection, at a time that the test chooses."""

    def __init__(
        self,
        *,
        greeted: bool = True,
        seconds: float = 0.0,
        scheduler: Scheduler | None = None,
        memory: Memory | None = None,
        calls: CallHandler | None = None,
    ) -> None:
        self.wire = Wire()
        self.calls = Calls(seconds)
        self.scheduler = scheduler or Scheduler()
        self.served = client.Client(
            calls or self.calls, METHODS, self.scheduler, self.wire, lambda _: None, memory
        )
        self.started = asyncio.get_running_loop().time()
        self.served.start()
        if greeted:
            self.receive(PREFACE + frames.settings({}) + Client.ack())
            self.served.used_us = 0  # the machine may have stalled meanwhile
        self.wire.kinds()

    def come(self, data: bytes, waited_us: int = 0) -> None:
        """Bytes have come, so long ago at most; they wait for a turn."""
        come(self.served, data, waited_us)

    def receive(self, data: bytes, waited_us: int = 0) -> None:
        """Bytes come, and are handled."""
        self.come(data, waited_us)
        take_turns(self.scheduler)

    def look(self, after: float, max_age: float = 0.0) -> list[int]:
        """What is said when so many seconds have passed."""
        self.served.look(self.started + after, max_age)
        return self.wire.kinds()
