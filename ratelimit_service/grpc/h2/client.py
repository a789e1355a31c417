"""One client: its channel and its connection, visited by the scheduler, and the time kept for both.

What must not live here: what bytes say (`connection`), what becomes of calls (`calls`), which are
counted (`admission`), whether the client is still there (`presence`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from select import EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLLRDHUP
from typing import Final, Protocol

from ratelimit_service.eventloop.clock import elapsed_us
from ratelimit_service.eventloop.scheduler import Scheduler
from ratelimit_service.grpc.h2.admission import FRESH_US, NEVER_US, too_slow
from ratelimit_service.grpc.h2.budget import Memory
from ratelimit_service.grpc.h2.connection import Connection, Event, Methods
from ratelimit_service.grpc.h2.costs import LONG_BYTES
from ratelimit_service.grpc.h2.frames import ErrorCode
from ratelimit_service.grpc.h2.limits import HANDSHAKE_SECONDS
from ratelimit_service.grpc.h2.presence import Presence
from ratelimit_service.net.channel import Channel

__all__ = ["CallHandler", "Client", "Visit"]

_LATE_CALLS: Final = 256
"""So many calls are taken in one visit where they may be late: to refuse one takes a microsecond or
two, and only the newest of them are counted. Among them may be calls of callers who name no
deadline, which are all counted: so many of these take about a turn."""

_ENDED: Final = EPOLLRDHUP | EPOLLHUP | EPOLLERR


@dataclass(slots=True)
class Visit:
    """How long the calls of a visit have waited. Nobody changes it."""

    now_us: int
    """When it began, by `elapsed_us`."""
    oldest_us: int
    newest_us: int
    """How long the first and the last of what has come have waited at most; between these all is
    taken to have come evenly."""
    behind: float
    """How much has come behind the calls of this visit: 1.0 is as much as they are."""
    each_us: int
    """How long it takes to decide a call of this client, and one of each that waits beside it."""
    alone: bool
    """Whether nobody else is visited in this turn."""


class CallHandler(Protocol):
    """Takes what a connection hears, and answers it."""

    def handle(self, client: Client, events: list[Event], visit: Visit) -> None:
        """Takes what came of one visit, in order."""

    def forget(self, client: Client) -> None:
        """Hears that the connection is gone: nothing can be answered any more."""

    @property
    def wants_origins(self) -> bool:
        """Whether somebody asks who makes calls."""

    def failed(self, error: Exception) -> None:
        """Hears of a fault of ours that ends the connection."""


class Client:
    """One connection with its channel. What is said within one turn goes out in one write."""

    def __init__(
        self,
        calls: CallHandler,
        methods: Methods,
        scheduler: Scheduler,
        channel: Channel,
        closed: Callable[[Client], None],
        memory: Memory | None = None,
    ) -> None:
        """`closed` is called once, when the connection is gone. It sees to it that `forget` is.

        `memory` is what all connections share.
        """
        self._calls = calls
        self.scheduler = scheduler
        self.channel = channel
        self._closed = closed
        self.connection = Connection(methods, memory)
        self.presence = Presence(self.connection, scheduler.loop.time())
        self._waiting = self._lost = False
        """Whether a visit is due, and whether the connection is gone."""
        self._steps = 0
        """How many of its calls are decided in turns of their own, and are not yet."""
        self._since_us = self._until_us = elapsed_us()
        """Between which times, by `elapsed_us`, that has come which is handled next."""
        self.flushing = False
        """Whether what is said is written soon anyhow."""
        self.used_us = 0
        """How much time it has taken, for the scheduler to compare."""
        self.undecided = self._most = self._most_before = 0
        """How many usual calls those are worth that are to be decided, and are not yet; the most
        that there were since the last look, and in the second before."""
        self.patience_us = NEVER_US
        """How long the callers of its last calls wait, of those that say so."""
        self.late = False
        """Whether there was no time for some of its last calls."""

    def start(self) -> None:
        """Visits it from now on, and says what there is to say first."""
        self.scheduler.watch(self.channel.socket, self)
        self.flush()

    def ready(self, since_us: int, events: int) -> bool:
        """Something has come since that time; returns whether to visit it."""
        channel = self.channel
        if events != EPOLLIN:
            if events & EPOLLOUT:
                channel.write_on()
                self._written()
            if events & _ENDED:
                channel.end_comes()
        if events != EPOLLOUT:
            if not (channel.more or self.connection.cut_short):
                # It came after the socket was last empty, and after the last turn had asked.
                self._since_us = max(since_us, self._until_us)
            channel.more = True
        return self._is_due()

    def has_much(self) -> bool:
        """Whether to handle what has come takes longer than a call or two, as a TLS handshake."""
        return not self.connection.greeted or self.channel.left() > LONG_BYTES

    def _is_due(self) -> bool:
        """Whether there is something to be handled, and no visit is due yet; from now on it is."""
        if self._waiting or self._steps or self._lost or self.connection.congested:
            return False
        self._waiting = self.channel.more or self.connection.has_more
        return self._waiting

    def visit(self, now_us: int, most: int, each_us: int, *, alone: bool) -> bool:
        """Handles what has come, about `most` calls of it; returns whether there is more."""
        self._waiting = False
        if self._lost:
            return False
        # This turn writes at its end, so nobody need ask for a write.
        self.flushing = True
        connection, channel = self.connection, self.channel
        data, before = b"", 0
        if connection.cut_short or not channel.more:
            before = connection.unhandled
        else:
            data = channel.read()
            self._until_us = now_us
            if channel.empty:
                self._charge_records(channel.empty)
            if not data or self._lost:
                return not connection.life.closing and self._is_due()
            self.presence.heard = True
        oldest_us = now_us - self._since_us
        if oldest_us > FRESH_US and too_slow(oldest_us, self.patience_us):
            most = _LATE_CALLS
        connection.callers.wanted = self._calls.wants_origins
        events = connection.receive(data, most)
        behind = 0.0
        if channel.more or connection.cut_short:
            behind = self._go_on_behind(now_us, before + len(data) - connection.unhandled)
        if events:
            newest_us = now_us - self._until_us
            visit = Visit(now_us, oldest_us, newest_us, behind, each_us, alone)
            self._calls.handle(self, events, visit)
        return not connection.life.closing and self._is_due()

    def _go_on_behind(self, now_us: int, handled: int) -> float:
        """Reckons since when the rest has come; returns how much that is, in parts of the handled.

        All of it is taken to have come at an even pace. So what a socket that is never empty has
        for us is no older than it is.
        """
        channel = self.channel
        rest = self.connection.unhandled
        if channel.more:
            rest, self._until_us = rest + channel.left(), now_us
        handled = max(handled, 1)
        self._since_us += (self._until_us - self._since_us) * handled // (handled + rest)
        return rest / handled

    def _charge_records(self, empty: int) -> None:
        """Who sends many records without contents is told to calm down; then thrown out."""
        if self.connection.closing:
            self.abort()
        else:
            self.connection.charge_records(empty)

    def most_undecided(self, calls: int = 0) -> int:
        """How many usual calls were undecided at once lately, with so many more now.

        Lately is in the last second or two. So a client that always has many calls under way is
        known by that, also while it has just been answered and its next calls are on their way.
        """
        undecided = self.undecided + calls
        self._most = max(self._most, undecided)
        return max(self._most_before, self._most)

    def in_a_turn_alone(self, step: Callable[[], None]) -> None:
        """Has `step` called in a turn of its own, as `Scheduler.begin` says.

        What has come behind it is not handled before.
        """
        self._steps += 1
        self.scheduler.begin(partial(self._do_step, step))

    def _do_step(self, step: Callable[[], None]) -> None:
        started_us = elapsed_us()
        self._steps -= 1
        try:
            step()
            self.used_us += elapsed_us() - started_us
            if self._is_due():
                self.scheduler.add(self)
        except Exception as error:
            self.fail(error)

    def flush(self) -> None:
        """Writes what the connection has to say, at once."""
        self.flushing = False
        channel, connection = self.channel, self.connection
        if self._lost:
            return
        if not channel.agreed:
            if channel.unsent or channel.gone:
                self._written()
            return
        closing = connection.life.closing
        output = connection.take_output()
        if not self.presence.leaving:
            if output:
                channel.write(output)
            if closing:
                self.presence.leaving = 1
                channel.end()
        if closing or channel.unsent or channel.gone or connection.congested:
            self._written()

    def _written(self) -> None:
        """Notes whether the system has taken all that was said, and whether that was the last."""
        channel, connection = self.channel, self.connection
        if channel.gone or (connection.life.closing and not channel.unsent):
            self._lose()
        elif channel.unsent != connection.congested:
            # The client does not read, so we do not read from it; or it does again.
            connection.congested = channel.unsent
            connection.budget.memory.paused_unread += channel.unsent
            self.scheduler.watch_writes(channel.socket, blocked=channel.unsent)

    def flush_soon(self) -> None:
        """Writes at the end of this turn, together with whatever else is said until then."""
        if not self.flushing:
            self.flushing = True
            self.scheduler.before_write(self._flush_now)

    def _flush_now(self) -> None:
        try:
            self.flush()
        except Exception as error:  # what it was to say may not be whole any more
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """Ends the connection after a fault of ours: what is said may not be whole any more.

        The client is told so, if that can still be done.
        """
        self._calls.failed(error)
        try:
            text = "the service failed: see its log"
            self.connection.abandon(ErrorCode.INTERNAL_ERROR, text)
            self.flush()
        except Exception:  # the log has the first fault, which is the cause
            self.abort()

    def abort(self) -> None:
        """Drops the connection without a word."""
        self._lose()

    def _lose(self) -> None:
        """The connection is gone. Hundreds may go in one turn, so `forget` does the rest later."""
        if not self._lost:
            self._lost = True
            self.scheduler.unwatch(self.channel.socket)
            self.channel.close()
            self.connection.close()
            self._closed(self)

    def forget(self) -> None:
        """Frees what was kept for a connection that is gone."""
        self.connection.forget()
        self._calls.forget(self)

    def look(self, now: float, max_age: float) -> None:
        """Ends what hangs or is too old, and pings who is silent; call it once a second."""
        self.connection.tick()
        self._most_before, self._most = self._most, self.undecided
        gone = self.presence.look(now, max_age)
        if not self.channel.agreed:
            gone = gone or self.presence.age(now) > HANDSHAKE_SECONDS
        self.flush()
        if gone:
            self.abort()
