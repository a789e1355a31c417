"""A worker: one process that decides, on connections that the supervisor hands it.

The supervisor sends it the settings and the rules. It reports its state and its counts, and ends
when it is told to, or when the supervisor is gone. It opens no port, except over grpcio. It reads
no files but those that the store's URL names, that of overrides, and the key for the decision log.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import pickle
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ratelimit_service import __version__
from ratelimit_service.decision_log.queue import DecisionQueue
from ratelimit_service.errors import RateLimitError
from ratelimit_service.eventloop.slices import pause, stand_in_line, stepwise
from ratelimit_service.grpc.server import H2Server
from ratelimit_service.grpc.tls import TLS
from ratelimit_service.net.accepting import ACCEPTED_AT_ONCE
from ratelimit_service.observability.health import Health, Phase
from ratelimit_service.observability.stats import Stats
from ratelimit_service.rules.records import Assembly
from ratelimit_service.rules.rulebook import Rulebook, hold_without
from ratelimit_service.runtime import logs
from ratelimit_service.runtime.channel import (
    HEARTBEAT_SECONDS,
    Channel,
    MessageKind,
    receive_connections,
)
from ratelimit_service.runtime.deciding import deciding
from ratelimit_service.runtime.process import Tasks, collect, run, spare_the_old
from ratelimit_service.service import CallOrigin, Refusal, Service
from ratelimit_service.service.questions import Deciding, answered
from ratelimit_service.settings import Settings
from ratelimit_service.telemetry.spans import Spans
from ratelimit_service.wire.reservations import unmarked

if TYPE_CHECKING:
    from ratelimit_service.grpc.grpcio import GrpcioServer

__all__ = ["main"]

log = logging.getLogger(__name__)

_REPORT_SECONDS = 5.0
"""How often it reports its counts without being asked. If it dies, only later counts are lost."""

_MOST_DECISIONS_WAITING = 1 << 20
"""Bytes of decisions and reports that may wait for the supervisor."""

_HEARTBEAT_DELAY_SECONDS = 0.01
"""How long a change of our state may wait for others. When hundreds of connections come or go, each
round of the loop changes it, and to tell of it costs both processes more than a connection does."""

_REPORTED_AT_ONCE = 100
"""Series in one message."""


def main() -> None:
    """A worker's process. Arguments: the descriptors for messages and for connections."""
    messages, connections = (socket.socket(fileno=int(text)) for text in sys.argv[1:])
    connections.setblocking(False)
    sys.exit(run(_work(messages, connections)))


async def _work(messages: socket.socket, connections: socket.socket) -> int:
    return await _Worker(connections).work(messages)


async def _first(*futures: asyncio.Future[Any]) -> None:
    """Waits for one of them."""
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


class _RulesEnd(NamedTuple):
    """What the supervisor says of the rules beside their trees."""

    unserved: list[str]
    emptied: bool
    passed: bool = False
    """Whether other rules follow that hold by now: a worker must not begin to serve with these."""


