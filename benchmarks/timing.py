"""An event loop that times its callbacks, by the CPU time of the thread that runs them.

It imports nothing of the service, so that any of the service's processes can run on it:
`measured.py` starts one so, `abuse/site` does it to each.
"""

# What is wrapped is called as it came, so signatures are open.
# mypy: disable-error-code="override"

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop

NOTED_NS = 1_000_000
TURN = "a turn of the loop"

Note = Callable[[float, float, str], None]
"""Takes milliseconds of CPU and of wall, and the cause."""


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


class MeasuredLoop(uvloop.Loop):
    """uvloop, with a clock on everything that it calls.

    `note` hears of what takes more than a millisecond: a callback, or a turn of the loop. A turn
    lasts from a callback's start until something runs that was put into the queue at that moment.
    """

    note: Note = staticmethod(lambda _cpu, _wall, _cause: None)
    turns = False
    """Whether turns are timed as well."""
    callbacks = 0

    def _timed(self, callback: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: object) -> Any:
            wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
            if self.turns and not self._turning:
                self._turning = True
                super(MeasuredLoop, self).call_soon(self._turned, wall, cpu)
            try:
                return callback(*arguments)
            finally:
                MeasuredLoop.callbacks += 1
                used = time.thread_time_ns() - cpu
                if used > NOTED_NS:
                    passed = time.perf_counter_ns() - wall
                    self.note(used / 1e6, passed / 1e6, cause(callback))

        return run

    _turning = False

    def _turned(self, wall: int, cpu: int) -> None:
        self._turning = False
        used = time.thread_time_ns() - cpu
        if used > NOTED_NS:
            self.note(used / 1e6, (time.perf_counter_ns() - wall) / 1e6, TURN)

    def call_soon(self, callback: Any, *arguments: Any, context: Any = None) -> Any:
        return super().call_soon(self._timed(callback), *arguments, context=context)

    def call_soon_threadsafe(self, callback: Any, *arguments: Any, context: Any = None) -> Any:
        return super().call_soon_threadsafe(self._timed(callback), *arguments, context=context)

    def call_later(self, delay: float, callback: Any, *arguments: Any, context: Any = None) -> Any:
        return super().call_later(delay, self._timed(callback), *arguments, context=context)

    def call_at(self, when: float, callback: Any, *arguments: Any, context: Any = None) -> Any:
        return super().call_at(when, self._timed(callback), *arguments, context=context)

    def add_reader(self, file: Any, callback: Any, *arguments: Any) -> Any:
        return super().add_reader(file, self._timed(callback), *arguments)

    async def create_server(self, factory: Any, *arguments: Any, **options: Any) -> Any:
        return await super().create_server(self._made_by(factory), *arguments, **options)

    async def create_connection(self, factory: Any, *arguments: Any, **options: Any) -> Any:
        return await super().create_connection(self._made_by(factory), *arguments, **options)

    async def connect_accepted_socket(self, factory: Any, sock: Any, **options: Any) -> Any:
        return await super().connect_accepted_socket(self._made_by(factory), sock, **options)

    def _made_by(self, factory: Callable[[], Any]) -> Callable[[], Any]:
        def made() -> Any:
            protocol = factory()
            heard = "buffer_updated" if hasattr(protocol, "get_buffer") else "data_received"
            with contextlib.suppress(AttributeError):  # aiohttp's has slots
                setattr(protocol, heard, self._timed(getattr(protocol, heard)))
            return protocol

        return made
