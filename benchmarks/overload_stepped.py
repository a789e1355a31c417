"""Overload by processor time: what a service counts of too many calls if nobody disturbs it.

    .venv/bin/python -m benchmarks.overload_stepped [--connections 4] [--loads 1.5 10] [--seconds 1]
        [--store redis] [--slower 4]

`overload` needs a quiet machine. This one does not: clients and service share a process, and a
clock that runs only while the service works, by its processor time. Its loop, sockets and their
costs are modelled, and Redis, which can be made so many times slower. What the service does is its
own code, interpreted. The machine's pace is taken off: a fixed piece of work every two milliseconds
tells it. Capacity is measured before and after each load, as `overload` does it; a load between two
that differ by a quarter is repeated. In the end the service stands still for a while at 1.5 times
its capacity.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import heapq
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from itertools import cycle, islice
from statistics import median
from types import SimpleNamespace
from typing import Any

from benchmarks import flood
from benchmarks.flood import ANSWERS, LATE, PATIENCE, SLICE_SECONDS, Asking, Batch, Tally
from benchmarks.load import TICK_SECONDS, uniform
from benchmarks.overload import (
    AFTER_SECONDS,
    CONNECTIONS,
    HICCUP_AT,
    HICCUP_LOAD,
    IN_FLIGHT,
    LOADS,
    UNEVEN,
    WARM_SLICES,
    back_after,
)
from benchmarks.profile import RULES
from benchmarks.run import told
from benchmarks.steady import BLOCK_20MS
from benchmarks.stepped_redis import Redis
from ratelimit_service import clock, turns
from ratelimit_service.health import Health
from ratelimit_service.observer import Stats
from ratelimit_service.rules.load import Rules
from ratelimit_service.service import Service
from ratelimit_service.settings import Settings
from ratelimit_service.stores import Store
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.stores.redis import RedisStore
from ratelimit_service.transport.h2.account import Memory
from ratelimit_service.transport.h2.calls import METHODS, ServiceCalls
from ratelimit_service.transport.h2.overload import Overload
from ratelimit_service.transport.h2.protocol import Http2Protocol
from ratelimit_service.transport.health import HealthService
from ratelimit_service.turns import shared_turns

READ_US, WRITE_US, EMPTY_US, ROUND_US, READY_US = 5.0, 5.0, 2.5, 4.0, 1.0
BYTE_US = 0.0001
"""What the system takes: a read, a write, a read of nothing, a round of the loop and each socket
that is ready in it; and each byte."""

IDLE_US = 10.0
"""The time until somebody looks again, when there is nothing to do."""

LOOP_READS = 256_000
"""So many bytes uvloop reads at once."""

SOCKET_BYTES = 3_000_000
"""So many bytes wait between a client and the service before the client cannot send."""

PIECE_NS = 68_000
"""How long the fixed piece of work takes on the machine that all times are those of."""

STOPS = (0.1, 0.5, 2.0)

CAPACITY_SECONDS, REQUESTS, TRIES = 0.25, 20_000, 4


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

    def now_ns(self) -> int:
        if self._since is None:
            return self.ns
        return self.ns + int((time.thread_time_ns() - self._since) * self._scale)

    def seconds(self) -> float:
        return self.now_ns() / 1e9

    def run(self, work: Callable[..., object], *arguments: object) -> None:
        """Does work of the service."""
        if self.ns >= self._paced_ns:
            self._paced_ns, self._scale = self.ns + 2_000_000, self._pace.scale()
        self._since = time.thread_time_ns()
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

    def __init__(self) -> None:
        self._ready: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()
        self._timers: list[tuple[float, int, Timer]] = []
        self._number = 0
        self.sockets: list[Socket] = []
        """The service's ends of its clients' connections."""
        self.servers: list[Redis] = []

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
        server = Redis(protocol, CLOCK.now_ns, CHOSEN.slower)
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
        readable = [each for each in self._ways() if each.reading and each.unread]
        if not readable and not self._ready:
            return False
        CLOCK.spend(ROUND_US + READY_US * len(readable))
        for each in readable:
            if each.reading:
                data = each.recv(LOOP_READS)
                CLOCK.run(each.protocol.data_received, data)
        self._write()
        return True

    def _ways(self) -> list[Redis | Socket]:
        return [*self.servers, *self.sockets]

    def _write(self) -> None:
        for each in self._ways():
            if each.written:
                data = b"".join(each.written)
                each.written.clear()
                CLOCK.spend(WRITE_US + BYTE_US * len(data))
                each.take(data)


class Socket:
    """The service's end of a connection: what it reads from, and writes to."""

    protocol: Http2Protocol

    def __init__(self) -> None:
        self.unread = bytearray()
        self.written: list[bytes] = []
        self.sent: list[bytes] = []
        self.reading, self.closed = True, False

    def recv(self, most: int) -> bytes:
        if not self.unread:
            CLOCK.spend(EMPTY_US)
            raise BlockingIOError
        data = bytes(self.unread[:most])
        del self.unread[:most]
        CLOCK.spend(READ_US + BYTE_US * len(data))
        return data

    def take(self, data: bytes) -> None:
        self.sent.append(data)

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return self.closed

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def close(self) -> None:
        self.closed = True

    abort = close


