"""Requests as they were recorded, in the order of their time.

What must not live here: how a kind of log is read (`logs` and its readers).
"""

from __future__ import annotations

import datetime
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import Final, NamedTuple

from ratelimit_service.model import SECOND_US, Code, Request

__all__ = [
    "LAST_US",
    "Block",
    "Moments",
    "Recorded",
    "in_order",
    "merged",
    "moment_us",
    "recorded",
]

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


Block = list[Recorded]
"""Records that were read at once. All work on records is done block by block."""


def in_order(blocks: Iterator[Block], window: int = WINDOW) -> Iterator[Block]:
    """The records by time, if none stands further back than the window; else nearly so."""
    waiting: Block = []
    ready = window * 2
    for block in blocks:
        waiting += block
        if len(waiting) < ready:
            continue  # to sort more at a time costs less
        waiting.sort(key=_by_time)
        yield waiting[:-window]
        waiting = waiting[-window:]
    waiting.sort(key=_by_time)
    yield waiting


def merged(logs: Sequence[Iterator[Block]], window: int = WINDOW) -> Iterator[Block]:
    """Several logs as one, by time; of one time, in the order of the logs."""
    if len(logs) == 1:
        return in_order(logs[0], window)
    return _merged([in_order(log, window) for log in logs])


def _merged(logs: Sequence[Iterator[Block]]) -> Iterator[Block]:
    """All up to the moment that every log has been read to; then on from there."""
    rests: list[Block] = [[] for _ in logs]
    ended = [False] * len(logs)
    while True:
        for place, log in enumerate(logs):
            while not rests[place] and not ended[place]:
                more = next(log, None)
                if more is None:
                    ended[place] = True
                else:
                    rests[place] = more
        read_to = [rest[-1].at_us for rest in rests if rest]
        if not read_to:
            return
        until_us = min(read_to)
        block: Block = []
        bisect = bisect_right
        for place, rest in enumerate(rests):
            end = bisect(rest, until_us, key=_by_time)
            block += rest[:end]
            rests[place] = rest[end:]
            if rest and not rests[place] and not ended[place]:
                bisect = bisect_left  # this log may have more of that moment, which comes first
        block.sort(key=_by_time)
        yield block


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


_SECOND: Final = len("2026-01-31T14:03:07")
_MOST_SECONDS: Final = 1_000
_DIGITS: Final = 6
"""Of a fraction of a second; what has more is read the long way."""


class Moments:
    """Reads times as logs have them: line after line is of the same second."""

    def __init__(self) -> None:
        self.seconds: dict[str, int] = {}
        """Seconds in UTC that came up, in microseconds since 1970, by their text: 19 characters."""

    def moment_us(self, text: str) -> int:
        """As the function of this name."""
        part = text[_SECOND + 1 : -1]
        if not (
            len(part) <= _DIGITS
            and part.isdigit()
            and part.isascii()
            and text[_SECOND] == "."
            and text[-1] == "Z"
        ):
            return moment_us(text)
        second = text[:_SECOND]
        known = self.seconds.get(second)
        if known is None:
            if second[-3] != ":":
                return moment_us(text)
            known = moment_us(f"{second}Z")
            if len(self.seconds) >= _MOST_SECONDS:
                self.seconds.clear()
            self.seconds[second] = known
        return known + int(part) * _SCALES[len(part)]

    def all_us(self, texts: Sequence[str]) -> list[int]:
        """The moments of several times, at once where all have one form; ValueError as for one."""
        size = len(texts[0])
        digits = size - _SECOND - 2
        parts = "".join([text[_SECOND + 1 : -1] for text in texts])
        if not (
            0 < digits <= _DIGITS
            and set(map(len, texts)) == {size}
            and parts.isdigit()
            and parts.isascii()
            and {text[_SECOND] + text[-1] for text in texts} == {".Z"}
        ):
            return list(map(self.moment_us, texts))
        scale, end = _SCALES[digits], _SECOND + 1 + digits
        seconds = {text[:_SECOND] for text in texts}
        known = {second: self.moment_us(f"{second}.0Z") for second in seconds}
        return [known[text[:_SECOND]] + int(text[_SECOND + 1 : end]) * scale for text in texts]


_SCALES: Final = (0, 100_000, 10_000, 1_000, 100, 10, 1)
"""Microseconds of the last digit of a fraction, by its number of digits."""
