"""Logs as files: opened, told apart by their first line, read line by line in bounded memory.

What must not live here: what a line says (`csv_log`, `envoy_log`, `decision_log`).
"""

from __future__ import annotations

import gzip
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from ratelimit_service.errors import RateLimitError
from ratelimit_service.replay.recorded import Recorded
from ratelimit_service.text import printable

__all__ = ["BadLineError", "Lines", "Log", "LogBytes", "LogError", "LogReader"]

_BLOCK: Final = 1 << 18
_MOST_LINE: Final = 1 << 20
"""Bytes. A longer line is not read."""

_MOST_TOLD: Final = 5
_GZIP: Final = b"\x1f\x8b"
_MARK: Final = "\ufeff"
_TOO_LONG: Final = "\0"


class LogError(RateLimitError):
    """A log, or what says how to read it, that cannot be used at all."""


class BadLineError(RateLimitError):
    """One line of a log that cannot be read. The text says why."""


class LogBytes(Protocol):
    """Bytes that can be read."""

    def read(self, size: int, /) -> bytes:
        """So many, or less at the end."""


class LogReader(Protocol):
    """Reads one kind of log."""

    def records(self, lines: Lines) -> Iterator[Recorded]:
        """The requests of a log. A line that cannot be read is told to `lines.bad`."""

    def notes(self) -> Iterator[str]:
        """What is to be known of the log, once it is read, before numbers are believed."""


class Lines:
    """The lines of one log, without their ends, and where the reader is."""

    def __init__(self, name: str, file: LogBytes) -> None:
        self.name = name
        self.number = 0
        """Of the line that came last, from 1."""
        self.unread = 0
        """Lines that could not be read."""
        self.told: list[str] = []
        """Of the first of these, where and why."""
        self._file = file
        self._lines = self._read()
        self.first = self._first()

    def __iter__(self) -> Iterator[str]:
        """Every line from the first on, once."""
        if self.number:
            yield self.first
        for line in self._lines:
            self.number += 1
            if line == _TOO_LONG:
                self.bad(f"the line is longer than {_MOST_LINE} bytes")
            else:
                yield line

    def bad(self, why: str, number: int = 0) -> None:
        """Notes that a line, else the last one, cannot be read."""
        self.unread += 1
        if len(self.told) < _MOST_TOLD:
            self.told.append(f"{self.name}:{number or self.number}: {why}")

    def _first(self) -> str:
        """The first line that is not empty."""
        for line in self._lines:
            self.number += 1
            if line.strip(f"{_MARK} \t"):
                return line.removeprefix(_MARK)
        return ""

    def _read(self) -> Iterator[str]:
        """Cuts blocks into lines, whatever their length; what is no UTF-8 is replaced."""
        rest = b""
        while block := self._block():
            whole, end, rest = (rest + block).rpartition(b"\n")
            if end:
                yield from _texts(whole)
            if len(rest) > _MOST_LINE:
                rest = yield from self._skip()
        if rest:
            yield from _texts(rest)

    def _skip(self) -> Generator[str, None, bytes]:
        """Passes over the rest of a line; tells what has been read of the next one."""
        while block := self._block():
            _, end, after = block.partition(b"\n")
            if end:
                yield _TOO_LONG
                whole, end, rest = after.rpartition(b"\n")
                if end:
                    yield from _texts(whole)
                return rest
        yield _TOO_LONG
        return b""

    def _block(self) -> bytes:
        try:
            return self._file.read(_BLOCK)
        except (OSError, EOFError) as error:  # gzip's are of both kinds
            raise LogError(f"{self.name} cannot be read: {error}") from error


def _texts(lines: bytes) -> list[str]:
    text = lines.decode("utf-8", "replace")
    if "\r" in text:
        return [line.rstrip("\r") for line in text.split("\n")]
    return text.split("\n")


class Log:
    """A log that is open: a file, a compressed one, or standard input (`-`)."""

    def __init__(
        self, path: str, stack: ExitStack, reader: Callable[[str, str], LogReader]
    ) -> None:
        """`reader` gives what reads a log, by its name and first line. Raises LogError."""
        self.name = "standard input" if path == "-" else printable(path)
        try:
            raw: BinaryIO
            if path == "-":
                raw, self.size = sys.stdin.buffer, 0
            else:
                raw = stack.enter_context(Path(path).open("rb"))  # noqa: SIM115 -- the stack closes it
                self.size = Path(path).stat().st_size
            self._raw = raw
            compressed = raw.peek(2)[:2] == _GZIP  # type: ignore[attr-defined]  # it is buffered
        except OSError as error:
            raise LogError(f"{self.name} cannot be read: {error.strerror}") from error
        if compressed:
            file = gzip.open(raw, "rb")  # noqa: SIM115
            self.lines = Lines(self.name, stack.enter_context(file))
        else:
            self.lines = Lines(self.name, raw)
        if not self.lines.first:
            raise LogError(f"{self.name} is empty: there is nothing to replay")
        self._reader = reader(self.name, self.lines.first)

    @property
    def done(self) -> int:
        """How many of its bytes were read; 0 of a pipe, where nobody knows how many come."""
        return self._raw.tell() if self.size else 0

    def records(self) -> Iterator[Recorded]:
        """The requests in it, in the order of its lines."""
        return self._reader.records(self.lines)

    def notes(self) -> Iterator[str]:
        """What is to be known of it, once it is read."""
        return self._reader.notes()
