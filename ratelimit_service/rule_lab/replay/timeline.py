"""How many requests came when, in a bounded number of steps of time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, NamedTuple

from ratelimit_service.model import SECOND_US

__all__ = ["Span", "Timeline"]

MOST_SPANS: Final = 240
"""With more spans than this, neighbours are put together."""


_STEPS: Final = (5, 2, 3, 2, 5, 2, 3, 2, 3, 4, 2)
"""How often each width goes into the next: 5, 10, 30 seconds, 1, 5, 10, 30 minutes, 1, 3, 12 hours,
a day. From there on it is doubled."""


class Span(NamedTuple):
    """What came from a moment on, in microseconds since 1970, for the timeline's width."""

    start_us: int
    requests: int
    denied: int


class Timeline:
    """Counts what comes in order of time: by span, and in the busiest second.

    Spans are a second wide at first, and become wider whenever there are too many of them.
    """

    __slots__ = (
        "_busiest",
        "_busiest_us",
        "_denied",
        "_ends_us",
        "_next_us",
        "_requests",
        "_second_began",
        "_second_ends_us",
        "_spans",
        "_widened",
        "width_us",
    )

    def __init__(self) -> None:
        self.width_us = SECOND_US
        self._widened = 0
        self._spans: dict[int, tuple[int, int]] = {}
        """What was asked and denied, by the number of the span."""
        self._requests = self._denied = 0
        """Of the span that has begun."""
        self._second_began = 0
        """What `_requests` was when the second began; below 0 if the span began in the second."""
        self._ends_us = self._second_ends_us = self._next_us = 0
        """When the span and the second end, and the first of the two."""
        self._busiest = self._busiest_us = 0

    def add(self, at_us: int, denied: int = 0) -> None:
        """Adds a request at a moment that is not before the last one; `denied` is 0 or 1."""
        if at_us >= self._next_us:
            self._settle(at_us)
        self._requests += 1
        self._denied += denied

    def add_all(self, times: Sequence[int], denied: Sequence[int]) -> None:
        """As `add` of many; `denied` are the times of those that were denied, in their order."""
        index = before = 0
        while index < len(times):
            if times[index] >= self._next_us:
                self._settle(times[index])
            end = bisect_left(times, self._next_us, index)
            denied_to = bisect_left(denied, self._next_us, before)
            self._requests += end - index
            self._denied += denied_to - before
            index, before = end, denied_to

    def busiest(self) -> tuple[int, int]:
        """The most that came in one second of the clock, and when that was."""
        busy = self._requests - self._second_began
        if busy > self._busiest:
            return busy, self._second_ends_us - SECOND_US
        return self._busiest, self._busiest_us

    def spans(self, most: int) -> list[Span]:
        """At most so many spans of one width from the first request to the last, all of them."""
        self._settle_span()
        if not self._spans:
            return []
        while max(self._spans) - min(self._spans) >= most:
            self._widen()
        self._ends_us = self._next_us = 0  # the span goes on if more comes
        return [
            Span(number * self.width_us, *self._spans.get(number, (0, 0)))
            for number in range(min(self._spans), max(self._spans) + 1)
        ]

    def _settle(self, at_us: int) -> None:
        if at_us >= self._second_ends_us:
            self._busiest, self._busiest_us = self.busiest()
            self._second_began = self._requests
            self._second_ends_us = (at_us // SECOND_US + 1) * SECOND_US
        if at_us >= self._ends_us:
            self._settle_span()
            self._ends_us = (at_us // self.width_us + 1) * self.width_us
        self._next_us = min(self._second_ends_us, self._ends_us)

    def _settle_span(self) -> None:
        if self._requests:
            number = self._ends_us // self.width_us - 1
            requests, denied = self._spans.get(number, (0, 0))
            self._spans[number] = requests + self._requests, denied + self._denied
            self._second_began -= self._requests
            self._requests = self._denied = 0
            while len(self._spans) > MOST_SPANS:
                self._widen()

    def _widen(self) -> None:
        times = _STEPS[self._widened] if self._widened < len(_STEPS) else 2
        self._widened += 1
        self.width_us *= times
        wider: dict[int, tuple[int, int]] = {}
        for number, (requests, denied) in self._spans.items():
            before = wider.get(number // times, (0, 0))
            wider[number // times] = before[0] + requests, before[1] + denied
        self._spans = wider
