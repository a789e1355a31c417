"""A server's clock and its distance, as far as this process knows them from its replies."""

from __future__ import annotations

from ratelimit_service.eventloop.clock import Clock, elapsed_us, now_us
from ratelimit_service.stores import NEVER

__all__ = ["ServerClock"]


class ServerClock:
    """The clock of one server; or another one that was given, and counts instead."""

    __slots__ = ("ahead_us", "given", "way_us")

    def __init__(self, given: Clock | None) -> None:
        self.given = given
        self.ahead_us: int | None = None
        """How far the server's clock is ahead of `elapsed_us`, at least; None if not known."""
        self.way_us = 0
        """The least that a reply has taken on this connection, 0 if not known: how long the way
        there and back is. What waits for a busy server, or for this process, is not in it."""

    def forget(self) -> None:
        """The next replies are those of another connection, and perhaps of another server."""
        self.ahead_us = None
        self.way_us = 0

    def took(self, us: int) -> None:
        """Learns how long a reply took."""
        if us < self.way_us or not self.way_us:
            self.way_us = us

    def now_us(self) -> int:
        """The server's time."""
        if self.given:
            return self.given()
        return now_us() if self.ahead_us is None else elapsed_us() + self.ahead_us

    def wall_us(self) -> int:
        """The time by which calendars are looked up, roughly the server's."""
        return self.given() if self.given else now_us()

    def elapsed_at(self, at_us: int) -> int:
        """The moment by `elapsed_us` at which the clock will show `at_us`.

        NEVER if the time of another clock counts.
        """
        return NEVER if self.given else elapsed_us() + at_us - self.now_us()

    def not_after(self, deadline_us: int) -> int:
        """A deadline by the server's clock, 0 for none."""
        if deadline_us == NEVER or self.ahead_us is None or self.given:
            return 0
        return deadline_us + self.ahead_us

    def took_us(self, left_us: int, at_us: int) -> int:
        """How long a call was with the server that left then, until it ran at `at_us`."""
        return at_us - (self.ahead_us or 0) - left_us

    def learn(self, at_us: int, sent_us: int, now_us: int) -> None:
        """Learns how the clocks stand to each other from a call that ran at `at_us`.

        The call ran after `sent_us` and before now. If it ran just now, the server's clock is ahead
        by `at_us` less now; if it ran earlier, by more. So this difference is a lower bound, and
        the largest bound is kept. If the clock was less far ahead even at `sent_us`, it was set
        back, and the new bound replaces the old one.
        """
        self.took(now_us - sent_us)
        ahead_us = at_us - now_us
        if self.ahead_us is None or ahead_us > self.ahead_us or at_us - sent_us < self.ahead_us:
            self.ahead_us = ahead_us
