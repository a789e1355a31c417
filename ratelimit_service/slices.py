"""Long work beside requests: a little at a time, so that none of them waits for long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Iterable
from typing import TypeVar

__all__ = ["SLICE", "slowly", "stepwise"]

SLICE = 50
"""Rules that are looked at, written out or freed at once: a millisecond's worth or less."""

_T = TypeVar("_T")


async def slowly(items: Iterable[_T], at_once: int = SLICE) -> AsyncIterator[_T]:
    """The items, with a pause for requests after each few."""
    for number, item in enumerate(items):
        yield item
        if number % at_once == 0:
            await asyncio.sleep(0)


async def stepwise(work: Generator[None, None, _T]) -> _T:
    """What a generator returns, with a pause for requests after each of its steps."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: _T = done.value
            return result
        await asyncio.sleep(0)
