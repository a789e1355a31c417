"""Requests as they were recorded, in the order of their time.

What must not live here: how a kind of log is read (`logs` and its readers).
"""

from __future__ import annotations

import datetime
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Final, Generic, NamedTuple, TypeVar

from ratelimit_service.model import MAX_EXACT, SECOND_US, Code, Request

__all__ = [
    "LAST_US",
    "Block",
    "Moments",
    "RecordedRequest",
    "RequestCache",
    "in_order",
    "merged",
    "moment_us",
]

WINDOW: Final = 10_000
"""A line may stand so many lines too late in its log: access logs are written when requests end."""

_AT_A_TIME: Final = 4
"""So many windows of records are sorted together. So most records are sorted once, and none more
than twice."""

_MOST_BYTES: Final = 1 << 27
"""The most bytes of records that wait to be sorted. If there are more, the window has half of
these."""

_ENTRY_BYTES: Final = 200
"""An entry beside its texts, about."""


class RecordedRequest:
    """A request of a log: one object for all lines that ask it, so that each is planned once."""

    __slots__ = ("compared_plan", "plan", "request", "size")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.plan: object = None
        """For the one that asks it of rules."""
        self.compared_plan: object = None
        """For the one that asks it of others at the same time."""
        self.size = _size(request)
        """About how many bytes of memory it takes."""


def _size(request: Request) -> int:
    size = len(request.domain)
    for descriptor in request.descriptors:
        for key, value in descriptor.entries:
            size += len(key) + len(value) + _ENTRY_BYTES
    return size


class Block(NamedTuple):
    """Requests that were read together. All work on them is done block by block.

    When each came (microseconds since 1970), what was asked, and what was answered, if known.
    """

    times: list[int]
    requests: list[RecordedRequest]
    codes: list[Code | None]

    def add(self, at_us: int, recorded: RecordedRequest, code: Code | None = None) -> None:
        """Adds a request."""
        self.times.append(at_us)
        self.requests.append(recorded)
        self.codes.append(code)


_K = TypeVar("_K")


class RequestCache(Generic[_K]):
    """Requests that came before, by what stands for them in a log: to read takes longer.

    Logs of one form share it, so that equal requests are one object, which is planned once.
    """

    __slots__ = ("_bytes", "requests")

    def __init__(self) -> None:
        self.requests: dict[_K, RecordedRequest] = {}
        self._bytes = 0

    def add(self, key: _K, size: int, request: Request) -> RecordedRequest:
        """Keeps a request, if its key is not too large: it has so many bytes or characters."""
        recorded = RecordedRequest(request)
        if size > _MOST_TEXT:
            return recorded
        self._bytes += recorded.size
        if len(self.requests) >= _MOST_KNOWN or self._bytes > _MOST_BYTES:
            self.requests.clear()
            self._bytes = recorded.size
        self.requests[key] = recorded
        return recorded


_MOST_KNOWN: Final = 1 << 16
_MOST_TEXT: Final = 2_048


def _none() -> Block:
    return Block([], [], [])


def _add(block: Block, more: Block) -> None:
    """Adds another block to the end of one."""
    block.times.extend(more.times)
    block.requests.extend(more.requests)
    block.codes.extend(more.codes)


def _cut(block: Block, end: int) -> Block:
    """Takes off what stands behind so many records of a block, and returns it."""
    times, requests, codes = block
    behind = Block(times[end:], requests[end:], codes[end:])
    del times[end:], requests[end:], codes[end:]
    return behind


def _by_time(block: Block) -> Block:
    """The same in order of time; what came at one time stays in its order."""
    times, requests, codes = block
    if times == sorted(times):
        return block  # as logs of ours nearly always are
    order = sorted(range(len(times)), key=times.__getitem__)
    return Block(
        [times[index] for index in order],
        [requests[index] for index in order],
        [codes[index] for index in order],
    )


