"""What is done with calls that there is no time for: who is still counted, and who is not.

Calls wait in order, so under a lasting overload each of them waits longer than the one before.
If all were counted, all would be answered too late. So a call that has waited for a good part
of its caller's patience is not counted. It is refused: its caller is told so at once, which costs
little. Only who is known to be over is denied. The calls behind them are fresh again, and counted
in time. This is the idea of CoDel (RFC 8289): what matters is how long one waits, not how many do.
And as there, it must last: calls that come together and can all be answered in time are all
counted.
"""

from __future__ import annotations

from typing import Final

from ratelimit_service.eventloop.clock import elapsed_us
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats

__all__ = ["FRESH_US", "Allowance", "Backlog", "Overload", "too_slow"]

FRESH_US: Final = 500
"""A call that has waited for less is counted, unless its client's calls were late just before."""

_LATE: Final = 20
"""The part of a caller's patience, in percent, after which a call is late. Once some have been late
for as long as callers wait, late calls are not counted."""

_NEWEST: Final = 5
"""Calls are counted that have waited for no longer than this part, however late others are."""

_TIMELY: Final = 65
"""Calls that have waited for no longer than this part can be answered in time, if they are chosen
to be counted and wait for no store."""

_SAFELY: Final = 85
"""If calls came before the timely part as well, only so much of that part is counted, in percent:
until its calls are handled some time passes."""

_IN_STORE: Final = 50
"""The part of a caller's patience that its call may wait for us, and the oldest in the store. In a
burst calls are counted for so long."""

_AIM: Final = 75
"""Late clients should be visited about once in this part of their callers' patience. Then all of
their callers hear something in time."""

_LEAST_PATIENCE_US: Final = 10_000
"""Who waits for less, or not at all, is visited as often as who waits for so long: with each visit
more less is counted of all clients."""

_PACE: Final = 30
"""The allowance changes by at most so much, in percent, in the time that callers wait, if visits
are far from that aim."""

_SELDOM: Final = 8
"""A part of a visit that is less than a call is counted once in so many visits, in case that visits
never come in time for all."""

_LEAST_ALLOWED: Final = 256
_MOST_ALLOWED: Final = 65_536
"""Bounds of the allowance, in bytes: about a call, and what is read at once."""

_RESTED: Final = 30
"""So long, in percent of its callers' patience, a client rests at most before it is read from
again. One that is late rests longer, but less than until what comes meanwhile is too old."""

_LEEWAY: Final = 10
"""A late client is read from before its calls are too old: so much earlier, in percent of its
callers' patience."""

_CALM: Final = 40
_CALM_VISITS: Final = 8
"""A client is read from by the loop again once so many reads in a row came within this part of its
callers' patience, and no call was late."""

_WORTH_BYTES: Final = 2_048
_WORTH_LATE_BYTES: Final = 24_576
"""With so many bytes, some six calls or 75 of which most are refused, a visit costs little for
each."""

_EVER_US: Final = 1 << 60
"""Longer than anything has been running."""

_GONE: Final = 85
"""The part of a caller's patience, in percent, after which a refusal comes too late as well."""

_LOOKS_EACH: Final = 4
_MOST_LOOKS: Final = 8_000
"""For each denial so many late calls are looked at, whether their callers are known to be over; as
many may be saved up."""

_LONG_US: Final = 1_000_000
"""Health tells of calls that wait for longer than this."""

_CALM_US: Final = 5_000_000
"""A worker is not overloaded any more when all calls have been counted for so long."""


def too_slow(us: int, timeout_us: int) -> bool:
    """Whether a call that has waited so long for us and for the store together would be late."""
    return 100 * us > timeout_us * _IN_STORE


