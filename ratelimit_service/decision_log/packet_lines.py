"""Lines of the decision log, of packets that the processes that decide have sent.

A line says what `line.line_of` says of its decision alone. Lines are put together of parts
that are known by then, many at once: a part is made for each request and each caller that is new.
What must not live here: what a packet has (`packets`), and where lines go
(`sinks`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress, islice, repeat
from typing import Final

from ratelimit_service.decision_log.line import HashValue, asked_part, origin_part
from ratelimit_service.decision_log.packets import Run, unpacked
from ratelimit_service.grpc.h2.headers import HeaderReader
from ratelimit_service.service.callers import REQUEST_ID, Headers, PackedHeaders
from ratelimit_service.telemetry.parents import (
    TRACEPARENT,
    TRACESTATE,
    parent_of,
    request_id_of,
    usual_request_ids,
    usual_trace_ids,
)

__all__ = ["DecisionLines"]

_MOST_ASKED: Final = 4_096
_MOST_REMEMBERED: Final = 512
"""So many requests are remembered, none with more bytes than that."""

_MOST_READERS: Final = 256
"""Callers' addresses of which it is known how their header blocks are alike."""

_NO_TABLE: Final = b"\x20"
"""A header block that says that from now on no block depends on another."""

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
            start, told, bodies, peers, _ = each
            count = len(bodies)
            peer, *others = set(peers)
            columns: list[Iterable[bytes]] = [
                [_coded(start)] * count,
                map(asked, bodies),
                [_coded(told)] * count,
            ]
            if others:
                columns.append([b"".join(map(next, ends[peer])) for peer in peers])
            else:
                columns += [islice(part, count) for part in ends[peer]]
            parts = [b""] * (count * len(columns))
            for place, column in enumerate(columns):
                parts[place :: len(columns)] = column
            lines += parts
        return b"".join(lines)

    def _ends(
        self, found: Sequence[str | Run], end: str
    ) -> Mapping[str, Sequence[Iterator[bytes]]]:
        """The parts of what lines say of their callers, up to their end, by addresses.

        Of each part there is one for each call of that caller, in the order of a packet.
        """
        callers: dict[str, list[PackedHeaders]] = {}
        for each in found:
            if not isinstance(each, str):
                *_, peers, headers = each
                names = set(peers)
                for peer in names:
                    own = compress(headers, map(peer.__eq__, peers)) if len(names) > 1 else headers
                    callers.setdefault(peer, []).extend(own)
        return {
            peer: [iter(part) for part in self._parts(peer, headers, end)]
            for peer, headers in callers.items()
        }

    def _parts(
        self, peer: str, headers: Sequence[PackedHeaders], end: str
    ) -> Sequence[Iterable[bytes]]:
        """The same of one client's calls."""
        if not any(headers):
            return (repeat(self._end(peer, (), end)),)
        blocks = [each for each in headers if isinstance(each, bytes)]
        if len(blocks) == len(headers):
            columns = self._reader(peer).callers_columns(blocks)
            ids = None if columns is None else _usual_ids(columns)
            if ids:
                before = origin_part(peer, "", "", self._hashed)
                return [repeat(_coded(before)), *ids, repeat(_coded(end))]
        known = {each: self._end(peer, self._read(peer, each), end) for each in set(headers)}
        return ([known[each] for each in headers],)

    def _read(self, peer: str, headers: PackedHeaders) -> Headers:
        """What one call's headers tell."""
        if isinstance(headers, bytes):
            return self._reader(peer).read_caller(headers) if headers else ()
        return headers

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


def _usual_ids(columns: Mapping[bytes, Sequence[bytes]]) -> list[Iterable[bytes]] | None:
    """The parts of what lines say of the ids in calls' headers; None if one id is unusual."""
    if columns.keys() - _USUAL:
        return None
    parts: list[Iterable[bytes]] = []
    for name, field, usual in _IDS:
        if name in columns:
            ids = usual(columns[name])
            if ids is None:
                return None
            parts += [repeat(field), ids, repeat(b'"')]
    return parts


def _coded(text: str) -> bytes:
    return text.encode("utf-8", "replace")
