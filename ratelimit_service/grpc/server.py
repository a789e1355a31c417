"""The connections of our own transport, from their start to their end."""

from __future__ import annotations

import asyncio
import logging
import random
import resource
import socket
from collections import deque
from collections.abc import Callable
from functools import partial

from ratelimit_service.eventloop.clock import elapsed_us
from ratelimit_service.eventloop.scheduler import shared_scheduler
from ratelimit_service.eventloop.slices import slowly
from ratelimit_service.grpc.calls import METHODS, METHODS_UNREFLECTED, ServiceCalls
from ratelimit_service.grpc.h2.budget import Memory
from ratelimit_service.grpc.h2.client import Client
from ratelimit_service.grpc.h2.frames import ErrorCode
from ratelimit_service.grpc.health import HealthService
from ratelimit_service.grpc.overload import Overload
from ratelimit_service.grpc.tls import TLS
from ratelimit_service.net import listening
from ratelimit_service.net.accepting import Acceptor, ConnectionLimiter, peer_of
from ratelimit_service.net.channel import PlainChannel, TlsChannel
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.log_throttle import LogThrottle
from ratelimit_service.observability.stats import Stats
from ratelimit_service.service import Service
from ratelimit_service.text.display import count

__all__ = ["H2Server"]

log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0

_FILES_KEPT = 128
"""So many open files are kept free of connections: for the HTTP port, the store and all else."""

_LOOKED_US = 1_000
"""For so long connections are looked at before other work has its turn."""

_FORGOTTEN_AT_ONCE = 32
"""So many connections that are gone are forgotten in one turn: some 30 us each with TLS."""

_TOLD_AT_ONCE = 32
"""So many connections are told to leave in one round of the loop: each is a write, some 20 us."""

_LOG_EVERY_US = 10_000_000
"""The log tells at most so often of connections that were ended for their client's fault."""