class Client:
    """The client's end: what is not sent waits, as in a transport of asyncio."""

    def __init__(self, its_socket: Socket, asking: Asking) -> None:
        self._socket, self.asking = its_socket, asking
        self._waiting: deque[bytes] = deque()
        self._most = 0

    def set_write_buffer_limits(self, high: int) -> None:
        self._most = high

    def write(self, data: bytes) -> None:
        if self._waiting or len(self._socket.unread) + len(data) > SOCKET_BYTES:
            self._waiting.append(data)
            if sum(map(len, self._waiting)) > self._most:
                self.asking.pause_writing()
        else:
            self._socket.unread += data

    def move(self) -> None:
        """Sends what waits, and reads what has come."""
        unread, waiting = self._socket.unread, self._waiting
        while waiting and len(unread) + len(waiting[0]) <= SOCKET_BYTES:
            unread += waiting.popleft()
        if not waiting:
            self.asking.resume_writing()
        sent, self._socket.sent = self._socket.sent, []
        if sent:
            self.asking.data_received(b"".join(sent))


def in_memory(stats: Stats, health: Health) -> Store:
    return MemoryStore(3_000_000, stats, health)


def on_redis(stats: Stats, health: Health) -> Store:
    return RedisStore("redis://127.0.0.1:1/0", Settings().store_timeout_us, stats, health)


STORES: dict[str, Callable[[Stats, Health], Store]] = {"memory": in_memory, "redis": on_redis}


class Chosen:
    """Where the service counts."""

    def __init__(self) -> None:
        self.store: Callable[[Stats, Health], Store] = in_memory
        self.slower = 1.0
        """How many times longer Redis takes than `stepped_redis` says."""


CHOSEN = Chosen()


