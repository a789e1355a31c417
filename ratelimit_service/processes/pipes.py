"""Processes that ours starts beside it: how they are started and ended, and how they speak.

What they say is frames: a size, and so many bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import IO, Final, Self

from ratelimit_service.eventloop.backoff import Backoff

__all__ = [
    "ChildProcess",
    "FedProcess",
    "Frames",
    "end",
    "framed",
    "read_frame",
    "read_frame_at_once",
    "start",
]

_SIZE_BYTES = 4
_READ_BYTES: Final = 1 << 18
_FIRST_PAUSE_SECONDS: Final = 2.0
_LONGEST_PAUSE_SECONDS: Final = 60.0
_MOST_WAITING_BYTES: Final = 1 << 22
"""What a process has been given and has not read."""

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
            if frames := self._whole():
                return frames

    def _whole(self) -> list[bytes]:
        frames, rest, at = [], self._rest, 0
        while len(rest) - at >= _SIZE_BYTES:
            stop = at + _SIZE_BYTES + int.from_bytes(rest[at : at + _SIZE_BYTES], "big")
            if stop > len(rest):
                break
            frames.append(rest[at + _SIZE_BYTES : stop])
            at = stop
        self._rest = rest[at:]
        return frames


class FedProcess:
    """A module's process that is given frames by whoever must not wait, and says lines.

    What it is given waits in bounded memory until it reads it, also while it is not there. When it
    ends another one is started; what it was given and had not read is lost then.
    """

    def __init__(
        self,
        start: Callable[[], ChildProcess],
        first: bytes,
        on_line: Callable[[bytes], None],
        on_pause: Callable[[float, str], None],
        end_seconds: float,
        on_ended: Callable[[], None] = lambda: None,
    ) -> None:
        """Each process gets `first` before all else. `on_line` takes what it says, line by line.

        `start` is called in a thread, `on_ended` whenever one has ended, and `on_pause` with the
        seconds until the next one, and why. At last it may take `end_seconds` to work off what it
        was given.
        """
        self._start = start
        self._first = first
        self._on_line = on_line
        self._on_pause = on_pause
        self._end_seconds = end_seconds
        self._on_ended = on_ended
        self.process: ChildProcess | None = None
        """It, while it is there."""
        self._pipe: asyncio.WriteTransport | None = None
        self._waiting = bytearray()
        """Frames for the next one, while there is none."""
        self._keeping: asyncio.Task[None] | None = None
        self._stopping = False

    def give(self, data: bytes) -> bool:
        """Gives it a frame; False if too much waits already, or it does not run. Never waits."""
        pipe = self._pipe
        waiting = len(self._waiting) if pipe is None else pipe.get_write_buffer_size()
        if self._keeping is None or waiting + len(data) > _MOST_WAITING_BYTES:
            return False
        if pipe is None:
            self._waiting += framed(data)
        elif pipe.is_closing():  # it is just ending
            return False
        else:
            pipe.write(framed(data))
        return True

    @contextlib.asynccontextmanager
    async def running(self, wanted: bool = True) -> AsyncIterator[Self]:
        """Has it there, if it is `wanted`, until the end of the block, or until `stop`."""
        if wanted:
            self._keeping = asyncio.create_task(self._keep())
        try:
            yield self
        finally:
            await self.stop()

    async def stop(self) -> None:
        """Lets it work off what it was given, and ends it. A second call does nothing."""
        self._stopping = True
        keeping, self._keeping = self._keeping, None
        if keeping is None:
            return
        if self._pipe is not None:
            self._pipe.close()  # what was given still goes out
        if self._pipe is not None or self._waiting:
            await asyncio.wait([keeping], timeout=self._end_seconds)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        self._on_ended()  # also where there never was one

    async def _keep(self) -> None:
        """Runs it once more whenever it has ended. Pauses grow, until a run has lasted."""
        loop = asyncio.get_running_loop()
        backoff = Backoff(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
        while True:
            began, why = loop.time(), "it ended"
            try:
                await self._run()
            except Exception as error:  # whatever it is, another one may do better
                why = (isinstance(error, OSError) and error.strerror) or str(error)
            if self._stopping:
                return
            if loop.time() - began > _LONGEST_PAUSE_SECONDS:
                backoff.reset()
            pause = backoff.next_seconds()
            self._on_pause(pause, why)
            await asyncio.sleep(pause)

    async def _run(self) -> None:
        """Runs it once, until it ends. Raises OSError if it cannot be started."""
        self.process = process = await asyncio.to_thread(self._start)
        loop = asyncio.get_running_loop()
        stream = asyncio.StreamReader()
        try:
            lines, _ = await loop.connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(stream), process.stdout
            )
            pipe, _ = await loop.connect_write_pipe(asyncio.Protocol, process.stdin)
            pipe.write(framed(self._first) + self._waiting)
            self._waiting.clear()
            self._pipe = pipe
            if self._stopping:
                pipe.close()
            try:
                while line := await stream.readline():
                    self._on_line(line)
            finally:
                self._pipe = None
                self._on_ended()
                if pipe.get_write_buffer_size():
                    pipe.abort()  # nobody reads what is left
                pipe.close()
                lines.close()
        finally:
            self.process = None
            await asyncio.shield(asyncio.to_thread(end, process))
