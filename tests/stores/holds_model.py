"""A small model of reservations: two processes, one counter, and all that may come between them.

A step is one event: a message is sent, comes to the counter, its reply comes back or gets lost;
time passes; a process dies; rules are reloaded. `search` walks every order of steps up to a depth
and looks at the books after every step. Nothing of the service is used here: the model says what
the rules of reservations promise, whatever the code does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from tests.stores import orders

__all__ = ["HONEST", "Rules", "search"]

_LIMIT: Final = 4
_ESTIMATE: Final = 2
_ACTUAL: Final = 2
_TTL: Final = 2
_LAST: Final = 3
"""Time goes from 0 to this; a window is two long."""


class Rules(NamedTuple):
    """What the counter does; each of these that is changed breaks a promise."""

    admits_beside_held: bool = True
    """There is room while counted + held + hits is within the limit."""
    outlives_window: bool = True
    """A hold ends at its time to live, not with the window that it began in."""
    ends: bool = True
    """A hold ends at its time to live though nobody runs for it."""
    settles_at_once: bool = True
    """To end the hold and to count is one step."""
    marks: bool = True
    """A settled id is remembered, so that it counts once."""
    marks_ended: bool = True
    """Also if its hold had ended before."""
    settled_is_over: bool = True
    """An id that was settled holds nothing again."""
    extends_in_place: bool = True
    """A second reserve with the same id takes the place of the first."""


HONEST: Final = Rules()


class Hold(NamedTuple):
    """A hold beside the counter, until it ends."""

    id: int
    hits: int
    ends: int
    window: int


@dataclass(frozen=True)
class Stream:
    """A caller with one stream: what it has sent and heard. Its id is its number."""

    asked: str = ""
    """What is under way to the counter: reserve, extend or settle."""
    lost: bool = False
    """Whether a settle was sent of which no reply came: it is sent again, once."""
    heard: bool = False
    """Whether it knows that it holds: it may extend, and settle."""
    ends: int = 0
    """When the hold that it was told of ends."""
    extended: bool = False
    settled: int = 0
    """How often what it has used was counted."""
    released: bool = False
    """In two steps, a settle has ended the hold, and has not counted yet."""
    over: bool = False
    """It sends nothing any more: it is through, or has died."""


@dataclass(frozen=True)
class State:
    """All that there is at one moment."""

    time: int = 0
    counted: tuple[int, int] = (0, 0)
    """In each window."""
    late: tuple[int, int] = (0, 0)
    """Of these, hits that were counted though nothing was held for them any more."""
    holds: frozenset[Hold] = frozenset()
    marks: frozenset[int] = frozenset()
    streams: tuple[Stream, Stream] = (Stream(), Stream())
    limit: int = _LIMIT
    reloaded: bool = False

    @property
    def window(self) -> int:
        """The window of now."""
        return self.time // 2


_Step = tuple[str, State]


def search(depth: int, rules: Rules = HONEST) -> tuple[int, list[str]]:
    """Walks all orders of steps up to a depth, as `orders.search` does."""
    return orders.search(State(), depth, lambda state: _steps(state, rules), _is_wrong)


def _is_wrong(state: State) -> bool:
    """Whether a promise is broken.

    What counts in a window and what is held is within the limit, but for hits that were used after
    their holds had ended. What a stream has used counts once. It holds what it asked for last. No
    hold is there after its time to live.
    """
    window = state.window
    held = sum(hold.hits for hold in state.holds)
    if state.counted[window] + held > _LIMIT + state.late[window]:
        return True
    for number, stream in enumerate(state.streams):
        own = [hold for hold in state.holds if hold.id == number]
        if stream.settled > 1 or len(own) > 1 or (own and stream.settled):
            return True
    return any(hold.ends <= state.time for hold in state.holds)


def _held(state: State, but: int = -1) -> int:
    return sum(hold.hits for hold in state.holds if hold.id != but)


def _with(state: State, number: int, stream: Stream) -> State:
    streams = list(state.streams)
    streams[number] = stream
    return replace(state, streams=(streams[0], streams[1]))


def _add(state: State, hits: int, window: int, *, late: int = 0) -> State:
    counted, beyond = list(state.counted), list(state.late)
    counted[window] += hits
    beyond[window] += late
    return replace(state, counted=(counted[0], counted[1]), late=(beyond[0], beyond[1]))


def _steps(state: State, rules: Rules) -> Iterator[_Step]:
    for number, stream in enumerate(state.streams):
        for name, after in _of_stream(state, number, stream, rules):
            yield f"{'ab'[number]} {name}", after
    room = state.limit - state.counted[state.window]
    if rules.admits_beside_held:
        room -= _held(state)
    if room > 0:
        yield "plain hit", _add(state, 1, state.window)
    if state.time < _LAST:
        yield "time passes", _passed(replace(state, time=state.time + 1), rules)
    if not state.reloaded:
        yield "limit lowered", replace(state, limit=_LIMIT - 1, reloaded=True)


def _passed(state: State, rules: Rules) -> State:
    holds = state.holds
    if rules.ends:
        holds = frozenset(hold for hold in holds if hold.ends > state.time)
    if not rules.outlives_window:
        holds = frozenset(hold for hold in holds if hold.window == state.window)
    return replace(state, holds=holds)


def _of_stream(state: State, number: int, stream: Stream, rules: Rules) -> Iterator[_Step]:
    if stream.over:
        return
    if not stream.asked and not stream.released:
        if not stream.heard:
            yield "reserves", _with(state, number, replace(stream, asked="reserve"))
        else:
            yield "settles", _with(state, number, replace(stream, asked="settle"))
            if not stream.extended:
                asked = replace(stream, asked="extend", extended=True)
                yield "extends", _with(state, number, asked)
        yield "dies", _with(state, number, replace(stream, over=True))
    elif stream.asked in ("reserve", "extend"):
        yield from _reserved(state, number, stream, rules)
    elif stream.asked == "settle":
        yield from _settled(state, number, stream, rules)
    elif stream.released:
        counted = replace(stream, released=False, over=True, settled=stream.settled + 1)
        yield "counted", _add(_with(state, number, counted), _ACTUAL, state.window)


def _reserved(state: State, number: int, stream: Stream, rules: Rules) -> Iterator[_Step]:
    """A reserve comes to the counter: its reply is heard, or lost. It may be sent twice over."""
    own = number if rules.extends_in_place else -1
    after, heard, ends = state, False, stream.ends
    is_over = rules.settled_is_over and number in state.marks
    if not is_over and state.counted[state.window] + _held(state, own) + _ESTIMATE <= state.limit:
        hold = Hold(number, _ESTIMATE, state.time + _TTL, state.window)
        kept = frozenset(each for each in state.holds if each.id != own)
        after, heard, ends = replace(state, holds=kept | {hold}), True, hold.ends
    known = stream.heard or heard
    told = replace(stream, asked="", heard=known, ends=ends, over=not known)
    yield f"{stream.asked} answered", _with(after, number, told)
    lost = replace(stream, asked="", over=not stream.heard)
    yield f"{stream.asked}'s reply lost", _with(after, number, lost)
    if stream.asked == "extend":  # overtaken: the settle comes first, and the extension behind it
        for name, settled in _settled(state, number, stream, rules):
            if "lost" not in name and not settled.streams[number].released:
                late = replace(settled.streams[number], asked="extend", over=False)
                yield f"{name} before its extension", _with(settled, number, late)


def _settled(state: State, number: int, stream: Stream, rules: Rules) -> Iterator[_Step]:
    """A settle comes to the counter, and is sent again if the reply is lost."""
    own = [hold for hold in state.holds if hold.id == number]
    is_known = rules.marks and number in state.marks
    after, times = state, stream.settled
    if not is_known:
        beyond = _ACTUAL if state.time >= stream.ends else 0
        kept = frozenset(hold for hold in state.holds if hold.id != number)
        marks = state.marks | {number} if own or rules.marks_ended else state.marks
        after = replace(state, holds=kept, marks=marks)
        if not rules.settles_at_once and own:
            released = replace(stream, asked="", released=True)
            yield "hold released", _with(after, number, released)
            return
        after = _add(after, _ACTUAL, state.window, late=beyond)
        times += 1
    done = replace(stream, asked="", over=True, settled=times)
    yield "settle answered", _with(after, number, done)
    if not stream.lost:
        again = replace(stream, asked="settle", lost=True, settled=times)
        yield "settle's reply lost, sent again", _with(after, number, again)
        never = replace(stream, asked="settle", lost=True)
        yield "settle lost, sent again", _with(state, number, never)
