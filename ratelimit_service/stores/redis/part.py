"""What a shard is handed: requests that go to it together, and who hears of their outcomes.

What must not live here: connections, and what a request comes to that lies in several shards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from ratelimit_service.model import Hit
from ratelimit_service.stores import NEVER, Outcomes, Wanted, always

__all__ = ["Errand", "Part"]


class Part(Protocol):
    """What goes to one shard: requests, or those of their hits that lie there."""

    sent: int
    """How many requests have been sent, or were not wanted any more."""

    @property
    def requests(self) -> Sequence[Sequence[Hit]]:
        """What is to be charged, each on its own."""

    @property
    def deadline_us(self) -> int:
        """When nobody waits any more, by `elapsed_us`."""

    @property
    def over(self) -> bool:
        """Whether nobody waits for any of it."""

    @property
    def places(self) -> Sequence[int]:
        """By what number `wanted` knows each request."""

    @property
    def wanted(self) -> Wanted:
        """Whether somebody waits for a request, asked just before it is sent."""

    def dropped(self, places: Sequence[int]) -> None:
        """These requests were not sent, since they are not wanted."""

    def answered(self, places: Sequence[int], found: Iterator[Outcomes], at_us: int) -> None:
        """The next outcomes found are these requests'; `at_us` is the server's time."""

    def failed(self, places: Sequence[int], reason: str) -> None:
        """These requests get no answer."""


class Errand:
    """A part that no caller waits for: what is given back, or told to a server that was away."""

    __slots__ = ("_told", "deadline_us", "over", "places", "requests", "sent", "wanted")

    def __init__(
        self,
        requests: Sequence[Sequence[Hit]],
        told: Callable[[Outcomes | None], None] = lambda _: None,
        deadline_us: int = NEVER,
    ) -> None:
        """`told` gets the outcomes of each request, None where there are none."""
        self.requests = requests
        self.places = range(len(requests))
        self.wanted: Wanted = always
        self.deadline_us = deadline_us
        self.over = False
        self.sent = 0
        self._told = told

    def dropped(self, places: Sequence[int]) -> None:
        """Never: it is always wanted."""

    def answered(self, places: Sequence[int], found: Iterator[Outcomes], _at_us: int) -> None:
        """Tells the outcomes."""
        for _ in places:
            self._told(next(found))

    def failed(self, places: Sequence[int], _reason: str) -> None:
        """Tells that there are none."""
        for _ in places:
            self._told(None)
