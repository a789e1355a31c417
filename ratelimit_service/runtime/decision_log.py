"""The decision log: one writer for all workers, in a thread, so that no disk holds anybody up.

Lines that cannot be written are dropped and counted. What must not live here: what a line says
(`service.decision_line`), and which decisions are written down (`decision_feed`).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import select
import socket
import stat
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, Protocol

from ratelimit_service.clock import Clock, now_us
from ratelimit_service.health import Health
from ratelimit_service.observer import Stats
from ratelimit_service.service.decision_key import read_key
from ratelimit_service.settings import Settings
from ratelimit_service.text import reason

__all__ = ["DecisionLogFile", "DecisionLogWriter", "Sink"]

log = logging.getLogger(__name__)

_MOST_WAITING: Final = 8 << 20
"""Bytes that wait to be written; what comes beyond is dropped."""

_MOST_AT_ONCE: Final = 1 << 18
"""Bytes that are written at once; at least what was handed over at once."""

_GATHER_SECONDS: Final = 0.05
"""After a write more is gathered for so long: to wake a thread costs as much as many lines."""

_RETRY_SECONDS: Final = 1.0
_LAST_SECONDS: Final = 1.0
"""For so long a writer that ends waits for what is still to be written."""

_SYSLOG: Final = "/dev/log"
_SYSLOG_INFO: Final = b"<134>ratelimit: "
"""Facility local0, severity info, and the program's name."""


class Sink(Protocol):
    """Where lines go."""

    def open(self) -> None:
        """Makes ready to write. May wait. Raises OSError, or ValueError once it is closed."""

    def write(self, data: bytes) -> int:
        """Writes whole lines; returns how many it left out, as too long for it.

        May wait. Raises OSError, or ValueError once it is closed.
        """

    def close(self) -> None:
        """Lets go of it."""


class DecisionLogFile:
    """A file that is rotated: `PATH` is the newest, then `PATH.1`, and so on."""

    def __init__(
        self, path: str, most_bytes: int, every_us: int, files: int, clock: Clock = now_us
    ) -> None:
        """A file holds so many bytes and one such time; beside the newest there are `files`."""
        self._path = Path(path)
        self._most_bytes = most_bytes
        self._every_us = every_us
        self._files = files
        self._clock = clock
        self._file = -1
        self._period = 0

    def write(self, data: bytes) -> int:
        """Appends lines; what a full disk has taken of them is taken back."""
        if self._file >= 0 and self._is_replaced():
            self.close()
        self.open()
        found = os.fstat(self._file)
        period = self._clock() // self._every_us
        full = found.st_size + len(data) > self._most_bytes
        if stat.S_ISREG(found.st_mode) and found.st_size and (full or period != self._period):
            self._rotate()
        self._period = period
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError:
            if taken := len(data) - len(rest):
                with contextlib.suppress(OSError):
                    self._take_back(taken)
            raise
        return 0

    def close(self) -> None:
        """Closes the file; the next line opens it again."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def open(self) -> None:
        """Opens the file, unless it is open."""
        if self._file >= 0:
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(self._path, flags, 0o640)
        self._period = os.fstat(self._file).st_mtime_ns // 1_000 // self._every_us

    def _is_replaced(self) -> bool:
        """Whether another file, or none, is at our path.

        Somebody else rotates it then: the program that follows ours in a restart, or logrotate.
        """
        try:
            return not os.path.samestat(os.fstat(self._file), self._path.stat())
        except FileNotFoundError:
            return True

    def _take_back(self, size: int) -> None:
        """Cuts off the last bytes that we wrote, unless others have written behind them."""
        end = os.lseek(self._file, 0, os.SEEK_CUR)
        if os.fstat(self._file).st_size == end:
            os.ftruncate(self._file, end - size)

    def _rotate(self) -> None:
        self.close()
        for number in range(self._files, 0, -1):
            older = self._numbered(number - 1)
            if older.exists():
                older.replace(self._numbered(number))
        if not self._files:
            self._path.unlink(missing_ok=True)
        self.open()

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}") if number else self._path


class _Stdout:
    """Standard output. A slow reader holds up nobody but the writer's thread."""

    def open(self) -> None:
        """Nothing is to be opened; it may be closed."""
        sys.stdout.fileno()

    def write(self, data: bytes) -> int:
        file = sys.stdout.fileno()
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(file, rest) :]
            except BlockingIOError:  # a process that shares it has made it non-blocking
                ready = select.poll()
                ready.register(file, select.POLLOUT)
                ready.poll()
        return 0

    def close(self) -> None:
        """Leaves it open: it is the process's."""


