"""The way from those that decide to the process that writes the decision log.

It takes packets, hands them over, and hears what became of them. So a process that decides has no
work with lines and files. Where the other process is not there, as in the first moment, or for a
while after it was killed, a thread of this one writes. A packet is kept until it is done with, so
none is lost with the process. What must not live here: how packets are written (`writer`).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import marshal
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator
from itertools import islice
from typing import Final, Self

from ratelimit_service.decision_log import writer
from ratelimit_service.decision_log.key import read_key
from ratelimit_service.decision_log.packets import decisions_in
from ratelimit_service.decision_log.sinks import LogConfig
from ratelimit_service.decision_log.writer import RETRY_SECONDS, DecisionWriter, Progress
from ratelimit_service.observability.bugs import Bugs
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.processes.pipes import (
    ChildProcess,
    end,
    framed,
    keep_running,
    read_frame,
    start,
)
from ratelimit_service.settings import Settings

__all__ = ["DecisionScribe"]

log = logging.getLogger(__name__)

_MOST_BYTES: Final = 1 << 22
"""Packets that are not done with yet; what comes beyond is dropped."""

_PIPE_BYTES: Final = 1 << 20
"""What the pipe to the process may hold, so that it can gather without holding us up."""

_PACKETS_AT_ONCE: Final = 100
"""Packets that the thread here takes at once."""

_PROCESS_SECONDS: Final = 1.0
"""How long the process may take at the end to write what it has been given."""

_REST_SECONDS: Final = 1.0
"""How long it may then take to write the rest here."""


class DecisionScribe:
    """Has packets written."""

    def __init__(self, settings: Settings, stats: Stats, health: Health) -> None:
        """Raises SettingsError if the key for values cannot be read."""
        self._config = LogConfig(
            settings.decision_log,
            settings.decision_log_max_bytes,
            settings.decision_log_rotate_us,
            settings.decision_log_files,
            _stdout() if settings.decision_log == "stdout" else -1,
            read_key(settings.decision_log_key_file) or b"",
        )
        self._wanted = bool(settings.decision_log)
        self._stats = stats
        self._health = health
        self.process: ChildProcess | None = None
        """What writes, while it is there."""
        self._pipe: asyncio.WriteTransport | None = None
        self._waiting: deque[bytes] = deque()
        """Packets that are not done with; with a process they are all on their way to it."""
        self._bytes = 0
        self._some = asyncio.Event()
        """Set while packets wait and there is no process for them."""
        self._writing = asyncio.Lock()
        """Held by what writes here, and by what hands the log over to a process."""
        self._here = DecisionWriter(self._config)
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = self._ended = self._pausing = False
        self._bugs = Bugs()

    @property
    def working(self) -> bool:
        """Whether the process is there and all is written."""
        return self._pipe is not None and not self._waiting

    def take(self, packet: bytes) -> bool:
        """Has a packet written; False if there are too many. It never waits."""
        if self._ended or self._bytes + len(packet) > _MOST_BYTES:
            return False
        self._waiting.append(packet)
        self._bytes += len(packet)
        pipe = self._pipe
        if pipe is None:
            self._some.set()
        elif not pipe.is_closing():
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
            self._tasks = [
                asyncio.create_task(keep_running(self._once, self._pause)),
                asyncio.create_task(self._write_here()),
            ]
        try:
            yield self
        finally:
            await self.stop()

    async def stop(self) -> None:
        """Has all written that can be in time, and ends the process.

        What cannot is counted. A second call does nothing.
        """
        self._stopping = True
        tasks, self._tasks = self._tasks, []
        if not tasks:
            return
        keeping, here = tasks
        if self._pipe is not None:
            self._pipe.close()  # it writes what it has been given, and then ends
        if not self._pausing:
            await asyncio.wait([keeping], timeout=_PROCESS_SECONDS)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        if self._waiting:
            self._some.set()
        else:
            here.cancel()  # it waits for some
        await asyncio.wait([here], timeout=_REST_SECONDS)
        here.cancel()
        await asyncio.gather(here, return_exceptions=True)
        self._ended = True
        if rest := sum(map(decisions_in, self._waiting)):
            self._stats.decision_log["dropped_slow"] += rest
            self._waiting.clear()

    def _done(self, done: Progress) -> None:
        """Forgets packets, and counts what became of their lines."""
        for _ in range(done.packets):
            self._bytes -= len(self._waiting.popleft())
        counts = self._stats.decision_log
        if done.written:
            counts["written"] += done.written
        if done.failed:
            counts["dropped_error"] += done.failed
        if done.fault:
            self._health.degrade("decision_log", done.fault)
        elif done.written or not done.packets:
            self._health.recover("decision_log")
        if done.bug:
            self._bugs.note("decisions could not be written down", ValueError(done.bug))

    # Without the process

    async def _write_here(self) -> None:
        """Writes in a thread whenever packets wait and there is no process."""
        while True:
            await self._some.wait()
            async with self._writing:
                while self._pipe is None and self._waiting:
                    done = await _in_thread(
                        self._here, list(islice(self._waiting, _PACKETS_AT_ONCE))
                    )
                    self._done(done)
                    if done.fault and not self._stopping:
                        await asyncio.sleep(RETRY_SECONDS)
                self._here.close()
                self._some.clear()
            if self._stopping:
                return

    # The process

    async def _once(self) -> str | None:
        """Runs the process once; says why it ended, or None if that was wanted."""
        self._pausing = False
        try:
            await self._run()
            why = "it ended"
        except OSError as error:
            why = error.strerror or str(error)
        except Exception as error:
            self._bugs.note("no process writes the decision log", error)
            why = "a fault of ours"
        return None if self._stopping else why

    def _pause(self, seconds: float, why: str) -> None:
        self._pausing = True
        log.warning(
            "no process writes the decision log for %.1f s, so this one does: %s", seconds, why
        )

    async def _run(self) -> None:
        """Runs the process once, until it ends. Raises OSError if it cannot be started."""
        inherited = (self._config.stdout,) if self._config.stdout >= 0 else ()
        process = await asyncio.to_thread(
            start, writer.__name__, subprocess.DEVNULL, inherited=inherited
        )
        self.process = process
        try:
            await self._exchange(process)
        finally:
            self.process = None
            await asyncio.shield(asyncio.to_thread(end, process))

    async def _exchange(self, process: ChildProcess) -> None:
        """Gives it packets, and hears what became of them, until it ends."""
        loop = asyncio.get_running_loop()
        stream = asyncio.StreamReader()
        said, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), process.stdout
        )
        ended = asyncio.Event()
        assert process.stdin is not None  # noqa: S101 -- as it was started
        with contextlib.suppress(OSError, AttributeError):  # then it holds less
            fcntl.fcntl(process.stdin, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        pipe, _ = await loop.connect_write_pipe(lambda: _Ending(ended), process.stdin)
        try:
            pipe.write(framed(marshal.dumps(tuple(self._config))))
            self._done(Progress.unpacked(await read_frame(stream)))  # it is ready
            async with self._writing:
                pipe.write(b"".join(map(framed, self._waiting)))
                self._pipe = pipe
            if self._stopping:
                pipe.close()
            while True:
                self._done(Progress.unpacked(await read_frame(stream)))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # it has ended
        finally:
            self._pipe = None
            process.kill()  # what it was given and has not read is written here
            pipe.close()
            said.close()
            await ended.wait()
            if self._waiting:
                self._some.set()


def _stdout() -> int:
    """A copy of standard output's descriptor, which a process of ours can inherit; -1 if closed."""
    try:
        return os.dup(sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):
        return -1


async def _in_thread(writer: DecisionWriter, packets: list[bytes]) -> Progress:
    """Writes packets in a thread.

    It is a daemon: a reader that has stopped reading must not keep this process alive.
    """
    loop = asyncio.get_running_loop()
    told: asyncio.Future[Progress] = loop.create_future()

    def tell(done: Progress) -> None:
        if not told.done():
            told.set_result(done)

    def write() -> None:
        done = writer.write(packets)
        with contextlib.suppress(RuntimeError):  # the loop may have ended
            loop.call_soon_threadsafe(tell, done)

    try:
        threading.Thread(target=write, name="decision-log", daemon=True).start()
    except RuntimeError as error:  # the system has none left
        lines = sum(map(decisions_in, packets))
        fault = f"the decision log cannot be written: {error}"
        return Progress(len(packets), 0, lines, fault)
    return await told


class _Ending(asyncio.Protocol):
    """Says when a pipe is closed."""

    def __init__(self, ended: asyncio.Event) -> None:
        self._ended = ended

    def connection_lost(self, _: Exception | None) -> None:
        """Called once, when nothing is left of it."""
        self._ended.set()
