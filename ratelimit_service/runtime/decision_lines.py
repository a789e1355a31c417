"""Lines of the decision log, of packets that the processes that decide have sent.

A line says what `decision_line.line_of` says of its decision alone. What must not live here: what a
packet has (`decision_packets`), and where lines go (`decision_log`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ratelimit_service.runtime.decision_packets import Run, unpacked
from ratelimit_service.service.callers import Headers, PackedOrigin
from ratelimit_service.service.decision_line import HashValue, asked_part, origin_part
from ratelimit_service.telemetry.parents import request_id_of, trace_id_of
from ratelimit_service.transport.h2.headers import HeaderReader

__all__ = ["DecisionLines"]

_MOST_ASKED: Final = 4_096
_MOST_REMEMBERED: Final = 512
"""So many requests are remembered, none with more bytes than that."""

_NO_TABLE: Final = b"\x20"
"""A header block that says that from now on no block depends on another."""


class DecisionLines:
    """Makes lines of packets."""

    def __init__(self, hashed: HashValue | None) -> None:
        """`hashed` is what values are hashed with, as where the packets were made."""
        self._hashed = hashed
        self._asked: dict[bytes, str] = {}
        """What lines say of requests; who is denied asks the same again."""
        self._reader = HeaderReader()
        self._reader.without_table()
        self._reader.read(_NO_TABLE)

    def of(self, packet: bytes) -> bytes:
        """The lines of a packet. Raises ValueError if it is of another version."""
        end, found = unpacked(packet)
        lines: list[str] = []
        asked, ask = self._asked.get, self._ask
        headers = self._headers(found)
        for each in found:
            if isinstance(each, str):
                lines.append(each)
                continue
            start, told, bodies, callers = each
            if callers.count(callers[0]) == len(callers):
                rest = f"{told}{self._caller(callers[0], headers)}{end}"
                lines += [f"{start}{asked(body) or ask(body)}{rest}" for body in bodies]
                continue
            lines += [
                f"{start}{asked(body) or ask(body)}{told}{self._caller(origin, headers)}{end}"
                for body, origin in zip(bodies, callers, strict=True)
            ]
        return "".join(lines).encode("utf-8", "replace")

    def _ask(self, body: bytes) -> str:
        """What a line says of a request that is not remembered."""
        told = asked_part(body, self._hashed)
        if len(body) <= _MOST_REMEMBERED:
            if len(self._asked) >= _MOST_ASKED:
                self._asked.clear()
            self._asked[body] = told
        return told

    def _headers(self, found: Sequence[str | Run]) -> Mapping[bytes, Headers]:
        """What the header blocks of a packet tell of who asked."""
        blocks: dict[bytes, None] = {}
        for each in found:
            if isinstance(each, str):
                continue
            callers = each[3]
            one = callers.count(callers[0]) == len(callers)
            for origin in callers[:1] if one else callers:
                if not isinstance(origin, str) and isinstance(origin[1], bytes):
                    blocks[origin[1]] = None
        if not blocks:
            return {}
        return dict(zip(blocks, self._reader.callers_headers(list(blocks)), strict=True))

    def _caller(self, origin: PackedOrigin, known: Mapping[bytes, Headers]) -> str:
        """What a line says of who asked."""
        if isinstance(origin, str):
            return origin_part(origin, "", "", self._hashed)
        peer, said = origin
        headers = known[said] if isinstance(said, bytes) else said
        request_id, trace_id = request_id_of(headers), trace_id_of(headers)
        return origin_part(peer, request_id, trace_id, self._hashed)
