"""Processes that ours starts beside it: how they are started and ended, and how they speak.

What they say is frames: a size, and so many bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import IO, Final

from ratelimit_service.eventloop.backoff import Backoff

__all__ = [
    "ChildProcess",
    "Frames",
    "end",
    "framed",
    "keep_running",
    "read_frame",
    "read_frame_at_once",
    "start",
]

_SIZE_BYTES = 4
_READ_BYTES: Final = 1 << 18
_FIRST_PAUSE_SECONDS: Final = 2.0
_LONGEST_PAUSE_SECONDS: Final = 60.0

ChildProcess = subprocess.Popen[bytes]


def start(
    module: str,
    errors: int | IO[bytes] = subprocess.PIPE,
    environment: Mapping[str, str] = {},
    inherited: Sequence[int] = (),
) -> ChildProcess:
    """Starts a module's `main`, with pipes. Raises OSError.

    Descriptors that are `inherited` have the same numbers there. None of them is below 3. Call this
    in a thread, since it waits. The event loop's own way would fork, which does not work beside
    grpcio's threads.
    """
    code = f"from {module} import main; main()"
    return subprocess.Popen(  # noqa: S603 -- this very interpreter and package
        [sys.executable, "-P", "-c", code],  # -P: not what lies in the working directory
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        env={**os.environ, **environment},
        pass_fds=inherited,
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
    loop = asyncio.get_running_loop()
    backoff = Backoff(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
    while True:
        began = loop.time()
        why = await run()
        if why is None:
            return
        if loop.time() - began > _LONGEST_PAUSE_SECONDS:
            backoff.reset()
        pause = backoff.next_seconds()
        pausing(pause, why)
        await asyncio.sleep(pause)


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


class Frames:
    """The frames that come from a descriptor, as many at a time as there are."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._rest = b""

    def take(self) -> list[bytes]:
        """The next frames, waiting for one; none if the other end is gone."""
        while True:
            data = os.read(self._file, _READ_BYTES)
            if not data:
                return []
            self._rest += data
            if found := self._whole():
                return found

    def _whole(self) -> list[bytes]:
        found, rest, at = [], self._rest, 0
        while len(rest) - at >= _SIZE_BYTES:
            stop = at + _SIZE_BYTES + int.from_bytes(rest[at : at + _SIZE_BYTES], "big")
            if stop > len(rest):
                break
            found.append(rest[at + _SIZE_BYTES : stop])
            at = stop
        self._rest = rest[at:]
        return found
