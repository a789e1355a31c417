"""Whose turn it is where the machine itself stands still."""

from __future__ import annotations

import time

from ratelimit_service.turns import TURN_US
from tests.transport.ends import held_back
from tests.transport.taken_turns import take_turn


class Client:
    """Handles pieces without end, the first of which may take long."""

    dear = False

    def __init__(self, seconds: float = 0.0) -> None:
        self.used_us = 0
        self.pieces = 0
        self._seconds = seconds

    def handle_piece(self, now_us: int) -> bool:
        self.pieces += 1
        until, self._seconds = time.perf_counter() + self._seconds, 0.0
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
