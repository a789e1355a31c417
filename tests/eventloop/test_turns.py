"""Whose turn it is, and for how long."""

from __future__ import annotations

import asyncio
import time
from contextlib import nullcontext

import pytest

from ratelimit_service import compiled
from ratelimit_service.eventloop import turns
from ratelimit_service.eventloop.turns import _ASKS_LITTLE, TURN_US, Turns
from tests.grpc.ends import held_back
from tests.grpc.taken_turns import take_turn


class Client:
    """Handles pieces without end, the first of which may take long."""

    def __init__(
        self, seconds: float = 0.0, later: float = 0.0, *, brought_calls: bool = True
    ) -> None:
        self.used_us = self.pieces = 0
        self.little_pieces = 0
        self.dear = self.late = False
        self.brought_calls = brought_calls
        self._seconds, self._later = seconds, later

    def handle_piece(self, now_us: int, *, at_once: bool = False) -> bool:
        self.pieces += 1
        until, self._seconds = time.perf_counter() + self._seconds, self._later
        while time.perf_counter() < until:
            pass
        return True

    def end_turn(self) -> None: ...

    def fail(self, error: Exception) -> None: ...


async def test_a_piece_during_which_the_machine_stood_still() -> None:
    """A client is not charged for it: it has its next piece before others had two turns each."""
    turns = held_back()
    unlucky, others = Client(0.1), [Client() for _ in range(3)]
    for each in (unlucky, *others):
        turns.add(each, 0)
    take_turn(turns)
    assert unlucky.pieces == 1

    taken = 0
    while unlucky.pieces == 1:
        take_turn(turns)
        taken += 1

    assert unlucky.used_us < 10 * TURN_US
    assert taken <= 4 * len(others)


async def test_pieces_without_calls_have_a_short_turn() -> None:
    """Only calls gain by a long turn: of what brings none a turn handles half a millisecond."""
    turns = held_back()
    piece_us = 200
    busy = [Client(piece_us / 1e6, piece_us / 1e6, brought_calls=False) for _ in range(20)]
    for each in busy:
        turns.add(each, 0)

    for _ in range(10):
        before = sum(each.pieces for each in busy)
        take_turn(turns)
        handled = sum(each.pieces for each in busy) - before
        assert 1 <= handled <= TURN_US // 4 // piece_us + 1


async def test_calls_come_before_pieces_without_calls() -> None:
    """Who makes calls does not wait for the pieces of many clients that bring none."""
    turns = held_back()
    busy = [Client(TURN_US / 1e6, TURN_US / 1e6, brought_calls=False) for _ in range(50)]
    for each in busy:
        turns.add(each, 0)
    take_turn(turns)
    caller = Client()
    turns.add(caller, 0)

    take_turn(turns)

    assert caller.pieces >= 1


class Time:
    """A clock that only moves while somebody works."""

    def __init__(self) -> None:
        self.us = 1_000_000

    def elapsed_us(self) -> int:
        return self.us

    def thread_time_ns(self) -> int:
        return self.us * 1_000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    if compiled():
        pytest.skip("compiled code has bound the clock")
    clock = Time()
    monkeypatch.setattr(turns, "elapsed_us", clock.elapsed_us)
    monkeypatch.setattr(turns, "thread_time_ns", clock.thread_time_ns)
    return clock


class Working(Client):
    """A client each of whose pieces takes so many microseconds, and leaves so many calls."""

    def __init__(self, clock: Time, held: Turns, us: int, calls: int = 1) -> None:
        super().__init__()
        self._clock, self._held, self._us, self._calls = clock, held, us, calls

    def handle_piece(self, now_us: int, *, at_once: bool = False) -> bool:
        self.pieces += 1
        self._clock.us += self._us
        self._held.later(lambda _: None, self._calls)
        return True


class Once(Working):
    """One that has said all with its first piece."""

    def handle_piece(self, now_us: int, *, at_once: bool = False) -> bool:
        super().handle_piece(now_us)
        return False


class Stepping(Working):
    """One whose call is decided in steps."""

    def handle_piece(self, now_us: int, *, at_once: bool = False) -> bool:
        self.pieces += 1
        self._clock.us += self._us
        self._held.alone(lambda: None, 40)
        return False


