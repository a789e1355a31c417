"""Processes that ours starts beside it: how they are started and ended, and how they speak.

What they say is frames: a size, and so many bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import IO

__all__ = ["ChildProcess", "end", "framed", "read_frame", "read_frame_at_once", "start"]

_SIZE_BYTES = 4

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
