"""Turns that a test takes by itself, where the event loop would."""

from __future__ import annotations

from time import thread_time_ns

from ratelimit_service.eventloop.turns import Turns

__all__ = ["take_turn"]


def take_turn(turns: Turns) -> None:
    """Takes the next turn, as if the loop had done nothing else since it was asked for.

    A turn is left out for a round if the loop had much to do. What a test does in between is not
    the loop's work, however slow the machine is.
    """
    turns._asked_ns = thread_time_ns()
    turns._turn()