def asking(clock: Time, held: Turns) -> Working:
    """A client that has asked little for a while, and has used much time."""
    client = Working(clock, held, TURN_US // 20)
    client.little_pieces = _ASKS_LITTLE
    client.used_us = 100 * TURN_US
    held.add(client, clock.us)
    return client


@pytest.mark.parametrize(("us", "calls"), [(TURN_US // 2, 1), (TURN_US // 20, 20)])
async def test_who_asks_little_has_half_of_each_turn(clock: Time, us: int, calls: int) -> None:
    """Small calls do not wait for many clients that come together, whatever each has used."""
    held = held_back()
    busy = [Working(clock, held, us, calls) for _ in range(100)]
    for each in busy:
        held.add(each, clock.us)
    caller = asking(clock, held)

    for number in range(1, 21):
        before = sum(each.pieces for each in busy)
        take_turn(held)
        assert caller.pieces >= 9 * number
        assert sum(each.pieces for each in busy) > before


async def test_others_have_half_of_a_turn_while_somebody_asks_little(clock: Time) -> None:
    """Who asks little waits less for others, before the call is handled and for its answer.

    A while after such a call others have whole turns again.
    """
    held = held_back()
    busy = [Working(clock, held, TURN_US // 20, 0) for _ in range(100)]
    for each in busy:
        held.add(each, clock.us)

    def handled() -> int:
        before = sum(each.pieces for each in busy)
        take_turn(held)
        return sum(each.pieces for each in busy) - before

    whole = handled()
    caller = Once(clock, held, TURN_US // 20)
    caller.little_pieces = _ASKS_LITTLE
    held.add(caller, clock.us)
    halves = [handled() for _ in range(20)]

    assert caller.pieces == 1
    assert whole == 20
    assert halves == [10] * 20
    assert handled() == 20


async def test_a_dear_piece_beside_who_asks_little(clock: Time) -> None:
    """Pieces that may take long have every other turn, and small calls have the others."""
    held = held_back()
    large = [Working(clock, held, TURN_US) for _ in range(20)]
    for each in large:
        each.dear = True
        held.add(each, clock.us)
    caller = asking(clock, held)

    had = []
    for _ in range(20):
        pieces, others = caller.pieces, sum(each.pieces for each in large)
        take_turn(held)
        had.append((caller.pieces > pieces, sum(each.pieces for each in large) - others))

    assert had == [(False, 1), (True, 0)] * 10


@pytest.mark.parametrize(
    ("us", "calls", "late", "little"),
    [
        (100, 1, False, 3),
        (500, 8, False, 3),
        (501, 1, False, 0),
        (100, 9, False, 0),
        (100, 1, True, 0),
    ],
)
async def test_who_asks_little(clock: Time, us: int, calls: int, late: bool, little: int) -> None:
    """Pieces take little that have few calls and no long work, for which there was time."""
    held = held_back()
    client = Working(clock, held, us, calls)
    client.late = late
    held.add(client, clock.us)
    while client.pieces < 3:
        take_turn(held)

    assert client.little_pieces == (little and client.pieces)


async def test_who_leaves_long_work_does_not_ask_little(clock: Time) -> None:
    """That holds also where its pieces take little, and are handled as they come."""
    alone = Turns()
    client = Stepping(clock, alone, 100)
    client.little_pieces = _ASKS_LITTLE

    alone.add(client, clock.us)

    assert client.pieces == 1
    assert client.little_pieces == 0


@pytest.mark.parametrize("us", [TURN_US // 20, TURN_US // 4])
async def test_late_clients_are_visited_equally_often(clock: Time, us: int) -> None:
    """So are those of which more is counted, and that take longer, up to a quarter of a turn.

    One in twenty may be another's, as how long visits take on average changes.
    """
    held = held_back()
    clients = [Working(clock, held, cost, 0) for cost in [us] * 5 + [TURN_US // 40] * 5]
    for each in clients:
        each.late = True
        held.add(each, clock.us)

    for _ in range(200):
        take_turn(held)

    pieces = [each.pieces for each in clients]
    assert 20 * (max(pieces) - min(pieces)) <= max(pieces)


async def test_a_late_client_that_takes_long_has_its_share(clock: Time) -> None:
    """Who takes more than a quarter of a turn in each visit has no more time than others."""
    held = held_back()
    greedy, *others = (Working(clock, held, us, 0) for us in [TURN_US // 2] + [TURN_US // 8] * 9)
    for each in (greedy, *others):
        each.late = True
        held.add(each, clock.us)

    for _ in range(200):
        take_turn(held)

    assert all(abs(each.pieces - 4 * greedy.pieces) <= 8 for each in others)


@pytest.mark.parametrize(
    ("us", "shares", "between"),
    [(TURN_US // 10, True, 5), (TURN_US // 2, True, 1), (TURN_US // 10, False, 1)],
)
async def test_how_many_steps_come_before_pieces(
    clock: Time, us: int, shares: bool, between: int
) -> None:
    """Every other turn is one for a step; replies have more, until these took half a turn."""
    held = held_back()
    done: list[int] = []
    client = Working(clock, held, TURN_US)
    held.add(client, clock.us)

    def step() -> None:
        clock.us += us
        done.append(client.pieces)
        held.before_write(go_on)  # as a reply that is read after this turn

    def go_on() -> None:
        held.go_on(step, shares=shares)

    go_on()
    while client.pieces < 20:
        take_turn(held)

    assert [done.count(pieces) for pieces in range(20)] == [between] * 20


async def test_what_is_said_in_a_turn_is_written_before_the_next(clock: Time) -> None:
    """Also if something else that was to be said has failed; that is told to the loop."""
    held = held_back()
    said: list[str] = []
    told: list[Exception] = []
    held.loop.set_exception_handler(lambda _loop, what: told.append(what["exception"]))

    def fail() -> None:
        raise ZeroDivisionError

    def step() -> None:
        for work in (fail, lambda: said.append("this"), lambda: held.before_write(more)):
            held.before_write(work)
        assert not said

    def more() -> None:
        said.append("that")

    held.go_on(step)
    take_turn(held)

    assert said == ["this", "that"]
    assert list(map(type, told)) == [ZeroDivisionError]
    held.before_write(more)
    assert len(said) == 2
    await asyncio.sleep(0)
    assert said == ["this", "that", "that"]


@pytest.mark.parametrize("fails", [False, True])
async def test_what_is_said_in_a_step_at_once_is_written_with_it(clock: Time, fails: bool) -> None:
    """Not in the loop's next round, also if the step fails; what is said later waits for that."""
    rested = Turns()
    clock.us += 1_000_000
    said: list[str] = []

    def step() -> None:
        rested.before_write(lambda: said.append("this"))
        assert not said
        if fails:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) if fails else nullcontext():
        rested.at_once(step)
    assert said == ["this"]

    rested.before_write(lambda: said.append("that"))
    assert said == ["this"]
    await asyncio.sleep(0)
    assert said == ["this", "that"]
