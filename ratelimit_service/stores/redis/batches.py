"""The queue before one server: batches wait here, and go out as script calls.

Requests of one tick go out together. Only a few calls are under way at a time, so that calls grow
with the load. What waits is sent in the order of its priorities, and within a priority as it came.
What must not live here: whether the server is well, and how it is connected (`server`).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain, count, islice
from os import urandom
from typing import Final

import hiredis

from ratelimit_service.eventloop.clock import elapsed_us
from ratelimit_service.eventloop.scheduler import shared_scheduler
from ratelimit_service.model import Hit
from ratelimit_service.observability.bugs import Bugs
from ratelimit_service.observability.stats import Stats
from ratelimit_service.stores import NEVER, PRIORITIES
from ratelimit_service.stores.corrupt_state import CorruptState
from ratelimit_service.stores.redis.batch import Batch, Retry
from ratelimit_service.stores.redis.call_window import NO_PRIORITY, CallWindow
from ratelimit_service.stores.redis.connection import RedisConnection, Reply
from ratelimit_service.stores.redis.error_replies import (
    crosses_slots,
    did_nothing,
    wants_reconnect,
)
from ratelimit_service.stores.redis.script import SCRIPT, SHA, ScriptCall
from ratelimit_service.stores.redis.server import Server

__all__ = ["Batches", "Redirect", "Slot"]

log = logging.getLogger(__name__)

_MARGIN: Final = 4
"""The wait of a new request is reckoned so many times as long as it seems. If as much waited as can
just be answered in time, the next stall of a few milliseconds would make all of it too late, when
most of its work is done already. A longer queue counts nothing faster."""

_OVERTAKEN: Final = 75
"""Requests with less than this part of the store's time left, in percent, go first in every other
call."""

_MAX_HELD: Final = 10_000
"""The most give-backs that wait for a server that is away; beyond that the oldest are lost."""

Slot = Callable[[Sequence[Hit]], int]
"""The slot of a request in a cluster: a script call settles requests of one slot only."""

_ONLY: Final = 0
"""The slot of all requests where there are none."""

Redirect = Callable[[str, Batch, Sequence[int]], bool]
"""Sends requests of a batch elsewhere, if the server's error says that they belong there."""


