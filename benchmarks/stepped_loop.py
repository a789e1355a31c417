"""An event loop, its sockets and a clock that runs only while the service works.

The clock goes by processor time, without the machine's pace: a fixed piece of work every two
milliseconds tells that. What the system takes for sockets and rounds of the loop is modelled.
What must not live here: what a service is asked (`overload_stepped`).
"""

from __future__ import annotations

import asyncio
import heapq
import select
import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from statistics import median
from typing import Any

from benchmarks.stepped_redis import Redis
from ratelimit_service.net.channel import READ_BYTES

__all__ = ["CLOCK", "IDLE_US", "Clock", "Epoll", "Loop", "Socket"]

READ_US, WRITE_US, EMPTY_US, ROUND_US, READY_US, POLL_US = 5.0, 15.0, 2.5, 4.0, 1.0, 1.0
BYTE_US = 0.0001
"""What the system takes: a read, a write, a read of nothing, a round of the loop and each socket
that is ready in it; a look at who is ready; and each byte."""

IDLE_US = 10.0
"""The time until somebody looks again, when there is nothing to do."""

LOOP_READS = 256_000
"""So many bytes uvloop reads at once, from Redis."""

PIECE_NS = 68_000
"""How long the fixed piece of work takes on the machine that all times are those of."""


class Pace:
    """The machine's pace: how long a piece of work takes that is always the same."""

    def __init__(self) -> None:
        self._messages = [bytes((number % 256,)) * 400 for number in range(3_000)]
        self._at = 0
        self._took = deque([self._piece() for _ in range(9)], maxlen=9)

    def scale(self) -> float:
        """What a nanosecond of now is worth."""
        self._took.append(self._piece())
        return PIECE_NS / median(self._took)

    def _piece(self) -> int:
        started = time.thread_time_ns()
        kept: dict[bytes, bytes] = {}
        for number in range(self._at, self._at + 300):
            message = self._messages[number % 3_000]
            kept[message] = message[3:60] + number.to_bytes(4, "big")
        self._at += 300
        return time.thread_time_ns() - started


class Clock:
    """Time that passes while the service works."""

    def __init__(self) -> None:
        self.ns = 10**15
        self._pace = Pace()
        self._scale, self._paced_ns = 1.0, 0
        self._since: int | None = None
        self._looks = 0
        self._look_ns = self._dearer_ns()
        """How much longer it takes to look at this clock than at the system's."""

    def _dearer_ns(self) -> int:
        self._look_ns, looks = 0, 20_000
        self._since = started = time.thread_time_ns()
        for _ in range(looks):
            self.now_ns()
        ours = time.thread_time_ns() - started
        self._since, self._looks = None, 0
        system = time.monotonic_ns
        started = time.thread_time_ns()
        for _ in range(looks):
            system()
        return max(0, ours - (time.thread_time_ns() - started)) // looks

    def now_ns(self) -> int:
        if self._since is None:
            return self.ns
        self._looks += 1
        worked_ns = time.thread_time_ns() - self._since - self._looks * self._look_ns
        return self.ns + max(0, int(worked_ns * self._scale))

    def seconds(self) -> float:
        return self.now_ns() / 1e9

    def run(self, work: Callable[..., object], *arguments: object) -> None:
        """Does work of the service."""
        if self.ns >= self._paced_ns:
            self._paced_ns, self._scale = self.ns + 2_000_000, self._pace.scale()
        self._looks, self._since = 0, time.thread_time_ns()
        try:
            work(*arguments)
        finally:
            self.ns, self._since = self.now_ns(), None

    def spend(self, us: float) -> None:
        """The system works for the service."""
        self.ns += int(us * 1_000)


CLOCK = Clock()


