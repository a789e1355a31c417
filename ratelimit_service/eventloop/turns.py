"""Whose turn it is: what a round of the event loop does, and what waits for the next round.

Clients' connections are handled a piece of their bytes at a time. A turn handles pieces for two
milliseconds at most, whoever they are from. Then the loop reads, writes and runs its timers, and
the turns go on where they stopped. The next piece is always of the connection that has used the
least time. A connection that comes back after a pause starts from the least that any waiting one
has used, so that nobody can save time up. (Linux' CFS shares out processors this way.) So clients
that send much, or expensive frames, hold up neither the others nor the replies of a store, however
many clients they are. A piece that may take long is the only one of its turn. What small pieces of
a turn ask for is decided together at its end (`Turns.later`), since many small batches cost several
times what a large one does. What is to be said leaves before the next turn (`Turns.before_write`).
Pieces that bring no calls, such as steps of handshakes, gain nothing by that. They get half a
millisecond of a turn, so that calls which a store has answered wait less.

Half of a turn is for those who have asked little for a while, however much time they have used in
all. Else a client of many small calls would wait for the first pieces of hundreds of others that
come together and have used nothing yet. While there are such clients, others have no more than the
other half: who waits for a store waits for several turns.

What takes long to decide is done in steps, each in a turn of its own (`Turns.alone`). Every other
turn is one for pieces, so small calls wait for one step at most. A store's replies are steps as
well, of work that has begun (`Turns.at_once`). So a round of the loop has one turn, and hands on no
replies beside it. Replies share a turn's time, in one turn or in several: what calls wait for would
be handed on more slowly than pieces bring new ones. Other steps, as those of a long plan, have a
turn each. What must not live here: bytes, and how they are handled.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Sequence
from time import thread_time_ns
from typing import Final, Protocol

from ratelimit_service.eventloop.clock import elapsed_us
from ratelimit_service.eventloop.reads import Reads

__all__ = ["TURN_US", "Turns", "Waiting", "shared_turns"]

TURN_US: Final = 2_000
"""For so long pieces are handled before the loop has its turn."""

_WITHOUT_CALLS_US: Final = TURN_US // 4
"""So much of that time may go to pieces that bring no calls. Only calls gain by a long turn: those
of one turn are decided together. A client that brought no calls last is taken to use as much. So of
many such clients none comes before calls that cost little."""

_LITTLE_LATELY_US: Final = 10 * TURN_US
"""For so long after a piece of a client that asks little, others have half of a turn at most: as
long as such a client waits for an answer."""

_ASKS_LITTLE: Final = 16
"""A client asks little if so many of its pieces in a row took little."""

_LITTLE_US: Final = TURN_US // 4
_LITTLE_CALLS: Final = 8
"""A piece took little if it brought at most so many calls, and took at most so long."""

_VISITS: Final = 64
"""About so many visits of late clients are averaged."""

_AT_ONCE_US: Final = TURN_US // 2
"""So much of that time may go to what is handled as soon as it is read."""

_MOST_LATELY_US: Final = 2 * TURN_US
"""Handling at once is made good by rest. Turns are added to what is still to be made good only
while it is less than this."""

_DEAR_US: Final = 2 * TURN_US
"""A piece that may take long is taken to use so much before it is handled. So of many such pieces
none comes before those that cost little."""

_MOST_USED_US: Final = _DEAR_US
"""The most that a piece is taken to have used. No piece takes longer; but the machine may stand
still meanwhile, and then its client would wait for as long again beside each of the others."""


class Waiting(Protocol):
    """A connection with bytes to be handled."""

    used_us: int
    """How much time it has used; connections are compared by this."""

    late: bool
    """Whether there was no time for its last calls."""

    little_pieces: int
    """How many of its pieces in a row took little, and were in time; counted here."""

    dear: bool
    """Whether its next piece may take long by itself, as a large message does once it is whole."""

    brought_calls: bool
    """Whether there were calls in what it has handled last."""

    def handle_piece(self, now_us: int, *, at_once: bool = False) -> bool:
        """Handles a piece, at a time by `elapsed_us`; returns whether there is more.

        With `at_once` nobody else is handled in this turn, so nothing is to be left for its end.
        """

    def end_turn(self) -> None:
        """Writes what is to be said after the pieces of this turn."""

    def fail(self, error: Exception) -> None:
        """Ends, because one of the two above has raised. It gets no more turns."""


_GUESSED_US: Final = 10
"""How long it takes for each call to do what is left for a turn's end, before that was ever
measured."""


class Turns:
    """The connections of one event loop that have bytes to be handled."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.reads = Reads(self.loop)
        """What is read until its turn comes."""
        self._others: list[tuple[int, int, Waiting]] = []
        """A heap by the time used. A number keeps the order of those that have used the same."""
        self._asking_little: list[tuple[int, int, Waiting]] = []
        """The same of those who ask little, and brought calls last."""
        self._little_us = -_LITTLE_LATELY_US
        """When a piece of these was handled last."""
        self._was_dear = False
        """Whether the last turn for pieces had one that may take long."""
        self._resting: list[tuple[int, int, Waiting]] = []
        """A heap of those that wait from some time on, by that time."""
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_us = 0
        """A timer that asks for a turn, if nothing does so before, and when it does."""
        self._number = 0
        self._least_us = 0
        """How much time the last handled connection had used before. It never falls, and new
        connections start from it: whoever was handled alone until now is not behind them."""
        self.scheduled = False
        """Whether the loop has been asked for a turn."""
        self._ended_us = 0
        """When something was last handled, or turns began, by `elapsed_us`."""
        self._before_us = 0
        """When the turn before that had ended; 0 before the first turn after a rest."""
        self._lately_us = 0
        """How much time went to what was handled at once, less what was made good since."""
        self._finish: Callable[[int], None] | None = None
        """Does what was left for the end of this turn."""
        self._later_calls = self._step_calls = 0
        """For how many calls that is, and for how many steps were left in this turn."""
        self._call_us, self._visit_us = _GUESSED_US, 0.0
        """How long it takes for a call, as it took lately, and how long a late client's visit took,
        of those that took little."""
        self._steps: deque[Callable[[], None]] = deque()
        """First steps of long work, each for a turn of its own."""
        self._begun: deque[tuple[Callable[[], None], bool]] = deque()
        """Further steps of work that has begun, and whether each may share its turn."""
        self._stepped_us = 0
        """How long the turns for steps took that came since the last one for pieces."""
        self._taken = False
        """Whether a step that was taken at once stands in place of the next turn."""
        self._asked_ns = 0
        """What this thread had used of the processor when the next turn was asked for."""
        self._put_off = False
        """Whether the last turn was left out: because a step was taken in its place, or because
        this thread had used much of the processor since the turn was asked for."""
        self._held = False
        """Whether no more work may begin for now."""
        self._before_write: deque[Callable[[], None]] | None = None
        """What is to be done at the end of this turn, or of a step at once; None without these."""

    def came_us(self, now_us: int) -> int:
        """When bytes have come, on average, that the loop has just read.

        Between two turns the loop does not wait. So what it reads may have come at any time since
        its last round, which began when the turn before the last had ended.
        """
        return (now_us + self._before_us) // 2 if self.scheduled and self._before_us else now_us

    @property
    def busy(self) -> bool:
        """Whether any connection waits for its turn, or rests before it."""
        return self._waiting or bool(self._resting)

    @property
    def _waiting(self) -> bool:
        """Whether any connection waits for its turn."""
        return bool(self._others) or bool(self._asking_little)

    def rest(self, waiting: Waiting, until_us: int) -> None:
        """Takes in a connection whose next turn is not before this time, by `elapsed_us`."""
        self._number += 1
        heapq.heappush(self._resting, (until_us, self._number, waiting))
        self._set_alarm()

    def _set_alarm(self) -> None:
        """Sees to it that there is a turn when the first rest ends."""
        if self.scheduled:
            return
        first_us = self._resting[0][0]
        if self._alarm is not None:
            if self._alarm_us <= first_us:
                return
            self._alarm.cancel()
        self._alarm_us = first_us
        seconds = max(0, first_us - elapsed_us()) / 1_000_000
        self._alarm = self.loop.call_later(seconds, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self._schedule()

    def _end_rests(self, now_us: int) -> None:
        """Has those wait for their turn that have rested for long enough."""
        resting = self._resting
        while resting and resting[0][0] <= now_us:
            rested = heapq.heappop(resting)[2]
            rested.used_us = max(rested.used_us, self._least_us)
            self._push(rested)

    def later(self, finish: Callable[[int], None], calls: int) -> None:
        """Has `finish` called once at the end of this turn, for so many calls of this piece.

        All who ask for it in one turn ask for the same. A turn ends as soon as there is as much to
        finish as fits into its time. `finish` hears when it begins, and raises nothing.
        """
        self._finish = finish
        self._later_calls += calls

    def before_write(self, work: Callable[[], None]) -> None:
        """Has short `work` done at the end of this turn, or of the step that is taken at once.

        If there is neither, it is done in the loop's next round. The loop writes when all that was
        due in its round is done. So what is said in the round after a turn would leave behind the
        next turn.
        """
        if self._before_write is None:
            self.loop.call_soon(work)
        else:
            self._before_write.append(work)

    def alone(self, step: Callable[[], None], calls: int) -> None:
        """Has the first step of long work called in a turn of its own, after others' work.

        It stands for the work of so many calls of this piece. `step` raises nothing.
        """
        self._steps.append(step)
        self._step_calls += calls
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

    def go_on(self, step: Callable[[], None], *, shares: bool = False) -> None:
        """Has the next step of work that has begun called in a turn of its own.

        If it `shares` its turn, others that do are called in it as well, as many as fit.
        """
        self._begun.append((step, shares))
        self._schedule()

    def at_once(self, step: Callable[[], None], *, shares: bool = False) -> None:
        """Has the next step of work that has begun called at once; a long one is the next turn.

        If anything else waits for its turn, the step waits as well, as for `go_on`.
        """
        started = elapsed_us()
        busy = self._others or self._asking_little or self._begun or self._steps
        if (busy and (self._waiting or self._may_step)) or not self._rested(started):
            self.go_on(step, shares=shares)
            return
        if self._before_write is None:
            self._before_write = deque()
            try:
                step()
            finally:
                if self._before_write:
                    self._end_turn(self._before_write)
                self._before_write = None
        else:  # within a turn, which has an end of its own
            step()
        self._ended_us = elapsed_us()
        took_us = self._ended_us - started
        self._lately_us += took_us
        if took_us >= _AT_ONCE_US:
            self._schedule()
            self._taken = True

    def _rested(self, now_us: int) -> bool:
        """Whether little was done at once lately, so that more may be."""
        if self._taken:
            return False
        # Each microsecond of rest makes up for three of handling.
        idle_us = now_us - self._ended_us
        self._lately_us = max(0, self._lately_us - 3 * idle_us)
        return self._lately_us < _AT_ONCE_US

    @property
    def _may_step(self) -> bool:
        """Whether there is a step that may be taken now."""
        return bool(self._begun) or (bool(self._steps) and not self._held)

    def _schedule(self, now_us: int = 0) -> None:
        """Asks for a turn. `now_us` is the time, from whoever has just looked."""
        if not self.scheduled:
            self.scheduled = True
            # The loop has waited until now, so what it reads in this round has just come.
            self._before_us, self._ended_us = 0, now_us or elapsed_us()
            self._ask()

    def _ask(self) -> None:
        self._asked_ns = thread_time_ns()
        self.loop.call_soon(self._turn)

    def add(self, waiting: Waiting, now_us: int) -> None:
        """Takes in a connection that is not waiting already.

        If no other waits, and little has been handled lately, a piece is handled at once.
        """
        waiting.used_us = max(waiting.used_us, self._least_us)
        if not (self._others or self._asking_little or self._steps or self._begun):
            self._least_us = waiting.used_us
            # Each microsecond of rest makes up for three of handling.
            self._lately_us = max(0, self._lately_us - 3 * (now_us - self._ended_us))
            rested = self._lately_us < _AT_ONCE_US and not self._taken
            if rested and not waiting.dear and not self._handled(waiting, now_us):
                return
        self._push(waiting)
        if not self.scheduled:
            self._schedule(now_us)

    def _handled(self, waiting: Waiting, now_us: int) -> bool:
        """Handles a piece at once; returns whether there is more."""
        more, outermost = False, self._before_write is None
        if outermost:
            self._before_write = deque()
        try:
            more = waiting.handle_piece(now_us, at_once=True)
            waiting.end_turn()
        except Exception as error:
            waiting.fail(error)
        if outermost:
            if self._before_write:
                self._end_turn(self._before_write)
            self._before_write = None
        self._ended_us = elapsed_us()
        took_us = self._ended_us - now_us
        # Steps that it has left are long work.
        little = took_us <= _LITTLE_US and not (waiting.late or self._steps)
        if waiting.brought_calls and little:
            waiting.little_pieces += 1
        else:
            waiting.little_pieces = 0
        waiting.used_us += min(took_us, _MOST_USED_US)
        self._lately_us += took_us
        return more

    def _push(self, waiting: Waiting) -> None:
        self._number += 1
        used_us, line = waiting.used_us, self._others
        if waiting.dear:
            used_us += _DEAR_US
        elif not waiting.brought_calls:
            used_us += _WITHOUT_CALLS_US
        elif waiting.little_pieces >= _ASKS_LITTLE:
            line = self._asking_little
        heapq.heappush(line, (used_us, self._number, waiting))

    def _turn(self) -> None:
        started, since_ns = elapsed_us(), thread_time_ns()
        # If the loop itself had much to do, as when hundreds hang up, a turn is left out for it.
        others_us = (since_ns - self._asked_ns) // 1_000
        self._put_off = self._taken or (others_us > TURN_US and not self._put_off)
        self._taken = False
        self._before_write = deque()
        try:
            if not self._put_off:
                if self._resting:
                    self._end_rests(started)
                self._take_turn(started, since_ns)
        finally:  # if a step has failed, which the loop logs, everybody else has their turn
            self._end_turn(self._before_write)
            self._before_us, self._ended_us = self._ended_us, elapsed_us()
            # What comes in this round of the loop is not handled at once.
            if self._lately_us < _MOST_LATELY_US:
                self._lately_us += self._ended_us - started
            self.scheduled = self._may_step or bool(self._others or self._asking_little)
            if self.scheduled:
                self._ask()
            elif self._resting:
                self._set_alarm()

    def _end_turn(self, before_write: deque[Callable[[], None]]) -> None:
        """Does what is to be done before the loop writes."""
        while before_write:
            try:
                before_write.popleft()()
            except Exception as error:  # its fault must not cost others what they have to say
                self._tell(error)
        self._before_write = None

    def _tell(self, error: Exception) -> None:
        """Logs a fault at the end of a turn."""
        told = {"message": "the end of a turn failed", "exception": error}
        self.loop.call_exception_handler(told)

    def _take_turn(self, started: int, since_ns: int) -> None:
        """Takes a step, or handles pieces; it began then, and the thread had used so much."""
        if self._may_step and (not self._waiting or self._steps_come_first):
            if not self._waiting:
                self._stepped_us = 0
            self._take_steps(started)
            self._stepped_us += max(1, elapsed_us() - started)
        else:
            self._stepped_us = 0
            self._handle_pieces(started, since_ns)

    @property
    def _steps_come_first(self) -> bool:
        """Whether the next turn is one for steps although pieces wait.

        That is every other turn. Steps that share turns have more, which take no longer together
        than one. So a reply that came meanwhile need not wait for a turn of pieces.
        """
        shares = bool(self._begun) and self._begun[0][1]
        return self._stepped_us < (TURN_US // 2 if shares else 1)

    def _take_steps(self, now: int) -> None:
        """Takes the next step, and as many more as fit into its turn, if all of them share it."""
        if not self._begun:
            self._steps.popleft()()
            return
        until, longest_us = now + TURN_US - self._stepped_us, 0
        step, shares = self._begun.popleft()
        step()
        while shares and self._begun and self._begun[0][1]:
            started, now = now, elapsed_us()
            longest_us = max(longest_us, now - started)
            if now + longest_us > until:
                break
            self._begun.popleft()[0]()

    def _handle_pieces(self, now: int, since_ns: int) -> None:
        """Handles pieces for as long as a turn may take."""
        until, rest_us, since_us = now + TURN_US, _WITHOUT_CALLS_US, now
        others_us = TURN_US // 2 if now - self._little_us < _LITTLE_LATELY_US else TURN_US
        handled: list[Waiting] = []
        while (self._others or self._asking_little) and rest_us > 0:
            planned_us = now + self._later_calls * self._call_us
            line = self._next_line(until - planned_us, begun=bool(handled))
            if planned_us >= until or (handled and line[0][2].dear):
                break
            asks_little = line is self._asking_little
            if asks_little:
                self._little_us, others_us = now, min(others_us, TURN_US // 2)
            elif others_us <= 0:
                break
            if not handled:
                self._was_dear = line[0][2].dear
            first = heapq.heappop(line)[2]
            self._least_us = max(self._least_us, first.used_us)
            handled.append(first)
            more, later, before = False, self._later_calls, self._later_calls + self._step_calls
            try:
                more = first.handle_piece(now)
            except Exception as error:  # its fault must not cost others their turn
                first.fail(error)
            started, now = now, elapsed_us()
            if not first.brought_calls:
                rest_us -= now - started
            left_calls = self._later_calls + self._step_calls - before
            took_us = min(now - started, _MOST_USED_US)
            first.used_us += took_us + left_calls * self._call_us
            if not asks_little:
                # Steps have turns of their own.
                others_us -= took_us + (self._later_calls - later) * self._call_us
            if took_us > _LITTLE_US:  # if the machine stood still, that is no fault of the client
                before_us, before_ns = started - since_us, since_ns
                since_us, since_ns = now, thread_time_ns()
                took_us = min(took_us, (since_ns - before_ns) // 1_000 - before_us)
            _count_little(first, left_calls, took_us)
            self._even_out(first, took_us + left_calls * self._call_us)
            if more:
                self._push(first)
        self._finish_turn(handled, now)

    def _even_out(self, client: Waiting, took_us: int) -> None:
        """Charges each late client's visit that took little with what such visits take on average.

        How much of a visit is counted is not the client's doing. If it were charged for that, it
        would be visited next when its callers have gone. It has been charged for `took_us` already.
        """
        if client.late and took_us <= _LITTLE_US:
            self._visit_us += (took_us - self._visit_us) / _VISITS
            client.used_us += round(self._visit_us) - took_us

    def _next_line(self, rest_us: int, *, begun: bool) -> list[tuple[int, int, Waiting]]:
        """The heap whose first is next, with so much of the turn left.

        In the first half of a turn that is who asks little, unless a piece that may take long is
        due and had no turn the last time. In the second half it is who has used the least.
        """
        some, little = self._others, self._asking_little
        if not (some and little):
            return some or little
        fair = some if some[0] < little[0] else little
        if 2 * rest_us <= TURN_US or (fair[0][2].dear and not begun and not self._was_dear):
            return fair
        return little

    def _finish_turn(self, handled: Sequence[Waiting], now_us: int) -> None:
        """Does what was left for the end of the turn, and writes."""
        finish, calls = self._finish, self._later_calls
        self._step_calls = 0
        if finish is not None and calls:
            self._finish, self._later_calls = None, 0
            try:
                finish(now_us)
            except Exception as error:  # its fault must not keep others from writing
                self._tell(error)
            took_us = (elapsed_us() - now_us) // calls
            self._call_us = max(1, (3 * self._call_us + took_us) // 4)
        for each in handled:
            try:
                each.end_turn()
            except Exception as error:
                each.fail(error)


def _count_little(client: Waiting, calls: int, took_us: int = 0) -> None:
    """Notes that a piece has left so many calls for the end of the turn, and how long it took."""
    if 0 < calls <= _LITTLE_CALLS and took_us <= _LITTLE_US and not client.late:
        client.little_pieces += 1
    else:
        client.little_pieces = 0


_SHARED: Final[list[Turns]] = []


def shared_turns() -> Turns:
    """The turns that everything on the running event loop shares."""
    if not _SHARED or _SHARED[0].loop is not asyncio.get_running_loop():
        _SHARED[:] = [Turns()]
    return _SHARED[0]
