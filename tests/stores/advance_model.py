"""A small model of advances: two processes, one server, and all that may come between them.

A step is one event: a message is sent, comes to the server, comes back, or gets lost; a process
spends; a window ends; the server loses data. `search` walks every order of steps up to a depth and
looks at the books of each window after every step. Nothing of the service is used here: the model
says what the rules of advances promise, whatever the code does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from tests.stores import orders

__all__ = ["HONEST", "Books", "Rules", "State", "search"]

_LIMIT: Final = 6
_LEAST: Final = 2
"""The service gives nothing below 4. In the model 2 keep the numbers of states small."""


class Rules(NamedTuple):
    """What processes and the server do; each of these that is changed breaks a promise."""

    charges_when_given: bool = True
    """The server charges an advance when it gives it, not when it is spent."""
    leaves_before_sent: bool = True
    """What is handed back leaves the balance before it is sent."""
    sent_once: bool = True
    """A hand-back whose reply was lost is not sent again."""
    names_window: bool = True
    """A hand-back counts only in the window that it was charged in."""
    ends: bool = True
    """A balance ends with its window."""


HONEST: Final = Rules()


class Books(NamedTuple):
    """What has become of the hits of one window."""

    charged: int = 0
    handed_back: int = 0
    admitted: int = 0
    """Of the hits that were charged in this window."""
    passed: int = 0
    """While this window lasted."""
    lost: int = 0
    """By the server: in a failover, or because somebody reset the counter."""
    out_at_jump: int = 0
    """What was unspent when the server's clock jumped ahead."""


class Message(NamedTuple):
    """What is under way between a process and the server."""

    kind: str
    hits: int
    window: int


@dataclass(frozen=True)
class Process:
    """One process: its balance, what a request has taken of it, and what is under way."""

    unspent: int = 0
    window: int = 0
    taken: int = 0
    taken_of: int = 0
    asks: Message | None = None
    returns: Message | None = None


@dataclass(frozen=True)
class State:
    """All that there is at one moment."""

    window: int = 0
    count: int = 0
    limit: int = _LIMIT
    books: tuple[Books, ...] = (Books(),)
    processes: tuple[Process, Process] = field(default=(Process(), Process()))
    troubles: int = 0
    """How many failovers, resets, reloads and jumps of the clock there were."""


_Step = tuple[str, State]


def search(depth: int, rules: Rules = HONEST, most_troubles: int = 1) -> tuple[int, list[str]]:
    """Walks all orders of steps up to a depth, as `orders.search` does."""
    return orders.search(
        State(), depth, lambda state: _steps(state, rules, most_troubles), _is_wrong
    )


def _is_wrong(state: State) -> bool:
    for window, books in enumerate(state.books):
        held = sum(
            each.unspent * (each.window == window) + each.taken * (each.taken_of == window)
            for each in state.processes
        )
        if books.admitted + held > books.charged - books.handed_back:
            return True
        if books.passed > _most(state) + books.lost + books.out_at_jump:
            return True
    return False


def _most(state: State) -> int:
    return max(_LIMIT, state.limit)


def _booked(state: State, window: int, **more: int) -> State:
    books = list(state.books)
    old = books[window]
    books[window] = old._replace(**{name: getattr(old, name) + by for name, by in more.items()})
    return replace(state, books=tuple(books))


def _with(state: State, number: int, process: Process) -> State:
    processes = list(state.processes)
    processes[number] = process
    return replace(state, processes=(processes[0], processes[1]))


def _steps(state: State, rules: Rules, most_troubles: int) -> Iterator[_Step]:
    for number, process in enumerate(state.processes):
        for name, after in _of_process(state, number, process, rules):
            yield f"{'ab'[number]} {name}", after
    last = len(state.books) - 1
    if state.window < 1:  # the window ends; balances end with it
        ended = replace(state, window=last + 1, count=0, books=(*state.books, Books()))
        yield "window ends", _expired(ended) if rules.ends else ended
    if state.troubles >= most_troubles:
        return
    troubled = replace(state, troubles=state.troubles + 1)
    if state.count:
        yield "reset", replace(_booked(troubled, last, lost=state.count), count=0)
        kept = state.count // 2
        yield "failover", replace(_booked(troubled, last, lost=state.count - kept), count=kept)
    yield "limit lowered", replace(troubled, limit=_LIMIT - 2)
    if state.window < 1:  # balances do not hear of it
        out = sum(each.unspent + each.taken for each in state.processes)
        jumped = _booked(replace(troubled, window=last + 1, count=0), last, out_at_jump=out)
        yield "clock jumps", replace(jumped, books=(*jumped.books, Books(out_at_jump=out)))


