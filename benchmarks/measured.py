"""`ratelimit serve` on an event loop that times each of its callbacks.

The path of the record is the first argument, the rest goes to `ratelimit serve`. At the end
all callbacks above a millisecond of the thread's CPU time are written, each with its cause.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import uvloop

from ratelimit_service import cli
from ratelimit_service.runtime import process

NOTED_NS = 1_000_000
START_CALLBACKS = 500

Noted = tuple[float, float, str]
"""Milliseconds of CPU and of wall, and the cause."""

noted: list[Noted] = []
counts = [0, 0]
"""Callbacks, and collections of garbage."""


def serving() -> bool:
    """Whether the start is over, before which nobody waits."""
    return counts[0] > START_CALLBACKS


def cause(callback: object) -> str:
    """What a callback does, in words of the code."""
    task = getattr(callback, "__self__", None)
    if isinstance(task, asyncio.Task):
        coroutine = task.get_coro()
        name, place = str(getattr(coroutine, "__qualname__", task)), ""
        while coroutine is not None and getattr(coroutine, "cr_frame", None) is not None:
            frame = coroutine.cr_frame  # type: ignore[union-attr]
            place = f" up to {Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
            coroutine = coroutine.cr_await  # type: ignore[union-attr]
        return name + place
    return str(getattr(callback, "__qualname__", repr(callback)))


def timed(callback: Callable[..., Any]) -> Callable[..., Any]:
    """The callback, with its time noted if it takes long."""

    def run(*arguments: object) -> Any:
        wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
        try:
            return callback(*arguments)
        finally:
            used = time.thread_time_ns() - cpu
            counts[0] += 1
            if used > NOTED_NS and serving():
                passed = time.perf_counter_ns() - wall
                noted.append((used / 1e6, passed / 1e6, cause(callback)))

    return run


class MeasuredLoop(uvloop.Loop):
    """uvloop, with a clock on everything that it calls."""

    def call_soon(self, callback: Any, *arguments: Any, context: Any = None) -> Any:
        return super().call_soon(timed(callback), *arguments, context=context)

    def call_soon_threadsafe(self, callback: Any, *arguments: Any, context: Any = None) -> Any:
        return super().call_soon_threadsafe(timed(callback), *arguments, context=context)

    def call_later(self, delay: float, callback: Any, *arguments: Any, context: Any = None) -> Any:
        return super().call_later(delay, timed(callback), *arguments, context=context)

    def call_at(self, when: float, callback: Any, *arguments: Any, context: Any = None) -> Any:
        return super().call_at(when, timed(callback), *arguments, context=context)

    async def create_server(self, factory: Any, *arguments: Any, **options: Any) -> Any:
        return await super().create_server(_timed_protocols(factory), *arguments, **options)

    async def create_connection(self, factory: Any, *arguments: Any, **options: Any) -> Any:
        return await super().create_connection(_timed_protocols(factory), *arguments, **options)


def _timed_protocols(factory: Callable[[], Any]) -> Callable[[], Any]:
    def made() -> Any:
        protocol = factory()
        with contextlib.suppress(AttributeError):  # aiohttp's has slots
            protocol.data_received = timed(protocol.data_received)
        return protocol

    return made


def collecting(phase: str, _: object, started: list[int] = [0]) -> None:  # noqa: B006 -- kept
    if phase == "start":
        started[0] = time.thread_time_ns()
        return
    counts[1] += 1
    used = time.thread_time_ns() - started[0]
    if used > NOTED_NS and serving():
        noted.append((used / 1e6, used / 1e6, "the garbage collector"))


class Runner:
    """Stands for uvloop's module where the service starts its loop."""

    @staticmethod
    def run(main: Coroutine[Any, Any, int]) -> int:
        with asyncio.Runner(loop_factory=MeasuredLoop) as runner:
            gc.callbacks.append(collecting)
            return runner.run(main)


def main() -> None:
    record = Path(sys.argv.pop(1))
    process.uvloop = Runner  # type: ignore[assignment]
    sys.argv.insert(1, "serve")
    try:
        cli.main()
    finally:
        gc.callbacks.clear()
        record.write_text(
            json.dumps({"callbacks": counts[0], "collections": counts[1], "noted": noted})
        )


if __name__ == "__main__":
    main()
