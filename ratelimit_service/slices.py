"""Long work beside requests: a little at a time, so that none of them waits for long.

What is done for callers of HTTP stands in line: however many ask for long pages at once, the loop
does a slice for one of them in each of its rounds.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Generator, Iterable
from contextvars import ContextVar
from typing import Final, TypeVar

__all__ = ["SLICE", "pause", "slowly", "stand_in_line", "stepwise"]

SLICE = 50
"""Rules that are looked at, written out or freed at once: a millisecond's worth or less."""

_T = TypeVar("_T")


class _Line:
    """Those who do long work: one of them goes on in each round of the event loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._taken = False
        """Whether somebody goes on in the next round."""

    async def pause(self) -> None:
        """Waits for the next round, or until it is one's turn."""
        if self._taken:
            waiter = self.loop.create_future()
            self._waiting.append(waiter)
            await waiter
        else:
            self._taken = True
            self.loop.call_soon(self._next_round)
            await asyncio.sleep(0)

    def _next_round(self) -> None:
        self._taken = False
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


async def slowly(items: Iterable[_T], at_once: int = SLICE) -> AsyncIterator[_T]:
    """The items, with a pause for requests after each few."""
    for number, item in enumerate(items):
        yield item
        if number % at_once == 0:
            await pause()


async def stepwise(work: Generator[None, None, _T]) -> _T:
    """What a generator returns, with a pause for requests after each of its steps."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: _T = done.value
            return result
        await pause()