class _Syslog:
    """The system's log, a message for each line."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    def open(self) -> None:
        self._connected()

    def _connected(self) -> socket.socket:
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.connect(_SYSLOG)
        return self._socket

    def write(self, data: bytes) -> int:
        system = self._connected()
        too_long = 0
        for line in data.splitlines():
            try:
                system.send(_SYSLOG_INFO + line)
            except OSError as error:
                if error.errno != errno.EMSGSIZE:
                    raise
                too_long += 1
        return too_long

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _sink(settings: Settings) -> Sink:
    if settings.decision_log == "stdout":
        return _Stdout()
    if settings.decision_log == "syslog":
        return _Syslog()
    return DecisionLogFile(
        settings.decision_log,
        settings.decision_log_max_bytes,
        settings.decision_log_rotate_us,
        settings.decision_log_files,
    )


class DecisionLogWriter:
    """Writes lines in a thread of its own."""

    def __init__(
        self,
        settings: Settings,
        stats: Stats,
        health: Health,
        sink: Sink | None = None,
    ) -> None:
        """Raises SettingsError if the key for values cannot be read."""
        read_key(settings.decision_log_key_file)
        self._wanted = bool(settings.decision_log)
        self._stats = stats
        self._health = health
        self._sink = sink or _sink(settings)
        self._waiting: deque[tuple[bytes, int]] = deque()
        self._size = 0
        self._some = threading.Condition()
        self._ending = False
        self._idle = False
        """Whether the thread waits for something to write."""
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._telling = False
        self._written = self._failed = 0
        """Lines, since they were last told to the stats."""
        self._fault = ""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[DecisionLogWriter]:
        """Writes until the end of the block; a fault is known at once, also before any line."""
        self._loop = asyncio.get_running_loop()
        if self._wanted:
            with self._some:
                self._begin()
                self._tell()
        try:
            yield self
        finally:
            self.stop()

    def put(self, data: bytes, lines: int) -> bool:
        """Takes lines to be written; False if there are too many already. Never waits."""
        if not self._wanted:
            return False
        with self._some:
            self._tell()
            if self._ending or self._size + len(data) > _MOST_WAITING:
                return False
            if self._thread is None and not self._begin():
                return False
            self._waiting.append((data, lines))
            self._size += len(data)
            if self._idle:
                self._some.notify()
        return True

    @property
    def busy(self) -> bool:
        """Whether lines wait to be written."""
        return bool(self._waiting)

    def _begin(self) -> bool:
        """Starts the thread; False if the system has none left."""
        # A daemon thread: a reader that has stopped reading must not keep this process alive.
        thread = threading.Thread(target=self._write_all, name="decision-log", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            self._fault = f"the decision log cannot be written: {error}"
            return False
        self._thread = thread
        return True

    def take(self, data: bytes) -> None:
        """Takes lines of a worker, and counts those for which there is no room."""
        lines = data.count(b"\n")
        if not self.put(data, lines):
            self._stats.decision_log["dropped_slow"] += lines

    def stop(self) -> None:
        """Ends, once all is written or it has taken too long. A second call does nothing."""
        with self._some:
            thread, self._thread = self._thread, None
            self._ending = True
            self._some.notify()
        if thread is not None:
            thread.join(_LAST_SECONDS)
        with self._some:
            self._tell()
            if rest := sum(lines for _, lines in self._waiting):
                self._stats.decision_log["dropped_slow"] += rest
                self._waiting.clear()

    def _tell(self) -> None:
        """Adds to the stats, in the thread that they belong to, what the writer has done."""
        if self._written:
            self._stats.decision_log["written"] += self._written
        if self._failed:
            self._stats.decision_log["dropped_error"] += self._failed
        self._written = self._failed = 0
        if self._fault:
            self._health.degrade("decision_log", self._fault)
        else:
            self._health.recover("decision_log")

    def _tell_soon(self) -> None:
        """Has what the thread has done told; called by the thread."""
        if self._loop is not None and not self._telling:
            self._telling = True
            with contextlib.suppress(RuntimeError):  # it may have ended
                self._loop.call_soon_threadsafe(self._tell_now)

    def _tell_now(self) -> None:
        with self._some:
            self._telling = False
            self._tell()

    def _write_all(self) -> None:
        try:
            self._sink.open()
        except (OSError, ValueError) as error:
            self._failed_with(error, 0)
        while True:
            with self._some:
                while not self._waiting and not self._ending:
                    self._idle = True
                    self._some.wait()
                    self._idle = False
                if not self._waiting:
                    self._sink.close()
                    return
                data, lines = self._next()
            try:
                left_out = self._sink.write(data)
            except (OSError, ValueError) as error:
                self._failed_with(error, lines)
            else:
                with self._some:
                    self._written += lines - left_out
                    self._failed += left_out
                    self._fault = ""
                    self._tell_soon()
                    if not self._ending and not self._waiting:
                        self._some.wait_for(self._is_ending, _GATHER_SECONDS)

    def _next(self) -> tuple[bytes, int]:
        """Takes some of what waits, and how many lines it is."""
        waiting, (data, lines) = self._waiting, self._waiting.popleft()
        if waiting and len(data) < _MOST_AT_ONCE:
            parts = [data]
            size = len(data)
            while waiting and size + len(waiting[0][0]) <= _MOST_AT_ONCE:
                data, more = waiting.popleft()
                parts.append(data)
                size += len(data)
                lines += more
            data = b"".join(parts)
        self._size -= len(data)
        return data, lines

    def _failed_with(self, error: Exception, lines: int) -> None:
        """Drops lines, and waits a little before it tries the next ones."""
        with contextlib.suppress(OSError):
            self._sink.close()
        with self._some:
            self._failed += lines
            self._fault = f"the decision log cannot be written: {reason(error)}"
            self._tell_soon()
            if not self._ending:
                self._some.wait_for(self._is_ending, _RETRY_SECONDS)

    def _is_ending(self) -> bool:
        return self._ending
