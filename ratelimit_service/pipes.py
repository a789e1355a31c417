"""Processes that ours starts beside it: how they are started and ended, and how they speak.

What they say is frames: a size, and so many bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import IO, Final

__all__ = [
    "ChildProcess",
    "end",
    "framed",
    "keep_running",
    "read_frame",
    "read_frame_at_once",
    "start",
]

_SIZE_BYTES = 4
_LEAST_PAUSE_SECONDS: Final = 1.0
_MOST_PAUSE_SECONDS: Final = 60.0

ChildProcess = subprocess.Popen[bytes]


def start(
    module: str, errors: int | IO[bytes] = subprocess.PIPE, environment: Mapping[str, str] = {}
) -> ChildProcess:
    """Starts a module's `main`, with pipes. Raises OSError.

    Not for the event loop to call: uvloop forks, which grpcio's threads do not bear.
    """
    code = f"from {module} import main; main()"
    return subprocess.Popen(  # noqa: S603 -- this very interpreter and package
        [sys.executable, "-P", "-c", code],  # -P: not what lies in the working directory
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        env={**os.environ, **environment},
        start_new_session=True,  # a signal from the terminal is for us
    )


def end(process: ChildProcess) -> None:
    """Ends it at once."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):  # what it did not read is of no use now
                pipe.close()


async def keep_running(
    run: Callable[[], Awaitable[str | None]], pausing: Callable[[float, str], None]
) -> None:
    """Runs a process once more whenever it has ended, until `run` returns None.

    `run` returns when it has ended, and says why. Before each pause `pausing` is told of it, in
    seconds, and why. Pauses grow, until a run has lasted.
    """
    loop, pause = asyncio.get_running_loop(), _LEAST_PAUSE_SECONDS
    while True:
        began = loop.time()
        why = await run()
        if why is None:
            return
        if loop.time() - began > _MOST_PAUSE_SECONDS:
            pause = _LEAST_PAUSE_SECONDS
        pausing(pause, why)
        await asyncio.sleep(pause)
        pause = min(2 * pause, _MOST_PAUSE_SECONDS)


async def read_frame(stream: asyncio.StreamReader) -> bytes:
    """The next frame. Raises asyncio.IncompleteReadError if the process has ended."""
    size = int.from_bytes(await stream.readexactly(_SIZE_BYTES), "big")
    return await stream.readexactly(size)


def framed(data: bytes) -> bytes:
    """A frame."""
    return len(data).to_bytes(_SIZE_BYTES, "big") + data


def read_frame_at_once(stream: IO[bytes]) -> bytes:
    """The next frame, waiting for it; nothing if the other end is gone."""
    size = int.from_bytes(stream.read(_SIZE_BYTES), "big")
    frame = stream.read(size)
    return frame if len(frame) == size else b""
