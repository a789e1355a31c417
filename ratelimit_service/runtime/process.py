"""What every process of the service does for itself: its event loop, its memory, its files."""

from __future__ import annotations

import asyncio
import gc
import resource
from collections.abc import Coroutine
from typing import Any, TypeVar

try:
    import uvloop
except ImportError:  # not built for this platform: asyncio's own loop does as well, only slower
    uvloop = None  # type: ignore[assignment]

__all__ = ["collect_young", "raise_file_limit", "run", "spare_the_old"]

_COLLECT_SECONDS = 0.01

_T = TypeVar("_T")


def run(main: Coroutine[Any, Any, _T]) -> _T:
    """Runs a coroutine on the fastest event loop there is."""
    if uvloop is not None:
        return uvloop.run(main)
    return asyncio.run(main)


def spare_the_old() -> None:
    """Takes the garbage collector in hand: it sees young objects only, a few at a time.

    A full collection over a million counters and plans stops the process for tens of
    milliseconds, in which Envoy lets requests through. The hot path makes no cycles; those of
    the libraries die young, or are so few that they may stay. Left to itself the collector
    counts new objects less dropped ones, so where plans replace each other it waits for long
    and then has as much to do: hence the clock, `collect_young`.
    """
    gc.collect()
    gc.freeze()
    gc.disable()


def collect_young() -> None:
    """Collects what is young, now and every few milliseconds from now on."""
    gc.collect(0)
    asyncio.get_running_loop().call_later(_COLLECT_SECONDS, collect_young)


def raise_file_limit() -> None:
    """Lets this process and its children open as many files as it may: a connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