class Allowance:
    """How much is counted at each visit of a client that is late: the same for all clients.

    A visit costs about as much as counting some calls. So the more is counted, the longer it takes
    until a client is visited again. If that is too long for its callers, less is counted, and else
    more. Who asks for more than others gets no more counted than they.
    """

    __slots__ = ("_bytes", "_changed_us")

    def __init__(self) -> None:
        self._bytes = float(_MOST_ALLOWED)
        self._changed_us = -_EVER_US

    def visited(self, now_us: int, since_us: int, patience_us: int) -> int:
        """How many bytes may be counted now of a late client, who was visited `since_us` ago."""
        patience_us = max(patience_us, _LEAST_PATIENCE_US)
        passed = min(1.0, (now_us - self._changed_us) / patience_us)
        self._changed_us = now_us
        ahead = max(-1.0, 1 - 100 * since_us / (patience_us * _AIM))
        allowed = self._bytes * (1 + passed * ahead * _PACE / 100)
        self._bytes = max(_LEAST_ALLOWED, min(_MOST_ALLOWED, allowed))
        return int(self._bytes)


class Backlog:
    """How long one connection's callers wait; each has its own, so that others do not suffer."""

    __slots__ = (
        "_allowance",
        "_earned_bytes",
        "_late_rest_us",
        "calm_visits",
        "late_since_us",
        "late_us",
        "timeout_us",
        "waited_us",
    )

    def __init__(self, allowance: Allowance | None = None) -> None:
        """All clients share the `allowance`."""
        self._allowance = allowance or Allowance()
        self._earned_bytes = 0
        """How many of the late bytes may be counted next."""
        self._late_rest_us = 0
        """How long the client may be left unread while its calls are late."""
        self.calm_visits = 0
        """How many reads in a row have found calls in time."""
        self.waited_us = 0
        """How long the last calls had waited when they were looked at."""
        self.timeout_us = _EVER_US
        """How long the callers of the last calls wait, of those that say so."""
        self.late_since_us = self.late_us = -_EVER_US
        """Since when calls have been late now and again, and when one was late last."""

    def is_late(self, now_us: int, waited_us: int, timeout_us: int) -> bool:
        """Whether the next calls are late: they have waited so long since their bytes were read.

        Their callers wait `timeout_us` in all.
        """
        self.timeout_us, self.waited_us = timeout_us, waited_us
        percent = 100 * waited_us
        if percent <= timeout_us * _LATE:
            return False
        if now_us - self.late_us > timeout_us:
            self.late_since_us = now_us
        self.late_us = now_us
        return now_us - self.late_since_us >= timeout_us or percent > timeout_us * _IN_STORE

    def was_late(self, now_us: int) -> bool:
        """Whether a call was late a short time ago: no longer than callers wait."""
        patience_us = self.timeout_us
        return now_us - self.late_us <= patience_us

    def caught_up_us(self, now_us: int) -> int:
        """Calls that came before this time are given up with a late one; newer ones are counted.

        The later the oldest call is, the fewer of the newest are counted. So under a lasting
        overload just as many are as leave time to refuse the others before their callers go.
        """
        patience_us = self.timeout_us
        late_us = patience_us * _LATE // 100
        newest_us = late_us * late_us // max(self.waited_us, late_us, 1)
        return now_us - max(newest_us, patience_us * _NEWEST // 100)

    def rest_us(self, since_us: int, size: int, *, late: bool) -> int:
        """How long to leave a client unread that has sent so many bytes in the last `since_us`.

        A visit costs about as much as counting a call does. So if it has found few calls, the next
        one comes later. But no call may wait for too long. With `late` calls have been refused.
        """
        if size >= (_WORTH_LATE_BYTES if late else _WORTH_BYTES):
            return 0
        patience_us = self.timeout_us
        most_us = patience_us * _RESTED // 100
        return min(since_us, max(most_us, self._late_rest_us) if late else most_us)

    def is_soon(self, waited_us: int) -> bool:
        """Whether callers who have waited for so long will still be there for some milliseconds."""
        patience_us = self.timeout_us
        return 100 * waited_us <= patience_us * _GONE

    def is_calm(self, since_us: int, *, late: bool) -> bool:
        """Whether calls have been in time for a while, as those of the last `since_us` show."""
        patience_us = self.timeout_us
        in_time = not late and 100 * since_us <= patience_us * _CALM
        self.calm_visits = self.calm_visits + 1 if in_time else 0
        return self.calm_visits >= _CALM_VISITS

    def chosen(
        self, now_us: int, since_us: int, size: int, most: int, store_us: int | None
    ) -> tuple[bool, int]:
        """Which of so many bytes shall be counted that have come in the last `since_us`.

        Either all, at most `most`, if all can be answered in time, or so many of the newest. Calls
        wait in the store for `store_us` now; None if nobody waits for a store. Once a client is
        read from so seldom that its calls are late, as many are counted as it is allowed. What it
        is allowed is saved up until it is worth a batch.
        """
        patience_us = self.timeout_us
        late_us = patience_us * _LATE // 100
        longest_us = timely_us = patience_us * _TIMELY // 100
        if store_us is not None:
            timely_us = max(FRESH_US, patience_us * _IN_STORE // 100 - store_us)
        fresh = since_us <= min(late_us, timely_us)
        allowed = size if fresh else self._allowance.visited(now_us, since_us, patience_us)
        if size <= min(most, allowed):
            longest_us = timely_us  # so that all may be counted again, as there is time for it
        self._late_rest_us = longest_us - patience_us * _LEEWAY // 100
        if fresh:
            return False, size
        earned = self._earned_bytes + min(allowed, size)
        whole = since_us <= timely_us and size <= most
        # What is counted of many calls takes long by itself, so less of them is still in time.
        newest_us = timely_us * _SAFELY // 100 if size <= most else min(late_us, timely_us)
        newest = size if whole else size * newest_us // max(since_us, newest_us)
        needed = size if size <= most else 0  # to count a part of few calls costs as much as all
        if not whole and newest < _LEAST_ALLOWED:
            needed *= _SELDOM
        if earned < needed:
            self._earned_bytes = earned
            return False, 0
        newest = min(newest, earned)
        self._earned_bytes = min(earned - max(newest, needed), allowed)
        return whole, newest


class Overload:
    """Whether this process has more calls than time: in health as `overloaded`, and in metrics."""

    def __init__(self, stats: Stats, health: Health) -> None:
        self._stats = stats
        self._health = health
        self._noted_us = 0
        self._looks = self._denied = 0
        """How many late calls may be looked at whether their callers are known to be over, and how
        many requests had been denied when this was last reckoned."""

    def looks(self) -> int:
        """How many late calls may be looked at whether their callers are known to be over.

        Where nobody is over, nobody is looked at: to look costs a part of what counting does. So
        each denial lets the next few be looked at.
        """
        denied = self._stats.decisions["over_limit"]
        if denied != self._denied:
            newly = denied - self._denied if denied > self._denied else denied
            self._looks = min(self._looks + _LOOKS_EACH * newly, _MOST_LOOKS)
            self._denied = denied
        return self._looks

    def looked(self, calls: int) -> None:
        """Notes that so many late calls were looked at."""
        self._looks -= calls

    def turned_away(self, denied: int, refused: int) -> None:
        """Notes that there was no time to count calls: what became of so many of them."""
        if denied:
            self._stats.overloaded["denied"] += denied
        if refused:
            self._stats.overloaded["refused"] += refused
        self._noted_us = elapsed_us()
        self._health.degrade(
            "overloaded",
            "there are more calls than this process has time for: those that waited too long are "
            "not counted but refused (RESOURCE_EXHAUSTED), or denied if they are known to be over; "
            "add cores (--workers) or instances",
        )

    def waited(self, oldest_us: int) -> None:
        """Says in health if the oldest call that is to be counted has waited for long."""
        if oldest_us > _LONG_US:
            self._health.degrade(
                "waiting",
                f"calls wait to be counted for more than {oldest_us // 1_000_000} s: more come, "
                "from callers who name no deadline, than the store and this process have time for; "
                "add cores (--workers) or instances",
            )
        else:
            self._health.recover("waiting")

    def look(self) -> None:
        """Notices the end of an overload; to be called about once a second."""
        if self._noted_us and elapsed_us() - self._noted_us > _CALM_US:
            self._noted_us = 0
            self._health.recover("overloaded")
