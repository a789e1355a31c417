"""The process that makes lines of decisions, and the way to it.

It takes frames of packets, and gives back a frame of lines for each. So a process that decides, and
the one that started it, have no work with lines. Where it is not there, as in the first moment, or
for a while after it was killed, lines are made here, a packet at a time. What it has not given back
is never lost with it. What must not live here: what a line says (`decision_lines`), and where lines
go (`decision_log`).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Final, Self

from ratelimit_service.bugs import Bugs
from ratelimit_service.observer import Stats
from ratelimit_service.pipes import (
    ChildProcess,
    end,
    framed,
    keep_running,
    read_frame,
    read_frame_at_once,
    start,
)
from ratelimit_service.runtime.decision_lines import DecisionLines
from ratelimit_service.runtime.decision_packets import decisions_in
from ratelimit_service.service.decision_key import hash_of, read_key
from ratelimit_service.settings import Settings

__all__ = ["DecisionScribe", "main"]

log = logging.getLogger(__name__)

_MOST_BYTES: Final = 1 << 22
"""Packets that the process has not given back yet; what comes beyond is dropped."""

_NICENESS: Final = 10
"""The process's: decisions matter more than lines."""

_END_SECONDS: Final = 1.0
"""For so long the end waits for lines of the process; then they are made here."""


class DecisionScribe:
    """Has lines made of packets."""

    def __init__(self, settings: Settings, stats: Stats, write: Callable[[bytes], None]) -> None:
        """`write` takes lines. Raises SettingsError if the key for values cannot be read."""
        self._key = read_key(settings.decision_log_key_file) or b""
        self._wanted = bool(settings.decision_log)
        self._stats = stats
        self._write = write
        self._lines = DecisionLines(hash_of(self._key or None))
        self.process: ChildProcess | None = None
        """What makes lines, while it is there."""
        self._pipe: asyncio.WriteTransport | None = None
        self._under_way: deque[bytes] = deque()
        self._bytes = 0
        self._keeping: asyncio.Task[None] | None = None
        self._stopping = self._pausing = False
        self._bugs = Bugs()

    @property
    def working(self) -> bool:
        """Whether the process is there and has nothing to do."""
        return self._pipe is not None and not self._under_way

    def take(self, packet: bytes) -> bool:
        """Has lines made of a packet and written; False if there are too many. It never waits."""
        pipe = self._pipe
        if pipe is None or pipe.is_closing():
            self._write_here(packet)
            return True
        if self._bytes + len(packet) > _MOST_BYTES:
            return False
        self._under_way.append(packet)
        self._bytes += len(packet)
        pipe.write(framed(packet))
        return True

    def hear(self, packet: bytes) -> None:
        """Takes a packet of a worker, and counts its decisions if there are too many."""
        if not self.take(packet):
            self._stats.decision_log["dropped_slow"] += decisions_in(packet)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Has a process for it, and another one whenever it ends, until the end of the block."""
        if self._wanted:
            self._keeping = asyncio.create_task(keep_running(self._once, self._pause))
        try:
            yield self
        finally:
            await self.stop()

    async def stop(self) -> None:
        """Has all lines written, and ends the process. A second call does nothing."""
        self._stopping = True
        keeping, self._keeping = self._keeping, None
        if keeping is None:
            return
        if self._pipe is not None:
            self._pipe.close()  # it gives back what it has been given, and then ends
        if not self._pausing:
            await asyncio.wait([keeping], timeout=_END_SECONDS)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        while self._under_way:
            self._write_here(self._given_back())

    def _given_back(self) -> bytes:
        """The oldest packet, with which the process is done."""
        packet = self._under_way.popleft()
        self._bytes -= len(packet)
        return packet

    def _write_here(self, packet: bytes) -> None:
        """Makes lines without the process."""
        try:
            lines = self._lines.of(packet)
        except Exception as error:
            self._stats.decision_log["dropped_error"] += decisions_in(packet)
            self._bugs.note("decisions could not be written down", error)
        else:
            self._write(lines)

    async def _once(self) -> str | None:
        """Runs the process once; says why it ended, or None if that was wanted."""
        self._pausing = False
        try:
            await self._run()
            why = "it ended"
        except OSError as error:
            why = error.strerror or str(error)
        except Exception as error:
            self._bugs.note("no process makes lines of the decision log", error)
            why = "a fault of ours"
        while self._under_way:  # it did not give these back
            self._write_here(self._given_back())
            await asyncio.sleep(0)
        return None if self._stopping else why

    def _pause(self, seconds: float, why: str) -> None:
        self._pausing = True
        log.warning(
            "no process makes lines of the decision log for %g s, so this one does: %s",
            seconds,
            why,
        )

    async def _run(self) -> None:
        """Runs the process once, until it ends. Raises OSError if it cannot be started."""
        process = await asyncio.to_thread(start, __name__, subprocess.DEVNULL)
        self.process = process
        try:
            await self._exchange(process)
        finally:
            self.process = None
            await asyncio.shield(asyncio.to_thread(end, process))

    async def _exchange(self, process: ChildProcess) -> None:
        """Gives it packets and takes lines, until it ends."""
        loop = asyncio.get_running_loop()
        stream = asyncio.StreamReader()
        said, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), process.stdout
        )
        ended = asyncio.Event()
        pipe, _ = await loop.connect_write_pipe(lambda: _Ending(ended), process.stdin)
        try:
            pipe.write(framed(self._key))
            await read_frame(stream)  # it is ready
            self._pipe = pipe
            if self._stopping:
                pipe.close()
            while True:
                lines = await read_frame(stream)
                packet = self._given_back()
                if lines:
                    self._write(lines)
                else:
                    self._write_here(packet)  # says what is wrong with it
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # it has ended
        finally:
            self._pipe = None
            process.kill()  # what it was given and has not read is not wanted any more
            pipe.close()
            said.close()
            await ended.wait()


class _Ending(asyncio.Protocol):
    """Says when a pipe is closed."""

    def __init__(self, ended: asyncio.Event) -> None:
        self._ended = ended

    def connection_lost(self, _: Exception | None) -> None:
        """Called once, when nothing is left of it."""
        self._ended.set()


def main() -> None:
    """The process: it ends when its parent hangs up."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)  # they are meant for its parent
    os.nice(_NICENESS)
    gc.disable()  # it makes no cycles
    packets, out = sys.stdin.buffer, sys.stdout.buffer
    lines = DecisionLines(hash_of(read_frame_at_once(packets) or None))
    out.write(framed(b""))
    out.flush()
    while packet := read_frame_at_once(packets):
        try:
            made = lines.of(packet)
        except Exception:
            made = b""  # the parent tries it as well, and has a log
        out.write(framed(made))
        out.flush()