class World:
    """A service and its clients."""

    def __init__(self, connections: int, size: int, seconds: float) -> None:
        self.loop, self.tally = Loop(), Tally(seconds)
        # It has all of a loop that they need.
        asyncio._set_running_loop(self.loop)  # type: ignore[arg-type]  # noqa: SLF001
        stats, health = Stats(), Health()
        rules = Rules(RULES, stats=stats, health=health)
        rules.load()
        self.stats = stats
        store = CHOSEN.store(stats, health)
        self.loop.complete(store.start())
        service = Service(lambda: rules.snapshot, store, Settings(), stats)
        self._calls = ServiceCalls(service, HealthService(health), Overload(stats, health))
        turns, memory = shared_turns(), Memory()
        requests = uniform(BLOCK_20MS)
        batches = cycle([Batch(list(islice(requests, size))) for _ in range(REQUESTS // size)])
        self.clients = []
        for _ in range(connections):
            its_socket: Any = Socket()  # a transport and a socket, as far as they are used
            protocol = Http2Protocol(self._calls, METHODS, turns, lambda _: None, memory)
            protocol.draw_from(its_socket)
            its_socket.protocol = protocol
            self.loop.sockets.append(its_socket)
            CLOCK.run(protocol.connection_made, its_socket)
            end: Any = Client(its_socket, Asking(batches, size, self.tally))
            end.asking.connection_made(end)
            self.clients.append(end)
        self._look()
        for _ in range(2):
            for client in self.clients:
                client.asking.offer(CLOCK.seconds())
                while client.asking.pending:
                    self.step()
                    client.move()
        for client in self.clients:
            client.move()
        gc.collect()
        self.tally.clear()
        self.tally.start = CLOCK.seconds()

    def _look(self) -> None:
        self._calls.look()
        for each in self.loop.sockets:
            each.protocol.look(self.loop.time(), 0)
        self.loop.call_later(1.0, self._look)

    def step(self) -> None:
        """Lets the service do something, or a moment pass."""
        if not self.loop.round():
            CLOCK.spend(IDLE_US)

    def lost(self) -> list[str]:
        """Why connections were ended."""
        return [
            each.protocol.connection.reason
            for each in self.loop.sockets
            if each.protocol.connection.closing
        ]


def capacity(connections: int) -> float:
    """Counted calls a second in a closed loop."""
    world = World(connections, 1, CAPACITY_SECONDS)
    each = max(1, IN_FLIGHT // connections)
    until = world.tally.start + CAPACITY_SECONDS
    while CLOCK.seconds() < until:
        for client in world.clients:
            client.move()
            while client.asking.pending < each:
                client.asking.offer(CLOCK.seconds())
        world.step()
    counts = world.tally.counts
    return sum(counts["counted"] + counts["late_counted"]) / (CLOCK.seconds() - world.tally.start)


def stand_still(seconds: float) -> None:
    """The service does nothing for so long."""
    CLOCK.spend(seconds * 1e6)


def flooded(
    connections: int,
    rate: float,
    seconds: float,
    stop: float = 0.0,
    halt: Callable[[float], None] = stand_still,
) -> World:
    """What becomes of an open loop; after HICCUP_AT something halts for `stop` seconds."""
    size = flood.batch_size(rate, connections)
    world = World(connections, size, seconds)
    due = tick = world.tally.start
    turn = 0
    while CLOCK.seconds() < world.tally.start + seconds:
        while tick <= CLOCK.seconds():
            # Clients act when it is time, however long the service takes for what it does.
            now_ns, CLOCK.ns = CLOCK.ns, int(tick * 1e9)
            for client in world.clients:
                client.move()
                client.asking.look(tick - TICK_SECONDS - PATIENCE)
            while due <= tick:
                world.clients[turn].asking.offer(due)
                turn = (turn + 1) % connections
                due += size / rate
            CLOCK.ns = now_ns
            tick += TICK_SECONDS
        if stop and CLOCK.seconds() >= world.tally.start + HICCUP_AT:
            halt(stop)
            stop = 0.0
        world.step()
    return world


def stopped(connections: int, stop: float) -> str:
    """A row of the second table: when as much is counted again as must be."""
    bears = capacity(connections)
    world = flooded(connections, HICCUP_LOAD * bears, HICCUP_AT + stop + AFTER_SECONDS, stop)
    counts = world.tally.counts
    found: dict[str, object] = {"slices": counts, "lag": [0.0] * len(counts["counted"])}
    return f"| {connections} | {stop:g} s | {back_after(found, stop, bears):.1f} s |"


def row(connections: int, load: float, seconds: float) -> str:
    """A row of the table."""
    for left in reversed(range(TRIES)):
        before = capacity(connections)
        world = flooded(connections, load * before, seconds + WARM_SLICES * SLICE_SECONDS)
        after = capacity(connections)
        if max(before, after) <= UNEVEN * min(before, after):
            break
        told("the machine's pace has changed" + (": again" if left else ""))
    bears = (before + after) / 2
    counts = world.tally.counts
    chosen = range(WARM_SLICES, len(counts["offered"]) - 1)

    def share(*fates: str) -> float:
        found = sum(counts[fate][at] for fate in fates for at in chosen)
        return found / (bears * SLICE_SECONDS * len(chosen))

    shown = [share("counted", "denied"), share("by_policy"), share(*LATE)]
    shown += [share("refused"), share("cancelled")]
    in_time, late = share(*ANSWERS), share(*LATE)
    cells = " | ".join(f"{each:.2f}" for each in shown)
    if world.lost():
        raise SystemExit(f"overload_stepped.py: connections were lost: {world.lost()}")
    return (
        f"| {connections} | {bears:,.0f} | {share('offered'):.2f} | {cells} "
        f"| {in_time / max(in_time + late, 1e-9):.2%} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, nargs="+", default=CONNECTIONS)
    parser.add_argument("--loads", type=float, nargs="+", default=LOADS)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--store", choices=STORES, default="memory")
    parser.add_argument("--slower", type=float, default=1.0, help="How much slower Redis is.")
    chosen = parser.parse_args()
    CHOSEN.store, CHOSEN.slower = STORES[chosen.store], chosen.slower
    stepped: Any = SimpleNamespace(monotonic_ns=CLOCK.now_ns, time_ns=CLOCK.now_ns)
    clock.time = stepped  # type: ignore[attr-defined]  # the only place that asks for the time
    turns.thread_time_ns = CLOCK.now_ns  # type: ignore[attr-defined]  # of the loop's own work
    flood.time = SimpleNamespace(perf_counter=CLOCK.seconds)  # type: ignore[attr-defined,assignment]
    logging.disable()  # that it is overloaded is no news
    gc.disable()
    print("| connections | can do, calls/s | load | counted | by policy ", end="")
    print("| late | refused | cancelled | answers in time |")
    print("|---" * 9 + "|")
    for connections in chosen.connections:
        for load in chosen.loads:
            print(row(connections, load, chosen.seconds), flush=True)
    print("\n| connections | the service stops for | counted again after |\n|---|---|---|")
    for connections in chosen.connections:
        for stop in STOPS:
            print(stopped(connections, stop), flush=True)


if __name__ == "__main__":
    main()
