"""`/stats` and `/stats.json` on the debug port: the reference's names with their numbers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from itertools import islice

from ratelimit_service.eventloop.slices import SLICE, pause
from ratelimit_service.metrics.exporter import Page
from ratelimit_service.metrics.reading import Reading
from ratelimit_service.metrics.reference import RESPONSE_TIME, totals
from ratelimit_service.settings import Settings

__all__ = ["exports"]


def exports(settings: Settings) -> Iterator[Page]:
    """Both pages, if there is a debug port."""
    if settings.debug:
        flag, address = "--debug", settings.debug
        yield Page(flag, address, "/stats", "text/plain; charset=utf-8", _text, optional=True)
        yield Page(flag, address, "/stats.json", "application/json", _json, optional=True)


async def _numbers(reading: Reading) -> list[tuple[str, int]]:
    latency = reading.stats.latency
    numbers = await totals(reading)
    numbers[f"{RESPONSE_TIME}.count"] = sum(latency.buckets)
    numbers[f"{RESPONSE_TIME}.sum_ms"] = latency.sum_us // 1_000
    return list(numbers.items())


async def _text(reading: Reading) -> AsyncIterator[bytes]:
    """A line for each: the name, a colon, the number."""
    rest = iter(await _numbers(reading))
    while some := list(islice(rest, SLICE)):
        yield "".join(f"{name}: {number}\n" for name, number in some).encode()
        await pause()


async def _json(reading: Reading) -> AsyncIterator[bytes]:
    """One object."""
    rest = iter(await _numbers(reading))
    mark = b"{"
    while some := dict(islice(rest, SLICE)):
        yield mark + json.dumps(some)[1:-1].encode()
        mark = b", "
        await pause()
    yield b"}\n"
