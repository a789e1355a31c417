"""`ratelimit serve`, whose worker runs on an event loop that times each of its callbacks.

The path of the record is the first argument, the rest goes to `ratelimit serve`. At the end
all callbacks above a millisecond of the thread's CPU time are written, each with its cause; only
those since SIGUSR1, if that came to the worker.
"""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from benchmarks.timing import NOTED_NS, MeasuredLoop
from ratelimit_service import cli
from ratelimit_service.runtime import process, worker, worker_process

START_CALLBACKS = 500

Noted = tuple[float, float, str]
"""Milliseconds of CPU and of wall, and the cause."""

noted: list[Noted] = []
collections = [0]


def note(cpu: float, wall: float, cause: str) -> None:
    """Remembers what took long, once the start is over, before which nobody waits."""
    if MeasuredLoop.callbacks > START_CALLBACKS:
        noted.append((cpu, wall, cause))


def collecting(phase: str, _: object, started: list[int] = [0]) -> None:  # noqa: B006 -- kept
    if phase == "start":
        started[0] = time.thread_time_ns()
        return
    collections[0] += 1
    used = time.thread_time_ns() - started[0]
    if used > NOTED_NS:
        note(used / 1e6, used / 1e6, "the garbage collector")


class Runner:
    """Stands for uvloop's module where the service starts its loop."""

    @staticmethod
    def run(main: Coroutine[Any, Any, int]) -> int:
        with asyncio.Runner(loop_factory=MeasuredLoop) as runner:
            gc.callbacks.append(collecting)
            return runner.run(main)


def work() -> None:
    """The worker's process."""
    record = Path(sys.argv.pop(1))
    process.uvloop = Runner  # type: ignore[attr-defined, assignment]
    MeasuredLoop.note = staticmethod(note)
    signal.signal(signal.SIGUSR1, lambda *_: noted.clear())
    try:
        worker.main()
    finally:
        gc.callbacks.clear()
        record.write_text(
            json.dumps(
                {
                    "callbacks": MeasuredLoop.callbacks,
                    "collections": collections[0],
                    "noted": noted,
                }
            )
        )


def main() -> None:
    """The supervisor's process, which is not timed."""
    command = [sys.executable, "-c", "from benchmarks.measured import work; work()"]
    command.append(sys.argv.pop(1))
    worker_process.worker_command = lambda *, beside: [*command]  # noqa: ARG005
    sys.argv.insert(1, "serve")
    cli.main()


if __name__ == "__main__":
    main()
