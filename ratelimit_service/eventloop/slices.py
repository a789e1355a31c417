"""Long work beside requests: a little at a time, so that none of them waits for long.

What is done for callers of HTTP stands in line: however many ask for long pages at once, the loop
does a slice for one of them in each of its rounds. And it rests for as long as it has worked, since
processes that decide may have to share a core with this one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Generator, Iterable
from contextvars import ContextVar
from typing import Final, TypeVar

from ratelimit_service.eventloop.clock import elapsed_us

__all__ = ["SLICE", "at_once", "pause", "slowly", "stand_in_line", "stepwise"]

SLICE = 50
"""Rules that are looked at, written out or freed at once: a millisecond's worth or less."""

_WORK_US: Final = 2_000
"""After so much work for those in line none of them goes on for as long."""

_T = TypeVar("_T")


class _Line:
    """Those who do long work: one of them goes on in each round of the event loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.rested_us = 0
        """How long nobody could go on, in all."""
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._taken = False
        """Whether somebody goes on in the next round, or all rest."""
        self._began_us = self._worked_us = 0
        """When the one who goes on in this round began, 0 if nobody does; for how long they have
        worked since the last rest."""

    async def pause(self) -> None:
        """Waits for the next round, or until it is one's turn."""
        if self._began_us:
            self._worked_us += elapsed_us() - self._began_us
            self._began_us = 0
        tired = self._worked_us >= _WORK_US
        if self._taken or tired:
            waiter = self.loop.create_future()
            self._waiting.append(waiter)
            if not self._taken:
                self._rest()
            await waiter
        else:
            self._taken = True
            self.loop.call_soon(self._next_round)
            await asyncio.sleep(0)
        self._began_us = elapsed_us()
        self.loop.call_soon(self._end_turn)

    def _rest(self) -> None:
        self._taken = True
        rest_us, self._worked_us = self._worked_us, 0
        self.rested_us += rest_us
        self.loop.call_later(rest_us / 1_000_000, self._next_round)

    def _end_turn(self) -> None:
        """Whoever went on has paused or ended: the time from now on is not theirs."""
        self._began_us = 0

    def _next_round(self) -> None:
        self._taken = False
        if self._waiting and self._worked_us >= _WORK_US:
            self._rest()
        while self._waiting and not self._taken:
            first = self._waiting.popleft()
            if not first.done():  # it is, if its caller has gone
                first.set_result(None)
                self._taken = True
                self.loop.call_soon(self._next_round)


_LINE: Final[list[_Line]] = []
_IN_LINE: Final = ContextVar("in_line", default=False)


def stand_in_line() -> None:
    """From now on long work of this task stands in line with that of others who have said so."""
    _IN_LINE.set(True)


async def pause() -> None:
    """Lets requests, and others in line, come first."""
    if not _IN_LINE.get():
        await asyncio.sleep(0)
        return
    if not _LINE or _LINE[0].loop is not asyncio.get_running_loop():
        _LINE[:] = [_Line()]
    await _LINE[0].pause()


async def slowly(items: Iterable[_T], some: int = SLICE) -> AsyncIterator[_T]:
    """The items, with a pause for requests after each few."""
    for number, item in enumerate(items):
        yield item
        if number % some == 0:
            await pause()


def at_once(work: Generator[None, None, _T]) -> _T:
    """What a generator returns, without a pause: where no request can wait."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: _T = done.value
            return result


async def stepwise(work: Generator[None, None, _T]) -> _T:
    """What a generator returns, with a pause for requests after each of its steps."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: _T = done.value
            return result
        await pause()
