"""Overload by processor time: what a service counts of too many calls if nobody disturbs it.

    .venv/bin/python -m benchmarks.overload_stepped [--connections 4] [--loads 1.5 10] [--seconds 1]
        [--store redis|ring|cluster] [--slower 4]

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
import logging
import select
import time
from collections import deque
from collections.abc import Callable
from itertools import cycle, islice
from statistics import fmean
from types import SimpleNamespace
from typing import Any

from benchmarks import flood, stepped_loop
from benchmarks.flood import ANSWERS, LATE, PATIENCE, SLICE_SECONDS, Asking, Batch, Tally
from benchmarks.load import TICK_SECONDS
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
from benchmarks.stepped_loop import Loop, Socket
from benchmarks.stepped_redis import NODES
from ratelimit_service.eventloop.scheduler import shared_scheduler
from ratelimit_service.grpc.calls import METHODS, ServiceCalls
from ratelimit_service.grpc.h2 import client as served
from ratelimit_service.grpc.h2.budget import Memory
from ratelimit_service.grpc.health import HealthService
from ratelimit_service.grpc.overload import Overload
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.rules.load import Rules
from ratelimit_service.service import Service
from ratelimit_service.settings import Settings
from ratelimit_service.stores import Store
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.stores.redis import RedisStore

SOCKET_BYTES = 3_000_000
"""So many bytes wait between a client and the service before the client cannot send."""

PLACES = ",".join(f"{host}:{port}" for host, port in NODES)

STOPS = (0.1, 0.5, 2.0)

CAPACITY_SECONDS, REQUESTS, TRIES = 0.25, 20_000, 4


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
            self._socket.arrive(data)

    def move(self) -> None:
        """Sends what waits, and reads what has come."""
        its_socket, waiting = self._socket, self._waiting
        while waiting and len(its_socket.unread) + len(waiting[0]) <= SOCKET_BYTES:
            its_socket.arrive(waiting.popleft())
        if not waiting:
            self.asking.resume_writing()
        sent, self._socket.sent = self._socket.sent, []
        if sent:
            self.asking.data_received(b"".join(sent))


def in_memory(stats: Stats, health: Health) -> Store:
    return MemoryStore(3_000_000, stats, health)


def on_redis(stats: Stats, health: Health) -> Store:
    return RedisStore("redis://127.0.0.1:1/0", Settings().store_timeout_us, stats, health)


def on_ring(stats: Stats, health: Health) -> Store:
    return RedisStore(f"redis+ring://{PLACES}/0", Settings().store_timeout_us, stats, health)


def on_cluster(stats: Stats, health: Health) -> Store:
    return RedisStore(f"redis+cluster://{PLACES}", Settings().store_timeout_us, stats, health)


STORES: dict[str, Callable[[Stats, Health], Store]] = {
    "memory": in_memory,
    "redis": on_redis,
    "ring": on_ring,
    "cluster": on_cluster,
}


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
        self.loop, self.tally = Loop(CHOSEN.slower), Tally(seconds)
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
        scheduler, memory = shared_scheduler(), Memory()
        requests = flood.hurried()
        batches = cycle([Batch(list(islice(requests, size))) for _ in range(REQUESTS // size)])
        self.clients = []
        self._served: list[served.Client] = []
        for number in range(connections):
            its_socket = Socket(number)
            self.loop.sockets.append(its_socket)
            one = served.Client(self._calls, METHODS, scheduler, its_socket, lambda _: None, memory)
            self._served.append(one)
            stepped_loop.CLOCK.run(one.start)
            end: Any = Client(its_socket, Asking(batches, size, self.tally))
            end.asking.connection_made(end)
            self.clients.append(end)
        self._look()
        for _ in range(2):
            for client in self.clients:
                client.asking.offer(stepped_loop.CLOCK.seconds())
                while client.asking.pending:
                    self.step()
                    client.move()
        for client in self.clients:
            client.move()
        gc.collect()
        self.tally.clear()
        self.tally.start = stepped_loop.CLOCK.seconds()

    def _look(self) -> None:
        self._calls.look()
        for each in self._served:
            each.look(self.loop.time(), 0)
        self.loop.call_later(1.0, self._look)

    def step(self) -> None:
        """Lets the service do something, or a moment pass."""
        if not self.loop.round():
            stepped_loop.CLOCK.spend(stepped_loop.IDLE_US)

    def lost(self) -> list[str]:
        """Why connections were ended."""
        return [each.connection.reason for each in self._served if each.connection.closing]


def capacity(connections: int) -> float:
    """Counted calls a second in a closed loop."""
    world = World(connections, 1, CAPACITY_SECONDS)
    each = max(1, IN_FLIGHT // connections)
    until = world.tally.start + CAPACITY_SECONDS
    while stepped_loop.CLOCK.seconds() < until:
        for client in world.clients:
            client.move()
            while client.asking.pending < each:
                client.asking.offer(stepped_loop.CLOCK.seconds())
        world.step()
    counts = world.tally.counts
    return sum(counts["counted"] + counts["late_counted"]) / (
        stepped_loop.CLOCK.seconds() - world.tally.start
    )


def stand_still(seconds: float) -> None:
    """The service does nothing for so long."""
    stepped_loop.CLOCK.spend(seconds * 1e6)


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
    while stepped_loop.CLOCK.seconds() < world.tally.start + seconds:
        while tick <= stepped_loop.CLOCK.seconds():
            # Clients act when it is time, however long the service takes for what it does.
            now_ns, stepped_loop.CLOCK.ns = stepped_loop.CLOCK.ns, int(tick * 1e9)
            for client in world.clients:
                client.move()
                client.asking.look(tick - TICK_SECONDS - PATIENCE)
            while due <= tick:
                world.clients[turn].asking.offer(due)
                turn = (turn + 1) % connections
                due += size / rate
            stepped_loop.CLOCK.ns = now_ns
            tick += TICK_SECONDS
        if stop and stepped_loop.CLOCK.seconds() >= world.tally.start + HICCUP_AT:
            halt(stop)
            stop = 0.0
        world.step()
    return world


def stopped(connections: int, stop: float) -> str:
    """A row of the second table: when as much is counted again as must be.

    That is a part of what the same service has counted before it stood still. What it can do is
    measured apart, so it says less: the machine's pace changes.
    """
    bears = capacity(connections)
    world = flooded(connections, HICCUP_LOAD * bears, HICCUP_AT + stop + AFTER_SECONDS, stop)
    counts = world.tally.counts
    # The last slice before it may be cut.
    before = counts["counted"][WARM_SLICES : round(HICCUP_AT / SLICE_SECONDS) - 1]
    rate = fmean(before) / SLICE_SECONDS
    found: dict[str, object] = {"slices": counts, "lag": [0.0] * len(counts["counted"])}
    back = back_after(found, stop, rate)
    return f"| {connections} | {stop:g} s | {rate / bears:.2f} | {back:.1f} s |"


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
    flood.shape_flags(parser)
    chosen = parser.parse_args()
    CHOSEN.store, CHOSEN.slower = STORES[chosen.store], chosen.slower
    flood.SHAPE.choose(chosen)
    now_ns = stepped_loop.CLOCK.now_ns
    # Compiled modules ask the module `time` itself, whatever they are told that it is.
    time.monotonic_ns = time.time_ns = now_ns
    select.epoll = stepped_loop.Epoll  # type: ignore[assignment,misc]
    flood.time = SimpleNamespace(perf_counter=stepped_loop.CLOCK.seconds)  # type: ignore[attr-defined,assignment]
    logging.disable()  # that it is overloaded is no news
    gc.disable()
    print("| connections | can do, calls/s | load | counted | by policy ", end="")
    print("| late | refused | cancelled | answers in time |")
    print("|---" * 9 + "|")
    for connections in chosen.connections:
        for load in chosen.loads:
            print(row(connections, load, chosen.seconds), flush=True)
    print("\n| connections | the service stops for | counted before | counted again after |")
    print("|---" * 4 + "|")
    for connections in chosen.connections:
        for stop in STOPS:
            print(stopped(connections, stop), flush=True)


if __name__ == "__main__":
    main()
