"""What every process of the service does for itself: its event loop, its memory, its files."""

from __future__ import annotations

import asyncio
import gc
import resource
from collections.abc import Callable, Coroutine
from functools import partial
from time import thread_time_ns
from typing import Any, TypeVar

from ratelimit_service.eventloop.scheduler import shared_scheduler

try:
    import uvloop
except ImportError:  # not built for this platform: asyncio's own loop does as well, only slower
    uvloop = None  # type: ignore[assignment]

__all__ = ["AT_ONCE", "Tasks", "collect", "raise_file_limit", "run", "spare_the_old"]

_COLLECT_SECONDS = 0.01

_MIDDLE_EVERY = 10
_OLD_EVERY = 250
"""After so many steps of ten milliseconds objects are collected that have outlived a collection of
young ones, and those that have outlived that, too."""

AT_ONCE = 4_500
"""The most objects looked at in a collection of others than the young: some three milliseconds."""

_QUIET_NS = 500_000
_QUIET_STEPS = 4
"""A process that has used less time than this since the last collection has made few objects. So
the next collection comes so many steps later: to wake up for it costs more than it frees."""

_T = TypeVar("_T")


class Tasks:
    """Work that goes on while nobody waits for it."""

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        """`failed` is called with what one has raised."""
        self._failed = failed
        self._running: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begins one; the loop itself would not keep it."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._done)
        return task

    def cancel(self) -> None:
        """Ends all that are not done."""
        for task in self._running:
            task.cancel()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self._failed(error)


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


def collect() -> None:
    """Collects young objects now and every ten milliseconds, and older ones now and then.

    The hot path makes no cycles, but foreign code makes some. Most of them are garbage soon; those
    of a slow connection are later. So objects that outlive a collection are looked at again ten
    times a second, and those that outlive that every 2.5 seconds. But that is done only if they are
    `AT_ONCE` objects at most.

    Sometimes more objects were made to stay, such as plans for thousands of new keys a second.
    These are set aside without a look: to count them costs little. They are in no cycle, so they go
    when they are dropped.

    Older objects are collected in a turn of their own. Young ones are collected at once if nobody
    waits.
    """
    _Collector().collect()


class _Collector:
    """Says when which objects are collected. Time is counted in steps of ten milliseconds."""

    def __init__(self) -> None:
        self._step = self._middle_at = self._old_at = 0
        self._counts = False
        """Whether the objects that have outlived one collection are counted at the next one. To
        count many takes long as well: three milliseconds for 27,000."""
        self._most_old = 0
        """The most objects that can have outlived two collections."""
        self._used_ns = thread_time_ns()

    def collect(self) -> None:
        shared_scheduler().reply(self._collect)

    def _collect(self) -> None:
        gc.collect(0)
        self._counts = not self._counts
        # A collection of older ones may take as long as a turn has.
        if self._step >= self._old_at:
            self._old_at = self._step + _OLD_EVERY
            self._middle_at = self._step + _MIDDLE_EVERY
            shared_scheduler().begin(partial(self._collect_older, 2))
        elif self._step >= self._middle_at:
            self._middle_at = self._step + _MIDDLE_EVERY
            shared_scheduler().begin(partial(self._collect_older, 1))
        elif self._counts and _count(0, 1) > AT_ONCE:
            self._set_aside()
        before_ns, self._used_ns = self._used_ns, thread_time_ns()
        steps = _QUIET_STEPS if self._used_ns - before_ns < _QUIET_NS else 1
        self._step += steps
        asyncio.get_running_loop().call_later(steps * _COLLECT_SECONDS, self.collect)

    def _collect_older(self, generation: int) -> None:
        younger = _count(0, 1)
        self._most_old += younger
        if self._most_old > AT_ONCE:  # of those before, some may be gone again
            self._most_old = younger + _count(2)
        if self._most_old > AT_ONCE:
            self._set_aside()
        else:
            gc.collect(generation)

    def _set_aside(self) -> None:
        gc.freeze()
        self._most_old = 0


def _count(*generations: int) -> int:
    return sum(len(gc.get_objects(generation=generation)) for generation in generations)


def raise_file_limit() -> None:
    """Raises the limit of open files as far as allowed, also for children: a connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
