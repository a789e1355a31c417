"""Requests as they were recorded, in the order of their time.

What must not live here: how a kind of log is read (`logs` and its readers).
"""

from __future__ import annotations

import datetime
import heapq
import re
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, islice
from operator import attrgetter
from typing import Final, NamedTuple

from ratelimit_service.model import SECOND_US, Code, Request

__all__ = ["LAST_US", "Moments", "Recorded", "in_order", "merged", "moment_us", "recorded"]

WINDOW: Final = 10_000
"""A line may stand so many lines too late in its log: access logs are written when requests end."""


class Recorded(NamedTuple):
    """A request, when it came (microseconds since 1970), and what it was answered, if known."""

    at_us: int
    request: Request
    code: Code | None = None


recorded: Final = partial(tuple.__new__, Recorded)
"""A record from a tuple of its fields, at half the price of a call with three arguments."""

_by_time: Final = attrgetter("at_us")


def in_order(records: Iterator[Recorded], window: int = WINDOW) -> Iterator[Recorded]:
    """The records by time, if none stands further back than the window; else nearly so."""
    return chain.from_iterable(_sorted(records, window))


def _sorted(records: Iterator[Recorded], window: int) -> Iterator[Sequence[Recorded]]:
    waiting: list[Recorded] = []
    while True:
        more = list(islice(records, window))
        waiting += more
        waiting.sort(key=_by_time)
        if len(more) < window:
            yield waiting
            return
        yield waiting[:-window]
        waiting = waiting[-window:]


def merged(logs: Sequence[Iterator[Recorded]]) -> Iterator[Recorded]:
    """Several logs as one, by time; of one time, in the order of the logs."""
    if len(logs) == 1:
        return in_order(logs[0])
    return heapq.merge(*map(in_order, logs), key=_by_time)


LAST_US: Final = 253_402_300_800 * SECOND_US - 1
"""The last moment that has a date: the year 9999 ends."""

_LEAP_SECOND: Final = re.compile(r":60(?=[.,+\-zZ])")


def moment_us(text: str) -> int:
    """A time of RFC 3339, in microseconds since 1970. Raises ValueError if it is none, or earlier.

    A leap second counts as the one before it, as Unix time has it.
    """
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        mended, leaps = _LEAP_SECOND.subn(":59", text, count=1)
        if not leaps:
            raise
        moment = datetime.datetime.fromisoformat(mended)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no offset from UTC")
    at_us = round(moment.timestamp() * SECOND_US)  # a double is exact enough until the year 2100
    if not 0 <= at_us <= LAST_US:
        raise ValueError(f"{text!r} is not between 1970 and 9999")
    return at_us


_SECOND_END: Final = len("2026-01-31T14:03:07")
_MOST_SECONDS: Final = 1_000


class Moments:
    """Reads times as logs have them: line after line is of the same second."""

    def __init__(self) -> None:
        self._seconds: dict[str, int] = {}

    def moment_us(self, text: str) -> int:
        """As the function of this name."""
        part = text[_SECOND_END + 1 : -1]
        if len(part) != 6 or not (part.isascii() and part.isdigit() and text[-1] == "Z"):
            return moment_us(text)
        second = text[: _SECOND_END + 1]
        known = self._seconds.get(second)
        if known is None:
            known = moment_us(f"{second}000000Z")
            if len(self._seconds) >= _MOST_SECONDS:
                self._seconds.clear()
            self._seconds[second] = known
        return known + int(part)
