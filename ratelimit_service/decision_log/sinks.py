"""Where lines of the decision log go: a file that is rotated, standard output, or the system's log.

What must not live here: what a line says (`line`), and who writes (`writer`).
"""

from __future__ import annotations

import errno
import os
import select
import socket
import stat
from pathlib import Path
from typing import Final

from ratelimit_service.eventloop.clock import Clock, now_us
from ratelimit_service.files.whole_file import append_whole
from ratelimit_service.settings import Settings

__all__ = ["DecisionLogFile", "Stdout", "Syslog", "sink_of"]

_SYSLOG: Final = "/dev/log"
_SYSLOG_INFO: Final = b"<134>ratelimit: "
"""Facility local0, severity info, and the program's name."""


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
        """Appends lines; what a full disk has taken of them is taken back.

        Returns 0. Raises OSError.
        """
        if self._file >= 0 and self._is_replaced():
            self.close()
        self.open()
        status = os.fstat(self._file)
        period = self._clock() // self._every_us
        full = status.st_size + len(data) > self._most_bytes
        if stat.S_ISREG(status.st_mode) and status.st_size and (full or period != self._period):
            self._rotate()
        self._period = period
        append_whole(self._file, data)
        return 0

    def close(self) -> None:
        """Closes the file; the next line opens it again."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def open(self) -> None:
        """Opens the file, unless it is open. Raises OSError."""
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


class Stdout:
    """Standard output, or a copy of it. A slow reader holds up only the writer."""

    def __init__(self, file: int) -> None:
        """`file` is its descriptor, -1 if it is closed."""
        self._file = file

    def open(self) -> None:
        """Raises OSError if it is closed."""
        if self._file < 0:
            raise OSError(errno.EBADF, "standard output is closed")

    def write(self, data: bytes) -> int:
        """Writes a few whole lines at a time: a writer that is killed leaves no half one.

        Returns 0. Raises OSError.
        """
        self.open()
        at = 0
        while at < len(data):
            stop = data.rfind(b"\n", at, at + select.PIPE_BUF) + 1 or data.find(b"\n", at) + 1
            self._write(memoryview(data)[at : stop or len(data)])
            at = stop or len(data)
        return 0

    def _write(self, rest: memoryview) -> None:
        while rest:
            try:
                rest = rest[os.write(self._file, rest) :]
            except BlockingIOError:  # a process that shares it has made it non-blocking
                ready = select.poll()
                ready.register(self._file, select.POLLOUT)
                ready.poll()

    def close(self) -> None:
        """Leaves it open: it is the process's."""


class Syslog:
    """The system's log, a message for each line."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    def open(self) -> socket.socket:
        """Connects to it. Raises OSError."""
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.connect(_SYSLOG)
        return self._socket

    def write(self, data: bytes) -> int:
        """Sends each line; returns how many are too long for its socket. Raises OSError."""
        system = self.open()
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
        """Closes the socket; the next line connects again."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def sink_of(settings: Settings, stdout: int) -> DecisionLogFile | Stdout | Syslog:
    """Where lines go by these settings; `stdout` is as in `Stdout`."""
    if settings.decision_log == "stdout":
        return Stdout(stdout)
    if settings.decision_log == "syslog":
        return Syslog()
    return DecisionLogFile(
        settings.decision_log,
        settings.decision_log_max_bytes,
        settings.decision_log_rotate_us,
        settings.decision_log_files,
    )
