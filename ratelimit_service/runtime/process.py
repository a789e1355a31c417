"""What every process of the service does for itself: its event loop, its memory, its files."""

from __future__ import annotations

import asyncio
import gc
import resource
from collections.abc import Coroutine
from functools import partial
from typing import Any, TypeVar

from ratelimit_service.turns import shared_turns

try:
    import uvloop
except ImportError:  # not built for this platform: asyncio's own loop does as well, only slower
    uvloop = None  # type: ignore[assignment]

__all__ = ["collect", "raise_file_limit", "run", "spare_the_old"]

_COLLECT_SECONDS = 0.01

_LOOK_EVERY = 2
_MIDDLE_EVERY = 10
_OLD_EVERY = 250
"""After so many collections of young objects what has outlived one is counted, it is collected, and
the oldest have their turn. To count many takes long as well: 27,000 three milliseconds."""

_AT_ONCE = 4_500
"""The most objects looked at in a collection of others than the young: some three milliseconds."""

_T = TypeVar("_T")


def run(main: Coroutine[Any, Any, _T]) -> _T:
    """Runs a coroutine on the fastest event loop there is."""
    if uvloop is not None:
        return uvloop.run(main)
    return asyncio.run(main)


def spare_the_old() -> None:
    """Takes the garbage collector in hand: from now on it runs in bounded steps only, `collect`.

    A full collection over all remembered plans stops the process for a hundred milliseconds, in
    which Envoy lets requests through. What the start has made stays as it is.
    """
    gc.collect()
    gc.freeze()
    gc.disable()


def collect(turn: int = 0) -> None:
    """Collects young objects now and every ten milliseconds, and older ones now and then.

    The hot path makes no cycles, foreign code makes some: most die young, those of a slow
    connection later. So what outlives a collection is looked at again, ten times a second, and
    what outlives that every 2.5 seconds, each time if it is no more than `_AT_ONCE` objects. Where
    more were made to stay (plans, by thousands of new keys a second), these are set aside unseen:
    a count of them costs little, and they go when they are dropped, as all that is in no cycle.
    Older objects are collected in a turn of their own, young ones at once if nobody waits.
    """
    shared_turns().at_once(partial(_collect, turn))


def _collect(turn: int) -> None:
    gc.collect(0)
    # A collection of older ones may take as long as a turn has.
    if turn % _OLD_EVERY == 0:
        shared_turns().alone(partial(_collect_older, 2), 0)
    elif turn % _MIDDLE_EVERY == 0:
        shared_turns().alone(partial(_collect_older, 1), 0)
    elif turn % _LOOK_EVERY == 0:
        _are_few(1)
    asyncio.get_running_loop().call_later(_COLLECT_SECONDS, collect, turn + 1)


def _collect_older(generation: int) -> None:
    if _are_few(2):
        gc.collect(generation)


def _are_few(oldest: int) -> bool:
    """Whether there are no more than `_AT_ONCE` objects up to a generation; else sets all aside."""
    seen = sum(len(gc.get_objects(generation=each)) for each in range(oldest + 1))
    if seen > _AT_ONCE:
        gc.freeze()
    return seen <= _AT_ONCE


def raise_file_limit() -> None:
    """Raises the limit of open files as far as allowed, also for children: a connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