class _Worker:
    """What one worker knows, and how it answers messages."""

    def __init__(self, connections: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._connections = connections
        self._stats = Stats()
        self._health = Health(logging.DEBUG)  # the supervisor logs this for all
        self._book = Rulebook()
        self._settled: asyncio.Future[tuple[int, Settings]] = self._loop.create_future()
        self._parts: asyncio.Queue[bytes | _RulesEnd] = asyncio.Queue()
        self._ruled: asyncio.Future[None] = self._loop.create_future()
        """Is done once there are rules to serve with."""
        self._ending: asyncio.Future[tuple[Phase, int]] = self._loop.create_future()
        """How to end, and how long it may take."""
        self._deciding: Deciding | None = None
        self._server: H2Server | GrpcioServer | None = None
        self._tls: TLS | None = None
        self._sigterm_seen = False
        """Whether we were told to end, and not by the supervisor."""
        self._taken = 0
        self._gone: list[int] = []
        """Connections that have ended since our last beat. Their numbers are by the order in which
        they were handed over."""
        self._heartbeat_due = False
        self._tasks = Tasks(_fail)

    async def work(self, messages: socket.socket) -> int:
        """Works until it is told to end; returns the exit code."""
        self._channel = await Channel.open(messages, self._received, self._lost)
        self._channel.send_json(MessageKind.HELLO, {"version": __version__})
        await _first(self._settled, self._ending)
        if not self._settled.done():
            return 0
        number, settings = self._settled.result()
        logs.configure(settings.log_level, settings.log_format, number)
        try:
            await self._serve(settings)
        except RateLimitError as error:
            self._channel.send(MessageKind.FAILED, str(error).encode())
            await self._channel.flushed()
            return 2
        return 0

    async def _serve(self, settings: Settings) -> None:
        self._tasks.start(self._take_rules())
        await _first(self._ruled, self._ending)
        if self._ending.done():
            return
        spare_the_old()
        async with AsyncExitStack() as stack:
            here = await stack.enter_async_context(
                deciding(settings, lambda: self._book.snapshot, self._stats, self._health)
            )
            self._deciding = here
            if settings.otel_traces:
                send = partial(self._channel.send, MessageKind.SPANS)
                spans = Spans(settings, send, here.shard_of)
                here.service.events.tracer = spans
                stack.callback(spans.flush)
            queue = None
            if settings.decision_log:
                queue = DecisionQueue(settings, self._stats, self._send_decisions, here.shard_of)
                here.service.events.add(queue)
            self._server = server = self._new_server(settings, here.service)
            port = await server.start() if settings.transport == "grpcio" else 0
            self._health.listen(self._send_heartbeat_soon)
            self._loop.add_signal_handler(signal.SIGTERM, self._on_sigterm, settings.grace_us)
            collect()
            self._health.enter(Phase.SERVING)
            self._loop.add_reader(
                self._connections.fileno(), self._take_connections, ACCEPTED_AT_ONCE
            )
            self._send_heartbeat()  # faults are known before it serves
            self._channel.send(MessageKind.READY, b"%d" % port)
            beating = [
                self._loop.create_task(self._keep_beating()),
                self._loop.create_task(self._keep_reporting()),
            ]
            phase, grace_us = await self._ending
            while self._take_connections(ACCEPTED_AT_ONCE):  # those that were handed over before
                await pause()
            self._loop.remove_reader(self._connections.fileno())
            self._connections.close()
            self._health.enter(phase)
            await server.stop(grace_us)
            for task in beating:
                task.cancel()
            if here.service.enqueueing is not None:
                await here.service.enqueueing.finish()
            if queue is not None:
                queue.flush()  # before the last report, which says what was dropped of it
            await self._report()
        await self._channel.flushed()

    def _new_server(self, settings: Settings, service: Service) -> H2Server | GrpcioServer:
        """What speaks gRPC with clients."""
        if settings.transport == "grpcio":
            # Imported only here: grpc would take memory and time from all other workers.
            from ratelimit_service.grpc.grpcio import GrpcioServer  # noqa: PLC0415

            return GrpcioServer(
                settings.grpc,
                service,
                self._health,
                settings.max_connection_age_us,
                self._tls,
                reflection=not settings.no_reflection,
            )
        return H2Server(
            settings.grpc,
            service,
            self._health,
            settings.max_connection_age_us,
            self._tls,
            self._send_heartbeat_soon,
            stats=self._stats,
            reflection=not settings.no_reflection,
        )

    def _live_counters(self) -> int:
        count = self._deciding.live_counters if self._deciding is not None else None
        return 0 if count is None else count()

    # What we hear

    def _received(self, kind: int, payload: bytes) -> None:
        if kind == MessageKind.SETTINGS:
            self._settled.set_result(pickle.loads(payload))  # noqa: S301 -- our supervisor's
        elif kind == MessageKind.RULES:
            self._parts.put_nowait(payload)
        elif kind == MessageKind.RULES_END:
            self._parts.put_nowait(_RulesEnd(**json.loads(payload)))
        elif kind == MessageKind.TLS:
            self._renew(pickle.loads(payload))  # noqa: S301 -- our supervisor's
        elif kind == MessageKind.LEAVE:
            how = json.loads(payload)
            self._end(Phase.DRAINING if how["draining"] else Phase.LEAVING, how["grace_us"])
        elif kind == MessageKind.REPORT:
            self._tasks.start(self._report(payload))
        elif kind == MessageKind.DECIDE:
            self._tasks.start(self._decide(payload[:4], payload[4:]))
        elif kind == MessageKind.QUESTION:
            self._tasks.start(self._answer(payload[:4], payload[4:]))
        elif kind == MessageKind.DECIDE_FOR:
            number, size = payload[:4], int.from_bytes(payload[4:8], "big")
            peer, pairs = json.loads(payload[8 : 8 + size])
            headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in pairs]
            self._tasks.start(
                self._decide(number, payload[8 + size :], [CallOrigin(peer, headers)])
            )

    def _renew(self, tls: TLS | None) -> None:
        self._tls = tls
        if self._server is not None and tls is not None:
            self._tasks.start(self._server.renew(tls))

    def _lost(self) -> None:
        """Ends, because the supervisor is gone: nobody else would give us connections."""
        if not self._ending.done():
            log.error("the supervisor is gone: this worker ends")
        settings = self._settled.result()[1] if self._settled.done() else Settings()
        self._end(Phase.DRAINING, settings.grace_us)

    def _on_sigterm(self, grace_us: int) -> None:
        """Handles SIGTERM. The supervisor knows if it was for us alone, and says when to end.

        We then end once another worker serves in our place, however long it takes to start. A
        second SIGTERM does not wait for that.
        """
        if self._sigterm_seen:
            self._end(Phase.LEAVING, grace_us)
        self._sigterm_seen = True
        self._channel.send(MessageKind.LEAVING)

    def _end(self, phase: Phase, grace_us: int) -> None:
        if not self._ending.done():
            self._ending.set_result((phase, grace_us))

    def _take_connections(self, most: int) -> int:
        """Takes connections that were handed over; returns how many."""
        server = self._server if isinstance(self._server, H2Server) else None
        connections = receive_connections(self._connections, most)
        for connection in connections:
            self._taken += 1
            if server is not None:
                server.adopt(connection, partial(self._gone.append, self._taken))
        self._send_heartbeat_soon()
        return len(connections)

    async def _take_rules(self) -> None:
        """Puts together the rules that the supervisor sends, a little at a time."""
        assembly = Assembly(self._book.tallies_of)
        while True:
            part = await self._parts.get()
            if isinstance(part, bytes):
                await stepwise(assembly.adding(part))
                await asyncio.sleep(0)
                continue
            unserved = frozenset(part.unserved)
            domains = assembly.domains
            assembly = Assembly(self._book.tallies_of, domains)
            # No variable may hold the old snapshot here, or it would outlive its last slice.
            old = [self._book.swap(domains, unserved, emptied=part.emptied)]
            if self._deciding is not None:
                self._deciding.rules_changed()
            await self._book.let_go(old.pop())
            if self._settled.done() and self._settled.result()[1].healthy_with_rules:
                hold_without(self._health, self._book.snapshot)
            if not (part.passed or self._ruled.done()):
                self._ruled.set_result(None)

    async def _decide(
        self, number: bytes, body: bytes, origins: Sequence[CallOrigin] | None = None
    ) -> None:
        if self._deciding is not None:
            service = self._deciding.service
            if (reserving := unmarked(body)) is not None:
                origin = origins[0] if origins else None
                answer = await service.reservations.call(*reserving, origin=origin)
            else:
                (answer,) = await service.decide([body], origins=origins)
            code, content = (
                (answer.code, answer.message.encode())
                if isinstance(answer, Refusal)
                else (0, answer)
            )
            self._channel.send(MessageKind.DECIDED, number + bytes([code]) + content)

    async def _answer(self, number: bytes, question: bytes) -> None:
        stand_in_line()
        if self._deciding is not None:
            self._channel.send(
                MessageKind.ANSWER, number + await answered(self._deciding, question)
            )

    # What we say

    def _send_decisions(self, packet: bytes) -> bool:
        """Sends decisions for the log, unless the supervisor is too busy to take them."""
        if self._channel.waiting > _MOST_DECISIONS_WAITING:
            return False
        self._channel.send(MessageKind.DECISIONS, packet)
        return True

    def _send_heartbeat_soon(self) -> None:
        """Reports our state in a moment, with whatever else changes until then."""
        if not self._heartbeat_due:
            self._heartbeat_due = True
            self._loop.call_later(_HEARTBEAT_DELAY_SECONDS, self._send_heartbeat)

    def _send_heartbeat(self) -> None:
        self._heartbeat_due = False
        gone = self._gone.copy()
        self._gone.clear()
        self._channel.send_json(
            MessageKind.HEARTBEAT,
            {
                "taken": self._taken,
                "gone": gone,
                "open": self._server.connections if isinstance(self._server, H2Server) else 0,
                "cpu_us": time.process_time_ns() // 1_000,
                "resident_bytes": _resident_bytes(),
                "faults": self._health.faults,
                "notes": self._health.notes,
                "overrides": self._stats.overrides,
                "live_counters": self._live_counters(),
            },
        )

    async def _keep_beating(self) -> None:
        while True:
            self._send_heartbeat()
            await asyncio.sleep(HEARTBEAT_SECONDS)

    async def _keep_reporting(self) -> None:
        while True:
            await asyncio.sleep(_REPORT_SECONDS)
            await self._report()

    async def _report(self, number: bytes = b"") -> None:
        """Reports what was counted since the last time, and forgets it here."""
        self._send_heartbeat()
        tallies = []
        async for tallied in self._book.take():
            tallies.append(tallied)
            if len(tallies) >= _REPORTED_AT_ONCE:
                self._channel.send_json(MessageKind.COUNTS, {"rules": tallies})
                tallies = []
        self._channel.send_json(
            MessageKind.COUNTS, {"rules": tallies, "counters": self._stats.take()}
        )
        self._channel.send(MessageKind.REPORTED, number)


def _fail(error: BaseException) -> None:
    log.critical("a fault of this worker: please report this", exc_info=error)
    os._exit(1)  # the supervisor starts another


def _resident_bytes() -> int:
    """Memory in use; 0 where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
