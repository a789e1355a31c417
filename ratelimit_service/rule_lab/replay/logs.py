"""Logs as files: opened, told apart by their first line, read block by block in bounded memory.

What must not live here: what a line says (`csv_log`, `envoy_log`, `decision_log`).
"""

from __future__ import annotations

import gzip
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from ratelimit_service.errors import RateLimitError
from ratelimit_service.rule_lab.replay.recorded import Block
from ratelimit_service.text.display import printable

__all__ = [
    "BadLineError",
    "Lines",
    "Log",
    "LogBytes",
    "LogError",
    "LogReader",
    "by_parts",
    "texts_of",
]

_BLOCK: Final = 1 << 18
_MOST_LINE: Final = 1 << 20
"""Bytes. A longer line is not read."""

_MOST_PROBLEMS: Final = 5
_GZIP: Final = b"\x1f\x8b"
_MARK: Final = "\ufeff".encode()
_TOO_LONG: Final = b"\0 too long"
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
        self.problems: list[str] = []
        """Of the first of these, where and why."""
        self._file = file
        self._blocks = self._read()
        self._whole: bytes | None = None
        """Lines that were read and of which none was handed out."""
        self._texts: list[str] = []
        """Else the lines, of which those up to this place were handed out."""
        self._at = 0
        self.first = self._first()
        """The first line that is not empty. It is the first that is handed out."""

    def __iter__(self) -> Iterator[str]:
        """Line after line; it begins where the last one ended that was handed out."""
        while self._more():
            if self._whole is not None:
                self._texts, self._at, self._whole = texts_of(self._whole), 0, None
            while self._at < len(self._texts):
                line = self._texts[self._at]
                self._at += 1
                self.number += 1
                yield line

    def take(self) -> bytes | None:
        """The next lines, as many as were read at once (`texts_of`); None at the end.

        Between two of them is a line feed. Who takes them says then how many have `passed`, or
        gives them back.
        """
        if not self._more():
            return None
        if self._whole is not None:
            taken, self._whole = self._whole, None
        else:
            taken = "\n".join(self._texts[self._at :]).encode()
            self._at = len(self._texts)
        return taken

    def passed(self, lines: int) -> None:
        """So many lines were taken, which count as handed out now."""
        self.number += lines

    def give_back(self, taken: bytes) -> None:
        """Hands out the lines that were taken last again."""
        self._whole = taken

    def _more(self) -> bool:
        """Whether a line is left; one that is too long is told."""
        while self._whole is None and self._at == len(self._texts):
            whole = next(self._blocks, None)
            if whole is None:
                return False
            if whole is _TOO_LONG:
                self.number += 1
                self.bad(f"the line is longer than {_MOST_LINE} bytes")
            else:
                self._whole = whole
        return True

    def bad(self, why: str, number: int = 0) -> None:
        """Notes that a line, else the last one, cannot be read."""
        self.unread += 1
        if len(self.problems) < _MOST_PROBLEMS:
            self.problems.append(f"{self.name}:{number or self.number}: {why}")

    def _first(self) -> str:
        if self._more() and self._whole is not None:
            self._whole = self._whole.removeprefix(_MARK)
        for line in self:
            if line.strip(" \t"):
                self._at -= 1
                self.number -= 1
                return line
        return ""

    def _read(self) -> Iterator[bytes]:
        """Cuts blocks into whole lines, whatever their length, which end in a line feed alone."""
        rest = b""
        while block := self._bytes():
            whole, end, rest = (rest + block).rpartition(b"\n")
            if end:
                yield _cleaned(whole)
            if len(rest) > _MOST_LINE:
                yield _TOO_LONG
                rest = self._skip()
        if rest:
            yield _cleaned(rest)

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
        except (OSError, EOFError, zlib.error) as error:  # gzip's are of all kinds
            raise LogError(f"{self.name} cannot be read: {error}") from error


def _cleaned(whole: bytes) -> bytes:
    """Lines without carriage returns at their ends."""
    if b"\r" not in whole:
        return whole
    return b"\n".join([line.rstrip(b"\r") for line in whole.split(b"\n")])


def texts_of(taken: bytes) -> list[str]:
    """The lines that were taken, as text; what is no UTF-8 is replaced."""
    return taken.decode("utf-8", "replace").split("\n")


_PART: Final = 16


def by_parts(
    lines: Lines,
    at_once: Callable[[Sequence[bytes]], Block | None],
    one_by_one: Callable[[Sequence[str], int], Iterator[Block]],
) -> Iterator[Block]:
    """The requests of lines that are read together where that can be, else one by one.

    `at_once` gets lines with their line feeds, and gives None if one of them is not as usual. Then
    they are read in parts of a few lines, so that such a line costs only its neighbours.
    `one_by_one` is told the number of the first line.
    """
    while (taken := lines.take()) is not None:
        # A stream finds the ends of lines in less than half of the time that `split` takes.
        block_lines = BytesIO(taken + b"\n").readlines()
        first = lines.number + 1
        lines.passed(len(block_lines))
        block = at_once(block_lines)
        if block is not None:
            yield block
            continue
        for start in range(0, len(block_lines), _PART):
            few = block_lines[start : start + _PART]
            block = at_once(few)
            if block is not None:
                yield block
            else:
                yield from one_by_one(texts_of(b"".join(few)[:-1]), first + start)


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
