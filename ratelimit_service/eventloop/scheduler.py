"""Whose turn it is: which clients are visited, and what waits for the next round of the loop.

    a round of the event loop
    |-- a turn: two milliseconds ----------------------------------|-- the rest --|
    | poll | replies of a store | visits       | decide | write    | timers, Redis |
           | come first         | who has used          | each client
                                | the least time first  | once

All clients' sockets stand in one epoll, and the loop watches only that. A turn asks it who has sent
something. Such clients are *visited*, the one that has used the least time first, each at most once
in a turn. (Linux' CFS shares out processors this way.) A visit reads, and says what calls there
are. The calls of a turn are decided together at its end, since many small batches cost several
times what a large one does. Then each client gets its answers in one write.

Who is new starts behind all who wait, and nobody can save up time. Where several wait, some work
for the others comes before those that have sent much. So clients that send much, or expensive
frames, hold up neither the others nor the replies of a store, however many clients they are.

What takes long to decide is done in steps. A step that answers what a store was sent comes before
new calls: such work is bounded by what was sent. Other steps, as those of a long plan or of the
collector, have every other turn. What must not live here: bytes, and how they are handled.
"""

from __future__ import annotations

import asyncio
import heapq
import select
import socket
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from ratelimit_service.eventloop.clock import elapsed_us

__all__ = ["TURN_US", "Scheduler", "Visited", "shared_scheduler"]

TURN_US: Final = 2_000
"""For so long a turn does what there is to do. With twice as much replies of a store, which Envoy
waits for, are late by as much; with half as much batches are smaller and cost more."""

_CALL_US: Final = 10
"""A call is taken to cost as much at least. Some cheap ones say nothing of those that come next,
and what is asked of a visit may as well be frames that are not."""

_BATCH_US: Final = 200
"""So long a batch takes by itself, about, however few calls it has."""

_BEHIND_US: Final = 10_000
"""So much work for others comes before those to whom much has come: it is half of what Envoy waits.
With less of it, a burst of many such clients makes small calls too late."""

_MOST_USED_US: Final = 2 * TURN_US
"""The most that a visit is taken to have used. None takes longer; but the machine may stand still
meanwhile, and then its client would wait for as long again beside each of the others."""

_READS: Final = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET
_BLOCKED: Final = _READS | select.EPOLLOUT


class Visited(Protocol):
    """Who is visited when something has come."""

    used_us: int
    """How much time it has used; clients are compared by this."""

    def ready(self, since_us: int, events: int) -> bool:
        """Something has come since that time by `elapsed_us`; returns whether to visit it.

        The `events` are those of epoll.
        """

    def has_much(self) -> bool:
        """Whether to handle what has come takes longer than a call or two."""

    def visit(self, now_us: int, most: int, each_us: int, *, alone: bool) -> bool:
        """Handles what has come, about `most` calls of it; returns whether there is more.

        It takes `each_us` to decide a call of this client, and one of each that waits beside it.
        Who is `alone` in this turn need not leave anything for its end.
        """

    def flush(self) -> None:
        """Writes what there is to say, after the visits of this turn."""

    def fail(self, error: Exception) -> None:
        """Ends, because one of these has raised. It gets no more visits."""


class _Deferred:
    """What was left for the end of a turn: so many calls, and whose they are."""

    __slots__ = ("calls", "finish", "shares")

    def __init__(self) -> None:
        self.finish: Callable[[int], None] | None = None
        self.calls = 0
        self.shares: list[tuple[Visited, int]] = []