class Timer:
    """A callback for later, as an event loop has it."""

    def __init__(self, work: Callable[..., object], arguments: tuple[object, ...]) -> None:
        self.work, self.arguments = work, arguments
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """As much of an event loop as a service and its store need."""

    def __init__(self, slower: float = 1.0) -> None:
        """Redis takes so many times longer than `stepped_redis` says."""
        self._slower = slower
        self._ready: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()
        self._timers: list[tuple[float, int, Timer]] = []
        self._number = 0
        self.sockets: list[Socket] = []
        """The service's ends of its clients' connections."""
        self.servers: list[Redis] = []
        self._wake: Callable[[], object] | None = None

    def time(self) -> float:
        return CLOCK.seconds()

    def get_debug(self) -> bool:
        return False

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)  # type: ignore[arg-type]  # all of it that it needs

    def create_task(self, work: Coroutine[Any, Any, Any], **_name: object) -> asyncio.Task[Any]:
        return asyncio.Task(work, loop=self)  # type: ignore[arg-type]  # as above

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if "exception" in context:
            raise context["exception"]

    def call_soon(
        self, work: Callable[..., object], *arguments: object, **_context: Context | None
    ) -> None:
        self._ready.append((work, arguments))

    def call_later(self, seconds: float, work: Callable[..., object], *arguments: object) -> Timer:
        return self.call_at(self.time() + seconds, work, *arguments)

    def call_at(self, when: float, work: Callable[..., object], *arguments: object) -> Timer:
        self._number += 1
        timer = Timer(work, arguments)
        heapq.heappush(self._timers, (when, self._number, timer))
        return timer

    async def create_connection(
        self, made: Callable[[], Any], *_address: object, **_tls: object
    ) -> tuple[Redis, Any]:
        protocol = made()
        server = Redis(protocol, CLOCK.now_ns, self._slower)
        protocol.connection_made(server)
        self.servers.append(server)
        return server, protocol

    def complete(self, work: Coroutine[Any, Any, None]) -> None:
        """Goes round until this is done."""
        task = self.create_task(work)
        while not task.done():
            if not self.round():
                CLOCK.spend(IDLE_US)
        task.result()

    def round(self) -> bool:
        """One round; returns whether there was anything to do."""
        while self._timers and self._timers[0][0] <= self.time():
            timer = heapq.heappop(self._timers)[2]
            if not timer.cancelled:
                CLOCK.run(timer.work, *timer.arguments)
        for _ in range(len(self._ready)):
            work, arguments = self._ready.popleft()
            CLOCK.run(work, *arguments)
        self._write()
        for server in self.servers:
            server.move()
        readable = [each for each in self.servers if each.reading and each.unread]
        woken = any(each.fresh for each in self.sockets)
        if not (readable or woken or self._ready):
            return False
        CLOCK.spend(ROUND_US + READY_US * len(readable))
        for each in readable:
            if each.reading:
                data = each.recv(LOOP_READS)
                CLOCK.run(each.protocol.data_received, data)
        if woken and self._wake is not None:
            CLOCK.run(self._wake)
        self._write()
        return True

    def add_reader(self, _descriptor: int, wake: Callable[[], object]) -> None:
        self._wake = wake

    def remove_reader(self, _descriptor: int) -> None:
        self._wake = None

    def _write(self) -> None:
        for each in self.servers:
            if each.written:
                data = b"".join(each.written)
                each.written.clear()
                CLOCK.spend(WRITE_US + BYTE_US * len(data))
                each.take(data)


class Epoll:
    """As `select.epoll`, of the sockets of the running loop."""

    def __init__(self) -> None:
        loop: Any = asyncio.get_running_loop()
        self._sockets: list[Socket] = loop.sockets

    def fileno(self) -> int:
        return -1

    def register(self, _descriptor: int, _events: int) -> None: ...

    def unregister(self, _descriptor: int) -> None: ...

    def poll(self, _seconds: float) -> list[tuple[int, int]]:
        CLOCK.spend(POLL_US)
        ready = [number for number, each in enumerate(self._sockets) if each.fresh]
        for number in ready:
            CLOCK.spend(READY_US)
            self._sockets[number].fresh = False
        return [(number, select.EPOLLIN) for number in ready]


class Socket:
    """The service's end of a connection: a channel whose system is modelled."""

    empty, agreed, unsent = 0, True, False

    def __init__(self, number: int) -> None:
        """It is the loop's socket of this number."""
        self._number = number
        self.unread = bytearray()
        self.sent: list[bytes] = []
        self.more = self.gone = self.fresh = False

    @property
    def socket(self) -> Any:
        return self

    def fileno(self) -> int:
        return self._number

    def arrive(self, data: bytes) -> None:
        """The client has sent something."""
        self.unread += data
        self.fresh = True

    def end_comes(self) -> None:
        self.gone = True

    def left(self) -> int:
        return len(self.unread)

    def read(self) -> bytes:
        data = bytes(self.unread[:READ_BYTES])
        del self.unread[:READ_BYTES]
        CLOCK.spend(READ_US + BYTE_US * len(data) if data else EMPTY_US)
        self.more = len(data) == READ_BYTES
        return data

    def write(self, data: bytes) -> None:
        CLOCK.spend(WRITE_US + BYTE_US * len(data))
        self.sent.append(data)

    def write_on(self) -> None: ...

    def end(self) -> None: ...

    def close(self) -> None:
        self.gone = True
