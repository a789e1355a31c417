"""How long to wait before something is tried again."""

from __future__ import annotations

import random

__all__ = ["Backoff"]


class Backoff:
    """Pauses that double up to the longest; of each a random part is waited, half of it at least.

    So those that failed at one moment do not all come back at one.
    """

    def __init__(self, first_seconds: float, longest_seconds: float) -> None:
        self._first = self._next = first_seconds
        self._longest = longest_seconds

    def reset(self) -> None:
        """It went well: the next pause is the first again."""
        self._next = self._first

    def next_seconds(self) -> float:
        """How long to wait after one more failure."""
        pause, self._next = self._next, min(2 * self._next, self._longest)
        return pause * random.uniform(0.5, 1.0)  # noqa: S311 -- no secret