class Scheduler:
    """What one event loop has to do."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._epoll = select.epoll()
        self._clients: dict[int, Visited] = {}
        """By their sockets' file descriptors."""
        self._polled_us = 0
        """When it was last asked who has sent something."""
        self._waiting: list[tuple[int, int, Visited]] = []
        """A heap by the time used, and how far behind that. A number keeps the order of equals."""
        self._number = 0
        self._least_us = 0
        """How much time the last visited client had used; it never falls."""
        self._replies: deque[Callable[[], None]] = deque()
        self._begun: deque[Callable[[], None]] = deque()
        """Further steps of work that has begun."""
        self._steps: deque[Callable[[], None]] = deque()
        """First steps of long work."""
        self._held = False
        """Whether no more long work may begin for now."""
        self._stepped = False
        """Whether the last turn was one for a step."""
        self._scheduled = False
        """Whether the loop has been asked for a turn."""
        self._deferred = _Deferred()
        self._call_us = _CALL_US
        """How long it takes to decide a call, as it took lately."""
        self._before_write: list[Callable[[], None]] | None = None
        """What is to be done at the end of this turn, or of a step at once; None without these."""

    # Clients

    def watch(self, its_socket: socket.socket, client: Visited) -> None:
        """Visits a client from now on whenever its socket has something for us."""
        if not self._clients:
            self.loop.add_reader(self._epoll.fileno(), self._wake)
        descriptor = its_socket.fileno()
        self._epoll.register(descriptor, _READS)
        self._clients[descriptor] = client
        # It is behind all who wait: else many new ones would keep them waiting.
        used_us = [each.used_us for *_, each in self._waiting]
        client.used_us = max(used_us, default=self._least_us)

    def watch_writes(self, its_socket: socket.socket, *, blocked: bool) -> None:
        """Tells a client also when its socket can be written to, while it is `blocked`."""
        self._epoll.modify(its_socket.fileno(), _BLOCKED if blocked else _READS)

    def unwatch(self, its_socket: socket.socket) -> None:
        """Forgets a socket that is about to be closed."""
        descriptor = its_socket.fileno()
        if self._clients.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)
            if not self._clients:
                self.loop.remove_reader(self._epoll.fileno())

    def add(self, client: Visited) -> None:
        """Takes in a client that is not waiting already, to be visited."""
        self._take_in(client)
        self._schedule()

    def _take_in(self, client: Visited, behind_us: int = 0) -> None:
        client.used_us = max(client.used_us, self._least_us)
        self._number += 1
        heapq.heappush(self._waiting, (client.used_us + behind_us, self._number, client))

    def later(self, finish: Callable[[int], None], client: Visited, calls: int) -> None:
        """Has `finish` called once at the end of this turn, for so many calls of a visited client.

        All who ask for it in one turn ask for the same. It hears the time, and raises nothing.
        """
        deferred = self._deferred
        deferred.finish = finish
        deferred.calls += calls
        deferred.shares.append((client, calls))

    def before_write(self, work: Callable[[], None]) -> None:
        """Has short `work` done at the end of this turn, or of the step that is taken at once.

        If there is neither, it is done in the loop's next round.
        """
        if self._before_write is None:
            self.loop.call_soon(work)
        else:
            self._before_write.append(work)

    # Steps

    def reply(self, step: Callable[[], None]) -> None:
        """Has a step called that answers what a store was sent: at once, if nothing else waits.

        If there is more to answer, it asks for another one. It raises nothing.
        """
        if self._scheduled or self._before_write is not None:
            self._replies.append(step)
            self._schedule()
            return
        # What comes while this is done has not waited since somebody was heard last.
        self._polled_us = started = elapsed_us()
        self._before_write = []
        try:
            step()
        finally:
            self._end_turn()
        if elapsed_us() - started > TURN_US // 4:  # other stores' replies may be next
            self._schedule()

    def go_on(self, step: Callable[[], None]) -> None:
        """Has the next step of work that has begun called in a turn of its own."""
        self._begun.append(step)
        self._schedule()

    def begin(self, step: Callable[[], None]) -> None:
        """Has the first step of long work called in a turn of its own, after others' work.

        `step` raises nothing.
        """
        self._steps.append(step)
        if not self._held:
            self._schedule()

    def hold_steps(self) -> None:
        """Lets no more work begin until `release_steps`; what has begun goes on.

        A store takes what it gets in order, so too much at once would keep small calls waiting.
        """
        self._held = True

    def release_steps(self) -> None:
        """Ends what `hold_steps` has begun."""
        self._held = False
        if self._steps:
            self._schedule()

    @property
    def busy(self) -> bool:
        """Whether a client or a step waits for its turn."""
        return bool(self._waiting or self._replies) or self._may_step

    @property
    def _may_step(self) -> bool:
        return bool(self._begun) or (bool(self._steps) and not self._held)

    # Turns

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            if self._before_write is None:  # the loop has waited until now
                self._polled_us = elapsed_us()
            self.loop.call_soon(self._turn)

    def _wake(self) -> None:
        """Called by the loop: somebody has sent something."""
        if not self._scheduled:  # else the turn that is due asks who it was
            # The loop has waited until now, so what is there has just come.
            self._polled_us = now_us = elapsed_us()
            self._take_turn(now_us)

    def _turn(self) -> None:
        self._scheduled = False
        self._take_turn(elapsed_us())

    def _take_turn(self, now_us: int) -> None:
        """Does what there is to do; most turns have one client to visit, and nothing else."""
        until_us = now_us + TURN_US
        self._before_write = []
        try:
            self._poll(now_us)
            while self._replies and now_us < until_us:
                self._replies.popleft()()
                now_us = elapsed_us()
            steps = self._begun or self._steps
            if steps and self._may_step and not (self._stepped and self._waiting):
                self._stepped = True
                steps.popleft()()
            elif self._waiting and now_us < until_us:
                self._stepped = False
                self._visit_some(now_us, until_us)
        finally:  # if a step has failed, which the loop logs, everybody else has their turn
            if (self._waiting or self._replies or self._begun or self._steps) and self.busy:
                self._schedule()
            if self._before_write:
                self._end_turn()
            self._before_write = None

    def _poll(self, now_us: int) -> None:
        """Finds out who has sent something since it was last asked."""
        since_us, self._polled_us = self._polled_us, now_us
        ready = self._epoll.poll(0)
        for descriptor, events in ready:
            client = self._clients.get(descriptor)
            if client is None:
                continue
            try:
                if client.ready(since_us, events):
                    several = len(ready) > 1 or self._waiting
                    self._take_in(client, _BEHIND_US if several and client.has_much() else 0)
            except Exception as error:  # its fault must not cost others their turn
                client.fail(error)

    def _visit_some(self, now_us: int, until_us: int) -> None:
        """Visits clients as long as what they ask for can be decided in this turn as well."""
        waiting, deferred = self._waiting, self._deferred
        visited: list[Visited] = []
        again: list[tuple[Visited, int]] = []
        while waiting:
            # Each of them writes at the end, which takes about as long as a call.
            room = (until_us - now_us) // self._call_us - deferred.calls - len(visited)
            if room <= 0 and visited:  # the first is visited however long deciding took lately
                break
            place_us, _, client = heapq.heappop(waiting)
            self._least_us = max(self._least_us, client.used_us)
            alone, each_us = not (waiting or visited), self._call_us * (1 + len(waiting))
            visited.append(client)
            try:
                if client.visit(now_us, room if room > 0 else 1, each_us, alone=alone):
                    again.append((client, place_us - client.used_us))
            except Exception as error:  # its fault must not cost others their turn
                client.fail(error)
            started_us, now_us = now_us, elapsed_us()
            client.used_us += min(_MOST_USED_US, now_us - started_us)
        if deferred.finish is not None:
            self._decide(deferred, deferred.finish, now_us)
        for client, behind_us in again:
            self._take_in(client, behind_us)
        for client in visited:
            try:
                client.flush()
            except Exception as error:
                client.fail(error)

    def _decide(self, deferred: _Deferred, finish: Callable[[int], None], now_us: int) -> None:
        """Does what was left for the end of the turn; each pays for its calls."""
        self._deferred, calls = _Deferred(), deferred.calls
        try:
            finish(now_us)
        except Exception as error:  # its fault must not keep others from writing
            self._tell(error)
        took_us = min(elapsed_us() - now_us, _MOST_USED_US)
        # One stall of the machine says little; but what is dear again and again is soon known.
        each_us = min(max(0, took_us - _BATCH_US) // calls, 4 * self._call_us)
        self._call_us = max(_CALL_US, (3 * self._call_us + each_us) // 4)
        for client, its_calls in deferred.shares:
            client.used_us += took_us * its_calls // calls

    def _end_turn(self) -> None:
        """Does what is to be done before the loop has its turn."""
        for work in self._before_write or ():  # it may have more done before
            try:
                work()
            except Exception as error:  # its fault must not cost others what they have to say
                self._tell(error)
        self._before_write = None

    def _tell(self, error: Exception) -> None:
        """Logs a fault at the end of a turn."""
        context = {"message": "the end of a turn failed", "exception": error}
        self.loop.call_exception_handler(context)


_SHARED: Final[list[Scheduler]] = []


def shared_scheduler() -> Scheduler:
    """The scheduler that everything on the running event loop shares."""
    if not _SHARED or _SHARED[0].loop is not asyncio.get_running_loop():
        _SHARED[:] = [Scheduler()]
    return _SHARED[0]
