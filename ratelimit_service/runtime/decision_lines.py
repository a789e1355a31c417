"""Lines of the decision log, of packets that the processes that decide have sent.

A line says what `decision_line.line_of` says of its decision alone. Lines are put together of parts
that are known by then, many at once: a part is made for each request and each caller that is new.
What must not live here: what a packet has (`decision_packets`), and where lines go
(`decision_log`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import Final

from ratelimit_service.runtime.decision_packets import Run, unpacked
from ratelimit_service.service.callers import REQUEST_ID, Headers, PackedOrigin
from ratelimit_service.service.decision_line import HashValue, asked_part, origin_part
from ratelimit_service.telemetry.parents import (
    TRACEPARENT,
    TRACESTATE,
    parent_of,
    request_id_of,
    usual_request_ids,
    usual_trace_ids,
)
from ratelimit_service.transport.h2.headers import HeaderReader

__all__ = ["DecisionLines"]

_MOST_ASKED: Final = 4_096
_MOST_REMEMBERED: Final = 512
"""So many requests are remembered, none with more bytes than that."""

_MOST_READERS: Final = 256
"""Callers' addresses of which it is known how their header blocks are alike."""

_NO_TABLE: Final = b"\x20"
"""A header block that says that from now on no block depends on another."""

_LINE_PARTS: Final = 4

_IDS: Final = (
    (REQUEST_ID, b',"request_id":"', usual_request_ids),
    (TRACEPARENT, b',"trace_id":"', usual_trace_ids),
)
_USUAL: Final = frozenset({REQUEST_ID, TRACEPARENT, TRACESTATE})
"""Headers that name a request or a trace; of B3's none is among them."""


class DecisionLines:
    """Makes lines of packets."""

    def __init__(self, hashed: HashValue | None) -> None:
        """`hashed` is what values are hashed with, as where the packets were made."""
        self._hashed = hashed
        self._asked = _AskedParts(hashed)
        self._readers: dict[str, HeaderReader] = {}
        """By callers' addresses: the blocks of one client are alike."""

    def of(self, packet: bytes) -> bytes:
        """The lines of a packet. Raises ValueError if it is of another version."""
        end, found = unpacked(packet)
        asked = self._asked.__getitem__
        ends = self._ends(found, end)
        lines: list[bytes] = []
        for each in found:
            if isinstance(each, str):
                lines.append(_coded(each))
                continue
            start, told, bodies, callers = each
            parts = [_coded(start)] * (_LINE_PARTS * len(bodies))
            parts[1::_LINE_PARTS] = map(asked, bodies)
            parts[2::_LINE_PARTS] = [_coded(told)] * len(bodies)
            parts[3::_LINE_PARTS] = map(ends.__getitem__, callers)
            lines += parts
        return b"".join(lines)

    def _ends(self, found: Sequence[str | Run], end: str) -> Mapping[PackedOrigin, bytes]:
        """What lines say of each caller of a packet, up to their end."""
        callers: dict[PackedOrigin, bytes] = {}
        for each in found:
            if not isinstance(each, str):
                callers.update(dict.fromkeys(each[3], b""))
        blocks: dict[str, list[bytes]] = {}
        for origin in callers:
            if isinstance(origin, str):
                callers[origin] = _coded(origin_part(origin, "", "", self._hashed) + end)
            elif isinstance(origin[1], bytes):
                blocks.setdefault(origin[0], []).append(origin[1])
            else:
                callers[origin] = self._end(origin[0], origin[1], end)
        for peer, its_blocks in blocks.items():
            origins = zip(repeat(peer), its_blocks, strict=False)
            callers.update(zip(origins, self._ends_of(peer, its_blocks, end), strict=True))
        return callers

    def _ends_of(self, peer: str, blocks: Sequence[bytes], end: str) -> Iterator[bytes]:
        """The same of one client's calls with these header blocks."""
        reader = self._reader(peer)
        columns = reader.callers_columns(blocks)
        ids = None if columns is None else _usual_ids(columns, len(blocks))
        if ids is None:
            return (self._end(peer, reader.read_caller(block), end) for block in blocks)
        before, after = _coded(origin_part(peer, "", "", self._hashed)), _coded(end)
        return (before + each + after for each in ids)

    def _end(self, peer: str, headers: Headers, end: str) -> bytes:
        """The same of one call with these headers."""
        request_id, trace_id = request_id_of(headers), parent_of(headers).trace_id
        return _coded(origin_part(peer, request_id, trace_id, self._hashed) + end)

    def _reader(self, peer: str) -> HeaderReader:
        reader = self._readers.get(peer)
        if reader is None:
            reader = HeaderReader()
            reader.without_table()
            reader.read(_NO_TABLE)
            if len(self._readers) >= _MOST_READERS:
                self._readers.clear()
            self._readers[peer] = reader
        return reader


class _AskedParts(dict[bytes, bytes]):
    """What lines say of requests; it remembers some, since who is denied asks the same again."""

    def __init__(self, hashed: HashValue | None) -> None:
        self._hashed = hashed

    def __missing__(self, body: bytes) -> bytes:
        told = _coded(asked_part(body, self._hashed))
        if len(body) <= _MOST_REMEMBERED:
            if len(self) >= _MOST_ASKED:
                self.clear()
            self[body] = told
        return told


def _usual_ids(columns: Mapping[bytes, Sequence[bytes]], count: int) -> list[bytes] | None:
    """What lines say of the ids in so many calls' headers; None if one of these is unusual."""
    if columns.keys() - _USUAL:
        return None
    told = [b""] * count
    for name, field, usual in _IDS:
        if name in columns:
            ids = usual(columns[name])
            if ids is None:
                return None
            told = [said + field + each + b'"' for said, each in zip(told, ids, strict=True)]
    return told


def _coded(text: str) -> bytes:
    return text.encode("utf-8", "replace")
