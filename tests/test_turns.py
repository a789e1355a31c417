"""Whose turn it is, and for how long."""

from __future__ import annotations

import time

from ratelimit_service.turns import TURN_US
from tests.transport.ends import held_back
from tests.transport.taken_turns import take_turn


class Client:
    """Handles pieces without end, the first of which may take long."""

    dear = False

    def __init__(
        self, seconds: float = 0.0, later: float = 0.0, *, brought_calls: bool = True
    ) -> None:
        self.used_us = 0
        self.pieces = 0
        self.brought_calls = brought_calls
        self._seconds, self._later = seconds, later

    def handle_piece(self, now_us: int) -> bool:
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
