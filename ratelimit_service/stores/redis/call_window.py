"""How many script calls to one server may be under way, and how long they take.

What must not live here: what waits to be sent (`batches`).
"""

from __future__ import annotations

from typing import Final

from ratelimit_service.stores import PRIORITIES
from ratelimit_service.stores.redis.server_clock import ServerClock

__all__ = ["NO_PRIORITY", "CallWindow"]

_IN_FLIGHT: Final = 2
"""Script calls that a near server has at a time; meanwhile the next one fills up. Those of larger
priorities do not count: nothing of a smaller priority waits for them."""

_CALL_US: Final = 1_000
"""What a server takes for a full call, about. So many more are under way as fit on the way to the
server and back: one for each such time of the round trip."""

_MAX_IN_FLIGHT: Final = 8
"""A near server has so many if the server waits for this process, and not the other way round."""

_FIRST_FULL: Final = 32
"""So many requests are taken to fit into a call before one was full."""

_LOST_US: Final = 2_000_000
"""A call that has no reply after this time will have none: its connection is closed sooner."""

_FORGOTTEN_US: Final = 5_000
"""After each such time in which nothing was under way, calls are taken to need half as long. What
would have too little time left is not sent, so nothing else would show that they need less again.
"""

NO_PRIORITY: Final = -1
"""Of a call that is not the last one of its write."""


class CallWindow:
    """The calls to one server that are under way."""

    __slots__ = (
        "_clock",
        "_idle_us",
        "_limit",
        "_sent_us",
        "_took_us",
        "by_priority",
        "full",
        "under_way",
    )

    def __init__(self, clock: ServerClock) -> None:
        """`clock` knows how far away the server is."""
        self._clock = clock
        self.by_priority = [0] * PRIORITIES
        """How many writes of calls have no reply yet, by the smallest priority in them."""
        self.under_way = 0
        """How many that are."""
        self._limit = _IN_FLIGHT
        """So many full calls may be with the server. While they wait for this process to look, and
        not for the server, one is added at each reply."""
        self.full = _FIRST_FULL
        """How many requests went out together last, when there were more than fitted."""
        self._took_us = 0
        """How long calls took lately, from when they were made until their reply was handed on."""
        self._sent_us = 0
        """When the last call was sent."""
        self._idle_us = 0
        """Since when nothing is under way. `_took_us` is halved for each `_FORGOTTEN_US` of that,
        and this moves on by as much, so that no time counts twice."""

    @property
    def reply_us(self) -> int:
        """How long the next call takes: as the last ones, and no less than the way alone.

        What has less time left is not sent: it would be counted in vain, and keep others waiting.
        """
        return max(self._took_us, self._clock.way_us)

    @property
    def has_room(self) -> bool:
        """Whether one more call may be under way if it is a full one."""
        return self.under_way < self._limit + self._on_the_way

    @property
    def _on_the_way(self) -> int:
        """How many calls may be on the way there or back, beside those that the server has."""
        return self._clock.way_us // _CALL_US

    def sent(self, priority: int, now_us: int) -> None:
        """Notes that calls are sent; `priority` is the smallest in them."""
        self.by_priority[priority] += 1
        self.under_way += 1
        self._sent_us = now_us

    def landed(self, priority: int, now_us: int) -> None:
        """Notes that the last call of a write has its reply, or will have none."""
        if priority == NO_PRIORITY or not self.by_priority[priority]:
            return
        self.by_priority[priority] -= 1
        self.under_way -= 1
        if not self.under_way:
            self._idle_us = now_us

    def forget_lost(self, now_us: int) -> None:
        """Takes calls that should long have a reply for lost: after a fault nobody else would."""
        if self.under_way and now_us - self._sent_us > _LOST_US:
            self.by_priority = [0] * PRIORITIES
            self.under_way = 0

    def forget_times(self, now_us: int) -> None:
        """Forgets how long calls took when nothing was under way for a while."""
        times = (now_us - self._idle_us) // _FORGOTTEN_US
        if times and not self.under_way:
            self._took_us >>= min(times, 62)
            self._idle_us += times * _FORGOTTEN_US

    def learn(self, took_us: int) -> None:
        """Notes how long a reply took; a hang is forgotten after some replies."""
        self._took_us += (took_us - self._took_us) // 4

    def shrink(self) -> None:
        """The server waits for nobody: fewer calls may be under way."""
        self._limit = max(_IN_FLIGHT, self._limit - 1)

    @property
    def can_grow(self) -> bool:
        """Whether more calls may ever be under way than now."""
        return self._limit < _MAX_IN_FLIGHT

    def grow(self) -> None:
        """The server waits for this process: one more call may be under way."""
        self._limit += 1

    def queued_us(self, waiting: int) -> int:
        """How long a request waits to be sent before which so many wait."""
        limit = self._limit + self._on_the_way
        return self.reply_us * waiting // (self.full * limit)

    def below(self) -> int:
        """Requests of priorities below this number may be sent now, if they fill no call."""
        limit = _IN_FLIGHT + self._on_the_way
        if self.under_way < limit:
            return PRIORITIES
        below, count = 0, self.by_priority[0]
        while count < limit:
            below += 1
            count += self.by_priority[below]
        return below
