"""Requests as rows of CSV: `time`, `domain`, `hits`, and a column for each entry's key.

The header names the columns. `time` is of RFC 3339; the other columns are keys of entries, in
their order. An empty cell is no entry. Without a column `hits` each request asks for one hit.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from typing import Final

from ratelimit_service.model import MAX_ADDEND, Descriptor, Entry, Request
from ratelimit_service.rule_lab.replay.logs import BadLineError, Lines, LogError, texts_of
from ratelimit_service.rule_lab.replay.recorded import Block, Moments, RecordedRequest, RequestCache

__all__ = ["Cells", "CsvLog"]

Cells = str | tuple[str, ...]
"""What stands behind the time, in a line without quotes; else all cells but the time."""

_MOST_LINE: Final = 1 << 17
"""Characters. The csv module takes no cell that is longer."""


class CsvLog:
    """Reads such a log; the header is its first line."""

    def __init__(self, name: str, header: str, cache: RequestCache[Cells] | None = None) -> None:
        """Raises LogError for a header that cannot be right.

        `cache` is shared with other logs of this header that are replayed together.
        """
        self.columns = [column.strip() for column in next(csv.reader([header]), [])]
        for needed in ("time", "domain"):
            if self.columns.count(needed) != 1:
                raise LogError(
                    f"{name}:1: the header of a CSV needs one column {needed!r}: "
                    "time,domain, then a column for each key of the descriptor; "
                    f"it has {', '.join(self.columns) or 'none'}"
                )
        if "" in self.columns or self.columns.count("hits") > 1:
            raise LogError(f"{name}:1: a column of the header has no name, or hits is there twice")
        self._time = self.columns.index("time")
        self._rest = [column for column in self.columns if column != "time"]
        self._cache = cache or RequestCache[Cells]()
        self._moments = Moments()

    def blocks(self, lines: Lines) -> Iterator[Block]:
        """The requests of all rows; a row that makes no sense is told to `lines`."""
        # A cell in quotes may go on in the next line.
        # A generator expression would read the whole log first where this is compiled.
        rows = csv.reader(map("{}\n".format, lines))
        next(rows)
        while (taken := lines.take()) is not None:
            texts = texts_of(taken)
            block = self._at_once(taken, texts)
            if block is not None:
                lines.passed(len(texts))
            else:
                lines.give_back(taken)
                block = self._one_by_one(rows, lines, lines.number + len(texts))
            yield block

    def _at_once(self, taken: bytes, texts: Sequence[str]) -> Block | None:
        """The requests of lines that are a sound row each; None if one might not be.

        `taken` are the same lines as bytes.
        """
        try:
            if self._time == 0 and b'"' not in taken and b"\r" not in taken:
                times, requests = self._split(texts)
            else:
                times, requests = self._parsed(texts)
        except (BadLineError, ValueError, csv.Error):
            return None
        return Block(times, requests, [None] * len(times))

    def _split(self, texts: Sequence[str]) -> tuple[list[int], list[RecordedRequest]]:
        """The same of lines without quotes that begin with the time. Raises what `_parsed` does."""
        times: list[str] = []
        requests: list[RecordedRequest] = []
        cache = self._cache.requests
        for text in texts:
            time, _, rest = text.partition(",")
            request = cache.get(rest)
            if request is None:
                cells = rest.split(",")
                if len(cells) != len(self._rest) or len(text) > _MOST_LINE:
                    raise BadLineError("the line is no row")
                request = self._cache.add(rest, len(rest), self._request(cells))
            times.append(time)
            requests.append(request)
        return self._moments.all_us(times), requests

    def _parsed(self, texts: Sequence[str]) -> tuple[list[int], list[RecordedRequest]]:
        """The same of any lines. Raises BadLineError, ValueError or csv.Error if one is no row."""
        # If the last line's cell goes on, it takes the empty line that is added here.
        rows = list(csv.reader([*texts, ""]))
        if rows.pop() or len(rows) != len(texts) or set(map(len, rows)) != {len(self.columns)}:
            raise BadLineError("a line is no row")
        times = self._moments.all_us([row.pop(self._time) for row in rows])
        cache = self._cache.requests
        keys = list(map(tuple, rows))
        return times, [cache.get(key) or self._parsed_request(key) for key in keys]

    def _parsed_request(self, cells: tuple[str, ...]) -> RecordedRequest:
        return self._cache.add(cells, sum(map(len, cells)), self._request(cells))

    def _one_by_one(self, rows: Iterator[list[str]], lines: Lines, end: int) -> Block:
        """The requests of rows that begin before the end of a line."""
        columns = len(self.columns)
        block = Block([], [], [])
        while lines.number < end:
            try:
                row = next(rows, None)
                if row is None:
                    break
                if len(row) != columns:
                    if row:
                        lines.bad(f"{len(row)} cells, but the header has {columns}")
                    continue
                at_us = self._moments.moment_us(row.pop(self._time))
                key = tuple(row)
                request = self._cache.requests.get(key) or self._parsed_request(key)
                block.add(at_us, request)
            except ValueError as error:
                lines.bad(f"time must be as in 2026-01-31T14:03:07Z: {error}")
            except BadLineError as error:
                lines.bad(str(error))
            except csv.Error:
                lines.bad(
                    f"the line is no row of a CSV: a cell has more than {_MOST_LINE:,} characters, "
                    "or a line end and no quotes"
                )
        return block

    def notes(self) -> Iterator[str]:
        """Nothing is to be known of the log as a whole."""
        return iter(())

    def _request(self, cells: Sequence[str]) -> Request:
        domain, addend = "", None
        entries = []
        for column, cell in zip(self._rest, cells, strict=True):
            if column == "domain":
                domain = cell
            elif column == "hits":
                addend = _addend(cell)
            elif cell:
                entries.append(Entry(column, cell))
        if not domain:
            raise BadLineError("domain is empty")
        if not entries:
            raise BadLineError("there is no entry: all cells of keys are empty")
        return Request(domain, (Descriptor(tuple(entries), hits_addend=addend),))


def _addend(cell: str) -> int | None:
    """The number of hits; nothing is 1."""
    if not cell:
        return None
    if not (cell.isascii() and cell.isdigit() and int(cell) <= MAX_ADDEND):
        raise BadLineError(f"hits must be a number up to {MAX_ADDEND}, not {cell[:20]!r}")
    return int(cell)
