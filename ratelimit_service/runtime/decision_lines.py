"""Lines of the decision log, of packets that the processes that decide have sent.

A line says what `decision_line.line_of` says of its decision alone. What must not live here: what a
packet has (`decision_packets`), and where lines go (`decision_log`).
"""

from __future__ import annotations

from typing import Final

from ratelimit_service.runtime.decision_packets import unpacked
from ratelimit_service.service.callers import Headers, PackedOrigin
from ratelimit_service.service.decision_line import HashValue, asked_part, origin_part
from ratelimit_service.telemetry.parents import parent_of, request_id_of
from ratelimit_service.transport.h2.headers import BlockError, HeaderReader

__all__ = ["DecisionLines"]

_NO_TABLE: Final = b"\x20"
"""A header block that says that from now on no block depends on another."""


class DecisionLines:
    """Makes lines of packets."""

    def __init__(self, hashed: HashValue | None) -> None:
        """`hashed` is what values are hashed with, as where the packets were made."""
        self._hashed = hashed
        self._reader = HeaderReader()
        self._reader.without_table()
        self._reader.read(_NO_TABLE)

    def of(self, packet: bytes) -> bytes:
        """The lines of a packet. Raises ValueError if it is of another version."""
        end, found = unpacked(packet)
        hashed = self._hashed
        lines: list[str] = []
        known: PackedOrigin = ""
        caller = ""
        for each in found:
            if isinstance(each, str):
                lines.append(each)
                continue
            start, told, bodies, callers = each
            for body, origin in zip(bodies, callers, strict=True):
                if origin != known:
                    known, caller = origin, self._caller(origin)
                lines.append(start + asked_part(body, hashed) + told + caller + end)
        return "".join(lines).encode("utf-8", "replace")

    def _headers(self, block: bytes) -> Headers:
        """Of a block that depends on no other. It is compared with the one before."""
        try:
            self._reader.read(block)
        except BlockError:
            return ()
        return self._reader.caller_headers(block)

    def _caller(self, origin: PackedOrigin) -> str:
        """What a line says of who asked."""
        if isinstance(origin, str):
            return origin_part(origin, "", "", self._hashed)
        peer, said = origin
        headers = self._headers(said) if isinstance(said, bytes) else said
        request_id, trace_id = request_id_of(headers), parent_of(headers).trace_id
        return origin_part(peer, request_id, trace_id, self._hashed)