class H2Server:
    """Serves `ShouldRateLimit`, health and reflection on one port, or where it is given sockets."""

    def __init__(
        self,
        address: str,
        service: Service,
        health: Health,
        max_connection_age_us: int = 0,
        tls: TLS | None = None,
        changed: Callable[[], None] = lambda: None,
        *,
        stats: Stats | None = None,
        limiter: ConnectionLimiter | None = None,
        reflection: bool = True,
    ) -> None:
        """`address` is `HOST:PORT` or `unix:PATH`; port 0 takes a free one. Age 0 is no bound.

        `changed` is called when the number of connections changes. `limiter` bounds them; it is
        for a server that accepts by itself.
        """
        self._changed = changed
        self._stats = stats or Stats()
        self._limiter = limiter or ConnectionLimiter()
        self._most = max(1, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _FILES_KEPT)
        self._address = address
        self._context = tls.context() if tls else None
        overload = Overload(self._stats, health)
        self._calls = ServiceCalls(service, HealthService(health), overload)
        self._scheduler = shared_scheduler()
        self._methods = METHODS if reflection else METHODS_UNREFLECTED
        self._max_age = max_connection_age_us / 1_000_000
        self._memory = Memory()
        self._throttle = LogThrottle(_LOG_EVERY_US)
        self._clients: dict[Client, float] = {}
        """All connections, also those that are just being made, and how old each may get."""
        self._gone: deque[tuple[Client, Callable[[], None]]] = deque()
        """Those that are gone and are to be forgotten: many may go at the same moment."""
        self._acceptor: Acceptor | None = None
        self._emptied = asyncio.Event()
        self._stopping = False
        self._looking = self._scheduler.loop.call_later(_LOOK_SECONDS, self._look)

    @property
    def connections(self) -> int:
        """How many connections there are, with those that are just being made."""
        return len(self._clients)

    async def renew(self, tls: TLS) -> None:
        """Uses another certificate for new connections; open ones stay as they are."""
        self._context = await asyncio.to_thread(tls.context)

    async def start(self) -> int:
        """Opens the port and returns its number, which means nothing for a Unix socket.

        Raises TransportError if it cannot be opened.
        """
        sockets = listening.listen(self._address, "gRPC")
        loop = self._scheduler.loop
        self._acceptor = Acceptor(loop, sockets, self._accepted, self._out_of_files)
        self._acceptor.start()
        return listening.port_of(sockets)

    def adopt(self, connection: socket.socket, gone: Callable[[], None] = lambda: None) -> None:
        """Serves a connection that somebody else has accepted; `gone` is called at its end."""
        if len(self._clients) >= self._most:
            self._stats.refused_connections["no_files"] += 1
            connection.close()
            gone()
            self._changed()
            return
        channel: PlainChannel | TlsChannel = PlainChannel(connection)
        if self._context is not None:
            channel = TlsChannel(connection, self._context)
        closed = partial(self._disconnected, gone)
        client = Client(self._calls, self._methods, self._scheduler, channel, closed, self._memory)
        client.connection.callers.peer = peer_of(connection)
        self._memory.connections += 1
        # Jitter, so that connections made together do not end together.
        self._clients[client] = self._max_age * random.uniform(0.9, 1.1)  # noqa: S311
        if self._stopping:
            client.connection.shut_down()
        client.start()

    async def stop(self, grace_us: int) -> None:
        """Takes no new calls, and lets those in flight finish for at most `grace_us`."""
        if self._acceptor is not None:
            listening.unlink(self._acceptor.sockets)
            self._acceptor.stop()
            for each in self._acceptor.sockets:
                each.close()
        self._stopping = True
        async for client in slowly(list(self._clients), _TOLD_AT_ONCE):
            client.connection.shut_down()
            client.flush()
        if self.connections:
            self._emptied.clear()
            try:
                async with asyncio.timeout(grace_us / 1_000_000):
                    await self._emptied.wait()
            except TimeoutError:
                for client in list(self._clients):
                    client.abort()
        self._looking.cancel()
        self._calls.look()  # what was answered since the last look is counted, too

    def _accepted(self, connection: socket.socket, peer: str) -> None:
        refused = self._limiter.admit(peer)
        if refused:
            self._stats.refused_connections[refused] += 1
            connection.close()
            return
        self.adopt(connection, partial(self._limiter.leave, peer))
        self._changed()

    def _out_of_files(self) -> None:
        self._stats.refused_connections["no_files"] += 1

    def _disconnected(self, gone: Callable[[], None], client: Client) -> None:
        if not client.channel.agreed:
            self._stats.refused_connections["handshake"] += 1
        self._gone.append((client, gone))
        if len(self._gone) == 1:
            self._scheduler.go_on(self._forget_some)

    def _forget_some(self) -> None:
        for _ in range(min(len(self._gone), _FORGOTTEN_AT_ONCE)):
            try:
                self._forget(*self._gone.popleft())
            except Exception as error:  # its fault must not keep the others
                self._calls.failed(error)
        self._changed()
        self._tell_if_empty()
        if self._gone:  # the others in the next round: one turn would take many such steps
            self._scheduler.loop.call_soon(self._scheduler.go_on, self._forget_some)

    def _forget(self, client: Client, gone: Callable[[], None]) -> None:
        if self._clients.pop(client, None) is not None:
            self._memory.connections -= 1
        client.forget()
        reason = client.connection.reason
        if reason:
            self._stats.closed_connections[reason] += 1
            self._say(reason)
        gone()

    def _say(self, reason: str) -> None:
        """Logs an ended connection, unless others have just been logged."""
        ended = self._throttle.take()
        if ended:
            log.warning(
                "%s ended, since clients broke a bound or a rule, the last one for %s: "
                "see ratelimit_closed_connections_total",
                count(ended, "connection"),
                reason,
            )

    def _tell_if_empty(self) -> None:
        if not self.connections:
            self._emptied.set()

    def _look(self) -> None:
        """Looks at every connection, a few at a time, and begins again a second later."""
        self._calls.look()
        self._count_pauses()
        self._cut_the_greediest()
        self._look_on(list(self._clients), 0)

    def _look_on(self, clients: list[Client], start: int) -> None:
        now, until = self._scheduler.loop.time(), elapsed_us() + _LOOKED_US
        place = start
        while place < len(clients) and (place == start or elapsed_us() < until):
            client = clients[place]
            place += 1
            max_age = self._clients.get(client)
            if max_age is not None:
                try:
                    client.look(now, max_age)
                except Exception as error:  # a fault with one must not keep us from the others
                    client.fail(error)
        if place < len(clients):
            self._looking = self._scheduler.loop.call_later(0, self._look_on, clients, place)
        else:
            self._looking = self._scheduler.loop.call_later(_LOOK_SECONDS, self._look)

    def _count_pauses(self) -> None:
        self._stats.paused_reads["unread"] += self._memory.paused_unread
        self._memory.paused_unread = 0

    def _cut_the_greediest(self) -> None:
        """Ends the connection that makes us keep most, if all together make us keep too much."""
        memory = self._memory
        if memory.held > memory.most and self._clients:
            greediest = max(self._clients, key=lambda each: each.connection.budget.held)
            text = "too much is kept for this connection"
            greediest.connection.abandon(ErrorCode.ENHANCE_YOUR_CALM, text, "memory")
            greediest.flush()
            greediest.abort()