def _expired(state: State) -> State:
    """What a process holds of another window is lost; what a request has taken, it has taken."""
    for number, process in enumerate(state.processes):
        state = _with(state, number, replace(process, unspent=0))
    return state


def _of_process(state: State, number: int, process: Process, rules: Rules) -> Iterator[_Step]:
    put: Callable[[Process], State] = lambda changed: _with(state, number, changed)  # noqa: E731
    yield from _spending(state, number, process)
    yield from _asking(state, number, process, rules)
    if process.unspent and process.returns is None:
        back = Message("sent", process.unspent, process.window)
        left = 0 if rules.leaves_before_sent else process.unspent
        yield "hands back", put(replace(process, unspent=left, returns=back))
    returns = process.returns
    if returns is None:
        return
    if returns.kind == "sent":
        given = _given_back(state, returns, rules)
        done = replace(process, returns=returns._replace(kind="done"))
        yield "hand-back counted", _with(given, number, done)
        yield "connection lost before hand-back", put(replace(process, returns=None))
    else:
        again = None if rules.sent_once else returns._replace(kind="sent")
        yield "hand-back's reply lost", put(replace(process, returns=again))
        unspent = process.unspent if rules.leaves_before_sent else 0
        yield "hand-back told", put(replace(process, unspent=unspent, returns=None))


def _given_back(state: State, back: Message, rules: Rules) -> State:
    """The server takes a hand-back in the window that it is of, never below nothing."""
    if rules.names_window and back.window != state.window:
        return state
    hits = min(state.count, back.hits)
    return replace(_booked(state, state.window, handed_back=hits), count=state.count - hits)


def _spending(state: State, number: int, process: Process) -> Iterator[_Step]:
    """A hit that the balance pays, a plain one, and one beside others that may be denied."""
    if process.unspent:
        spent = _with(state, number, replace(process, unspent=process.unspent - 1))
        spent = _booked(spent, process.window, admitted=1)
        yield "spends", _booked(spent, state.window, passed=1)
        if not process.taken:
            taken = replace(process, unspent=process.unspent - 1, taken=1, taken_of=process.window)
            yield "takes", _with(state, number, taken)
    if process.taken:
        without = replace(process, taken=0)
        passed = _with(state, number, without)
        yield "taken passes", _booked(passed, process.taken_of, admitted=1, passed=1)
        same = process.window == process.taken_of == state.window
        unspent = process.unspent + same
        yield "taken is put back", _with(state, number, replace(without, unspent=unspent))
    if state.count < state.limit:
        plain = replace(state, count=state.count + 1)
        yield "plain hit", _booked(plain, state.window, charged=1, admitted=1, passed=1)


def _asking(state: State, number: int, process: Process, rules: Rules) -> Iterator[_Step]:
    asks = process.asks
    if asks is None:
        if process.unspent < _LEAST:
            asked = replace(process, asks=Message("sent", 0, 0))
            yield "asks", _with(state, number, asked)
    elif asks.kind == "sent":
        yield "connection lost before ask", _with(state, number, replace(process, asks=None))
        for processes in (1, 2):  # a process that just joined may know a wrong number
            hits = max(0, state.limit - state.count) // (2 * processes)
            hits = hits if hits >= _LEAST else 0
            given = replace(process, asks=Message("given", hits, state.window))
            after = _with(state, number, given)
            if rules.charges_when_given:
                after = replace(after, count=after.count + hits)
                after = _booked(after, state.window, charged=hits)
            yield f"{hits} given", after
    else:
        without = replace(process, asks=None)
        yield "grant's reply lost", _with(state, number, without)
        # The reply is late if its window is over: then it counts for nothing.
        hits = asks.hits if asks.window == state.window or not rules.ends else 0
        before = process.unspent if process.window == asks.window else 0
        held = replace(without, unspent=before + hits, window=asks.window)
        yield "grant heard", _with(state, number, held)
