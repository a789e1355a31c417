"""Logs as files: opened, told apart by their first line, read block by block in bounded memory.

What must not live here: what a line says (`csv_log`, `envoy_log`, `decision_log`).
"""

from __future__ import annotations

import gzip
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from ratelimit_service.errors import RateLimitError
from ratelimit_service.replay.recorded import Block
from ratelimit_service.text import printable

__all__ = ["BadLineError", "Lines", "Log", "LogBytes", "LogError", "LogReader"]

_BLOCK: Final = 1 << 18
_MOST_LINE: Final = 1 << 20
"""Bytes. A longer line is not read."""

_MOST_TOLD: Final = 5
_GZIP: Final = b"\x1f\x8b"
_MARK: Final = "\ufeff"
_TOO_LONG: Final = ["\0"]
"""Stands for a line that is too long."""


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

    def blocks(self, lines: Lines) -> Iterator[Block]:
        """The requests of a log. A line that cannot be read is told to `lines.bad`."""

    def notes(self) -> Iterator[str]:
        """What is to be known of the log, once it is read, before numbers are believed."""


class Lines:
    """The lines of one log, without their ends, and where the reader is."""

    def __init__(self, name: str, file: LogBytes) -> None:
        self.name = name
        self.number = 0
        """Of the line that was handed out last, from 1."""
        self.unread = 0
        """Lines that could not be read."""
        self.told: list[str] = []
        """Of the first of these, where and why."""
        self._file = file
        self._blocks = self._read()
        self._block: list[str] = []
        self._at = 0
        """Of the block's lines the first that was not handed out."""
        self.first = self._first()
        """The first line that is not empty. It is the first that is handed out."""

    def __iter__(self) -> Iterator[str]:
        """Line after line; it begins where the last one ended that was handed out."""
        while self._more():
            while self._at < len(self._block):
                line = self._block[self._at]
                self._at += 1
                self.number += 1
                yield line

    def take(self) -> list[str]:
        """The next lines, as many as were read at once; none at the end."""
        if not self._more():
            return []
        taken = self._block[self._at :] if self._at else self._block
        self._at = len(self._block)
        self.number += len(taken)
        return taken

    def give_back(self, taken: Sequence[str]) -> None:
        """Hands out the lines that were taken last again."""
        self._at -= len(taken)
        self.number -= len(taken)

    def _more(self) -> bool:
        """Whether a line is left; one that is too long is told."""
        while self._at == len(self._block):
            block = next(self._blocks, None)
            if block is None:
                return False
            self._block, self._at = block, 0
            if block is _TOO_LONG:
                self._at = 1
                self.number += 1
                self.bad(f"the line is longer than {_MOST_LINE} bytes")
        return True

    def bad(self, why: str, number: int = 0) -> None:
        """Notes that a line, else the last one, cannot be read."""
        self.unread += 1
        if len(self.told) < _MOST_TOLD:
            self.told.append(f"{self.name}:{number or self.number}: {why}")

    def _first(self) -> str:
        for line in self:
            if line.strip(f"{_MARK} \t"):
                first = line.removeprefix(_MARK)
                self.give_back([line])
                self._block[self._at] = first
                return first
        return ""

    def _read(self) -> Iterator[list[str]]:
        """Cuts blocks into lines, whatever their length; what is no UTF-8 is replaced."""
        rest = b""
        while block := self._bytes():
            whole, end, rest = (rest + block).rpartition(b"\n")
            if end:
                yield _texts(whole)
            if len(rest) > _MOST_LINE:
                yield _TOO_LONG
                rest = self._skip()
        if rest:
            yield _texts(rest.removesuffix(b"\n"))

    def _skip(self) -> bytes:
        """Passes over the rest of a line; tells what has been read behind it."""
        while block := self._bytes():
            _, end, after = block.partition(b"\n")
            if end:
                return after
        return b""

    def _bytes(self) -> bytes:
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

    def blocks(self) -> Iterator[Block]:
        """The requests in it, in the order of its lines."""
        return self._reader.blocks(self.lines)

    def notes(self) -> Iterator[str]:
        """What is to be known of it, once it is read."""
        return self._reader.notes()