class Batches:
    """The queue before one server."""

    def __init__(
        self,
        server: Server,
        stats: Stats,
        key_prefix: str = "",
        slot: Slot | None = None,
        redirect: Redirect | None = None,
    ) -> None:
        """All keys in the server begin with `key_prefix`.

        `slot` is given for a node of a cluster. `redirect` hears of the server's errors.
        """
        self._server = server
        self._stats = stats
        self._corrupt_state = CorruptState(stats)
        self._key_prefix = key_prefix.encode()
        self.slot = slot
        """The slot of a request, where a script call settles requests of one slot only."""
        self._redirect = redirect
        self._bugs = Bugs()
        self._scheduler = shared_scheduler()
        self._queues: list[deque[Batch]] = [deque() for _ in range(PRIORITIES)]
        """The batches that wait to be sent, by their priority."""
        self._held: deque[Batch] = deque()
        """Batches without a deadline that wait for the server to come back."""
        self._successor: Callable[[Batch], None] | None = None
        """Takes batches without a deadline once the server has no counters any more."""
        self._sending = False
        self._script = ("EVALSHA", SHA)
        """How the script is called."""
        self._numbers = count(int.from_bytes(urandom(6), "big"))
        """The numbers of script calls; they start at random, so that processes differ."""
        self._window = CallWindow(server.clock)
        self._by_age = False
        """Whether the last call began with what others had overtaken."""

    @property
    def idle(self) -> bool:
        """Whether nothing waits to be sent, or for a reply."""
        return not self._window.under_way and not any(self._queues)

    @property
    def under_way(self) -> int:
        """How many script calls have no reply yet."""
        return self._window.under_way

    @property
    def waiting(self) -> int:
        """How many batches are not sent yet, also those for which there is no server."""
        return sum(map(len, self._queues)) + len(self._held)

    def wait_us(self, priority: int) -> int:
        """How long a new one may wait for its reply; its wait to be sent counts several times."""
        return self.reply_us() + self._window.queued_us(_MARGIN * self._waiting(priority))

    def reply_us(self) -> int:
        """How long a request waits for its reply once it is sent, going by the last ones."""
        self._window.forget_times(elapsed_us())
        return self._window.reply_us

    def _waiting(self, priority: int) -> int:
        """How many requests of this priority or a lower one wait to be sent."""
        waiting = chain(*self._queues[: priority + 1])
        return sum([len(batch.requests) - batch.sent for batch in waiting])

    @property
    def _fills_a_call(self) -> bool:
        """Whether as much waits as fits into a script call."""
        missing = self._window.full
        for queue in self._queues:
            for batch in queue:
                missing -= len(batch.requests) - batch.sent
                if missing <= 0:  # thousands may wait
                    return True
        return False

    def charge(self, batch: Batch) -> None:
        """Queues a batch for the next script calls.

        Each call is atomic, and a request is never split over several.
        """
        urgency = batch.urgency
        if not self._server.available:
            if urgency.deadline_us == NEVER:
                self.hold(batch)
            else:
                batch.failed(range(len(batch.requests)), self._server.unavailable)
            return
        self._queues[urgency.priority].append(batch)
        if not self._sending and (not self._window.under_way or urgency.priority < self._below):
            self._sending = True
            self._scheduler.before_write(self._send)

    def ask(self, batch: Batch) -> None:
        """Sends a batch at once to a node that is about to get its slot."""
        connection = self._server.connection
        if connection is None:
            batch.failed(range(len(batch.requests)), "disconnected")
            return
        while batch.sent < len(batch.requests):
            calls: dict[int, ScriptCall] = {}
            self._take(batch, calls, elapsed_us())
            self._call(connection, calls, asking=True)

    def hand_over(self, successor: Callable[[Batch], None]) -> None:
        """Hands batches that wait for the server to `successor`, those of now and later ones."""
        self._successor = successor
        self.release()

    def hold(self, batch: Batch) -> None:
        """Keeps a batch without a deadline until the server is back; the oldest of too many go."""
        if self._successor is not None:
            self._successor(batch)
            return
        if len(self._held) >= _MAX_HELD:
            lost = self._held.popleft()
            if not self._stats.lost_give_backs["overflow"]:
                away = self._server.name
                log.warning("Redis at %s is away: too much waits to be given back", away)
            self._fail(lost, range(lost.sent, len(lost.requests)), "overflow")
        self._held.append(batch)

    def release(self) -> None:
        """Sends the batches that have waited; those that still cannot be sent go on waiting."""
        held, self._held = self._held, deque()
        for batch in held:
            self.charge(batch)
        self._window.forget_lost(elapsed_us())
        if any(self._queues):
            self._send()

    def empty(self, reason: str) -> None:
        """Ends the batches in the queue, but those without a deadline wait."""
        queues, self._queues = self._queues, [deque() for _ in range(PRIORITIES)]
        for queue in queues:
            for batch in queue:
                if batch.urgency.deadline_us == NEVER:
                    self.hold(batch)
                else:
                    self._fail(batch, range(batch.sent, len(batch.requests)), reason)

    @property
    def _below(self) -> int:
        """Requests of priorities below this number may be sent now."""
        window = self._window
        below = window.below()
        more = below < PRIORITIES and window.has_room and self._fills_a_call
        return PRIORITIES if more else below

    def _send(self) -> None:
        """Sends from the queue, as many calls as may be under way."""
        self._sending = False
        while any(self._queues):
            below = self._below if self._window.under_way else PRIORITIES
            if not any(self._queues[:below]):
                return
            connection = self._server.connection
            if connection is None or connection.lost.done():
                self.empty("disconnected")
                return
            self._call(connection, self._next_calls(below, elapsed_us()))

    def _next_calls(self, below: int, now_us: int) -> dict[int, ScriptCall]:
        """Takes from the queue what fits into one call, of priorities below that.

        Drops requests that nobody waits for, or that cannot be answered in time. In a cluster there
        is one call for each slot; all of these are sent at once.
        """
        calls: dict[int, ScriptCall] = {}
        full = False
        self._window.forget_times(now_us)
        if any(self._queues[1:]):
            self._by_age = not self._by_age
            full = self._by_age and self._take_overtaken(calls, below, now_us)
        for queue in filter(None, self._queues):
            open_ = not full and queue[0].urgency.priority < below
            while queue and self._take_first(queue, calls, now_us, open_=open_):
                pass
            full = full or (open_ and bool(queue))
        if full:
            self._window.full = sum(
                [len(indexes) for call in calls.values() for _, indexes in call.parts]
            )
        return calls

    def _take_overtaken(self, calls: dict[int, ScriptCall], below: int, now_us: int) -> bool:
        """Takes what smaller priorities have overtaken for so long that it may soon be too late.

        Returns whether more waits than fits.
        """
        timeout_us = self._server.timeout_us
        soon_us = now_us + timeout_us * _OVERTAKEN // 100
        while True:
            firsts = [
                (queue[0].urgency.due_us(timeout_us), priority)
                for priority, queue in enumerate(self._queues[:below])
                if queue
            ]
            soonest_us, priority = min(firsts, default=(NEVER, 0))
            if soonest_us >= soon_us:
                return False
            if not self._take_first(self._queues[priority], calls, now_us, open_=True):
                return True

    def _take_first(
        self, queue: deque[Batch], calls: dict[int, ScriptCall], now_us: int, *, open_: bool
    ) -> bool:
        """Takes or drops the first batch of a queue, or as much as fits; returns whether all is.

        If the calls are not open for it, it is only dropped: what nobody waits for is so in time.
        """
        batch = queue[0]
        if batch.urgency.deadline_us <= now_us + self._window.reply_us:
            queue.popleft()
            self._fail(batch, range(batch.sent, len(batch.requests)), "overloaded")
            return True
        if not batch.finished:
            if not open_:
                return False
            try:
                self._take(batch, calls, now_us)
            except Exception as error:
                self._bugs.note("hits could not be sent to Redis", error)
                self._fail(batch, range(batch.sent, len(batch.requests)), "internal")
                batch.sent = len(batch.requests)
            if batch.sent < len(batch.requests) and not batch.finished:
                return False
        queue.popleft()
        return True

    def _take(self, batch: Batch, calls: dict[int, ScriptCall], now_us: int) -> None:
        """Takes requests from a batch, as many as fit; drops those that nobody wants any more."""
        wanted, start, stop = batch.wanted, batch.sent, len(batch.requests)
        taken = [at for at in range(start, stop) if wanted(at)]
        deadline_us, timeout_us = batch.urgency.deadline_us, self._server.timeout_us
        if deadline_us > batch.urgency.due_us(timeout_us):
            deadline_us = min(deadline_us, now_us + timeout_us)
        not_after_us = self._server.clock.not_after(deadline_us)
        if self.slot is None:
            count = self._call_of(_ONLY, calls, now_us).add(batch, taken, not_after_us)
        else:
            count, size = 0, sum([call.weight for call in calls.values()])
            for at in taken:
                call = self._call_of(self.slot(batch.requests[at]), calls, now_us)
                size -= call.weight
                if not call.add(batch, [at], not_after_us, size):
                    break
                size += call.weight
                count += 1
                batch.sent = at + 1  # for the case that the next one fails
        if count < len(taken):
            stop = taken[count]
        batch.sent = stop
        if count < stop - start:
            wanted_ones = set(taken)
            batch.dropped([at for at in range(start, stop) if at not in wanted_ones])

    def _call_of(self, slot: int, calls: dict[int, ScriptCall], now_us: int) -> ScriptCall:
        """The call of a slot among these, maybe a new one."""
        call = calls.get(slot)
        if call is None:
            wall_us = self._server.clock.wall_us()
            call = calls[slot] = ScriptCall(next(self._numbers), wall_us, now_us)
        return call

    def _call(
        self, connection: RedisConnection, by_slot: dict[int, ScriptCall], *, asking: bool = False
    ) -> None:
        """Sends new script calls in one write; those without requests are not sent."""
        calls = [call for call in by_slot.values() if call.parts]
        if not calls:
            return
        *others, last = calls
        for call in others:  # replies come in order, so all of them have theirs with the last one
            last.priority = min(last.priority, call.priority)
            call.priority = NO_PRIORITY
        self._window.sent(last.priority, last.sent_us)
        for call in calls:
            self._write(connection, call, self._script, asking)

    def _write(
        self, connection: RedisConnection, call: ScriptCall, script: tuple[str, str], asking: bool
    ) -> None:
        """Sends a script call, by EVALSHA or EVAL."""
        judge = self._server.clock.given is not None
        try:
            words = call.arguments(judge, self._key_prefix)
            if asking:
                connection.send(("ASKING",), _ignore)
            replied = partial(self._replied, connection, call, script[0], asking)
            connection.send((*script, *words, call.number), replied)
        except Exception as error:
            self._window.landed(call.priority, elapsed_us())
            self._bugs.note("hits could not be sent to Redis", error)
            for batch, indexes in call.parts:
                self._fail(batch, indexes, "internal")

    def _replied(
        self,
        connection: RedisConnection,
        call: ScriptCall,
        sent_by: str,
        asking: bool,
        reply: Reply,
    ) -> None:
        """Takes the reply to a call that was sent by EVALSHA or EVAL."""
        error = reply if isinstance(reply, hiredis.ReplyError) else None
        if error and sent_by == "EVALSHA" and self._wants_text(connection, error):
            self._write(connection, call, ("EVAL", SCRIPT), asking)
            return
        now_us = elapsed_us()
        self._window.landed(call.priority, now_us)
        try:
            self._compare_paces(connection)
            if error or reply is None:
                self._refused(connection, call, reply)
            elif not call.read(reply):
                connection.distrust()
                self._refused(connection, call, None)
            else:
                self._server.answered(connection, call.at_us, call.sent_us, now_us)
                self._window.learn(min(now_us - call.sent_us, self._server.timeout_us))
                if call.damaged:
                    self._corrupt_state.note(len(call.damaged), call.damaged[0])
                for batch, indexes in call.parts:
                    if call.late:
                        self._answer_one_by_one(batch, indexes, call, connection.answered_left_us)
                    else:
                        batch.answered(indexes, call.found, call.at_us, call.within)
        except Exception as error:
            # The remaining outcomes cannot be told apart any more.
            self._bugs.note("a reply from Redis could not be handled", error)
            for batch, indexes in call.parts:
                self._fail(batch, indexes, "internal")
        if not self._sending and any(self._queues):
            self._send()

    def _wants_text(self, connection: RedisConnection, error: hiredis.ReplyError) -> bool:
        """Whether a call by EVALSHA is to be sent again, with the script instead of its name.

        Redis may have lost its scripts (SCRIPT FLUSH, a restart); EVAL brings this one back. Or a
        proxy, or the user's rights, refuse EVALSHA: then all later calls have the script as well.
        """
        text = str(error)
        if text.startswith("NOSCRIPT"):
            return True
        if "evalsha" not in text.lower():
            return False
        if self._script[0] == "EVALSHA":  # else another call that was under way has said it
            self._script = ("EVAL", SCRIPT)
            log.warning(
                "Redis at %s refuses EVALSHA (%s): each call brings the script along, some 45 KB",
                self._server.name,
                connection.shown(error),
            )
        return True

    def _compare_paces(self, connection: RedisConnection) -> None:
        """Notes whether the server waits for this process, or the other way round."""
        window = self._window
        if not connection.caught_up:
            window.shrink()
        elif any(self._queues) and window.can_grow and self._fills_a_call:
            window.grow()

    def _fail(self, batch: Batch, indexes: Sequence[int], reason: str) -> None:
        """Tells a batch that it gets no answer; if that fails too, its deadline ends it."""
        if batch.urgency.deadline_us == NEVER:
            hits = sum([len(batch.requests[index]) for index in indexes])
            self._stats.lost_give_backs[reason] += hits
        try:
            batch.failed(indexes, reason)
        except Exception as error:
            self._bugs.note("hits could not be decided without Redis", error)

    def _refused(self, connection: RedisConnection, call: ScriptCall, reply: Reply) -> None:
        """Takes a reply that is an error or cannot be read, or None if there was no reply."""
        error = str(reply) if isinstance(reply, hiredis.ReplyError) else ""
        # What lies in one slot and is refused all the same would be refused each time it is sent.
        in_vain = crosses_slots(error) and call.in_one_slot
        redirect = None if in_vain else self._redirect
        remaining = [
            (batch, indexes)
            for batch, indexes in call.parts
            if not (redirect and error and redirect(error, batch, indexes))
        ]
        if not remaining:
            return
        if reply is None:
            self._server.degrade(f"is away: {connection.lost.result()}")
        else:
            self._server.degrade(f"answers: {connection.shown(reply):.200}")
        if wants_reconnect(error):  # the new connection asks again which server is the master
            connection.close(f"it answers {connection.shown(reply):.100}")
        for batch, indexes in remaining:
            whole = len(indexes) == len(batch.requests)
            if batch.urgency.deadline_us == NEVER and whole and did_nothing(error):
                batch.sent = 0
                self.hold(batch)
            else:
                # A give-back that may have been done is not sent again: done twice, it would
                # admit too much.
                self._fail(batch, indexes, "unknown" if reply is None else "refused")

    def _answer_one_by_one(
        self, batch: Batch, indexes: Sequence[int], call: ScriptCall, left_us: int
    ) -> None:
        """Answers requests one by one: those that reached the server too late have no answer.

        They left at `left_us`. If the server took little time by its own, this process kept them
        too long. Nothing was counted then. So for callers who still wait they are sent again.
        """
        took_us = self._server.clock.took_us(left_us, call.at_us)
        waits = (
            batch.urgency.deadline_us > elapsed_us() + self._window.reply_us and not batch.finished
        )
        again: list[int] = []
        for index in indexes:
            outcomes = list(islice(call.found, len(batch.requests[index])))
            if None not in outcomes:
                batch.answered([index], iter(outcomes), call.at_us, False)
            elif took_us >= batch.urgency.patience_us(self._server.timeout_us):
                batch.failed([index], "timeout")
            elif waits and outcomes.count(None) == len(outcomes):
                again.append(index)
            else:
                batch.failed([index], "overloaded")
        if again:
            self._queues[batch.urgency.priority].appendleft(Retry(batch, again))


def _ignore(_: Reply) -> None: ...