def in_order(
    blocks: Iterator[Block], window: int = WINDOW, most_bytes: int = _MOST_BYTES
) -> Iterator[Block]:
    """The records by time, if none stands further back than the window; else nearly so."""
    waiting = _none()
    size = 0
    for block in blocks:
        _add(waiting, block)
        size += _bytes(block)
        if size > most_bytes or len(waiting.times) >= window * _AT_A_TIME:
            waiting = _by_time(waiting)
            end = max(0, len(waiting.times) - window)
            if size > most_bytes:
                end = max(end, _beyond(waiting.requests, most_bytes // 2))
            behind = _cut(waiting, end)
            size -= _bytes(waiting)
            yield waiting
            waiting = behind
    yield _by_time(waiting)


def _bytes(block: Block) -> int:
    size = 0
    for recorded in block.requests:
        size += recorded.size
    return size


def _beyond(requests: Sequence[RecordedRequest], most_bytes: int) -> int:
    """How many of the first requests to drop, so that the others have at most so many bytes."""
    for index in range(len(requests) - 1, -1, -1):
        most_bytes -= requests[index].size
        if most_bytes < 0:
            return index + 1
    return 0


def merged(logs: Sequence[Iterator[Block]], window: int = WINDOW) -> Iterator[Block]:
    """Several logs as one, by time; of one time, in the order of the logs."""
    if len(logs) == 1:
        return in_order(logs[0], window)
    return _merged([in_order(log, window) for log in logs])


def _merged(logs: Sequence[Iterator[Block]]) -> Iterator[Block]:
    """All up to the moment that every log has been read to; then on from there."""
    rests = [_none() for _ in logs]
    ended = [False] * len(logs)
    while True:
        for index, log in enumerate(logs):
            while not rests[index].times and not ended[index]:
                more = next(log, None)
                if more is None:
                    ended[index] = True
                else:
                    rests[index] = more
        read_to = [rest.times[-1] for rest in rests if rest.times]
        if not read_to:
            return
        until_us = min(read_to)
        block = _none()
        bisect = bisect_right
        for index, rest in enumerate(rests):
            behind = _cut(rest, bisect(rest.times, until_us))
            rests[index] = behind
            if rest.times and not behind.times and not ended[index]:
                bisect = bisect_left  # this log may have more of that moment, which comes first
            if block.times:
                _add(block, rest)
            else:
                block = rest
        yield _by_time(block)


LAST_US: Final = MAX_EXACT - 1
"""The last moment that counters know. It is in the year 2255."""

_LEAP_SECOND: Final = re.compile(r":60(?=[.,+\-zZ])")


_MOST_SHOWN: Final = 40
"""Characters of a text that is no time."""


def moment_us(text: str) -> int:
    """A time of RFC 3339, in microseconds since 1970. Raises ValueError if it is none, or earlier.

    A leap second counts as the one before it, as Unix time has it.
    """
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        mended, leaps = _LEAP_SECOND.subn(":59", text, count=1)
        if not leaps:
            raise ValueError(f"{text[:_MOST_SHOWN]!r} is no time") from error
        return moment_us(mended)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no offset from UTC")
    at_us = round(moment.timestamp() * SECOND_US)  # a double is exact enough until the year 2100
    if not 0 <= at_us <= LAST_US:
        raise ValueError(f"{text!r} is not between 1970 and 2255")
    return at_us


_SECOND: Final = len("2026-01-31T14:03:07")
_MOST_SECONDS: Final = 1_000
_DIGITS: Final = 6
"""Of a fraction of a second; what has more is read by the slow path."""


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
        """The moments of several times; those of one form in one second at once.

        Raises ValueError as for one.
        """
        size = len(texts[0])
        digits = size - _SECOND - 2
        if not 0 < digits <= _DIGITS or set(map(len, texts)) != {size}:
            return list(map(self.moment_us, texts))
        ordered = sorted(texts)
        moments: list[int] = []
        start = 0
        while start < len(ordered):
            # All between two texts in order begin as both do.
            second = _second(ordered[start])
            end = bisect_right(ordered, second, start, key=_second)
            moments += self._in_second(second, ordered[start:end], digits)
            start = end
        if ordered == texts:
            return moments
        known = dict(zip(ordered, moments, strict=True))
        return [known[text] for text in texts]

    def _in_second(self, second: str, texts: Sequence[str], digits: int) -> list[int]:
        """The moments of times that all begin with a second and its point, if that is one."""
        parts = "".join(texts).replace(second, "")
        fractions = parts.split("Z")
        if not (
            len(texts) >= _FEW
            and (second[-4], second[-1]) == (":", ".")
            and len(parts) == len(texts) * (digits + 1)
            and parts[digits :: digits + 1] == "Z" * len(texts)
            and parts.isascii()
            and "".join(fractions).isdigit()
        ):
            return list(map(self.moment_us, texts))
        at_us, scale = self.moment_us(f"{second}0Z"), _SCALES[digits]
        del fractions[-1]  # behind the last Z
        return [at_us + int(part) * scale for part in fractions]


_SCALES: Final = (0, 100_000, 10_000, 1_000, 100, 10, 1)
"""Microseconds of the last digit of a fraction, by its number of digits."""

_second: Final = itemgetter(slice(_SECOND + 1))
"""What a time begins with, up to the point behind its second."""

_FEW: Final = 4
"""For fewer times of a second it does not pay to look for what they have in common."""
