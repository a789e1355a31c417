"""Who makes calls: their addresses, and those of their headers that name a request or a trace.

Nobody reads any of it unless somebody listens. What must not live here: what the headers mean
(`telemetry.parents`), and where they stand in a call (`transport`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

__all__ = ["CALLER_HEADERS", "REQUEST_ID", "CallOrigin", "Headers"]

Headers = Sequence[tuple[bytes, bytes]]
"""Those headers of a call that tell something of its caller: names in small letters, and values."""

REQUEST_ID: Final = b"x-request-id"

CALLER_HEADERS: Final = frozenset(
    {
        REQUEST_ID,
        b"traceparent",
        b"tracestate",
        b"b3",
        b"x-b3-traceid",
        b"x-b3-spanid",
        b"x-b3-sampled",
        b"x-b3-flags",
    }
)
"""Envoy's name of a request, W3C's Trace Context, and B3 with one header or several."""


class CallOrigin:
    """Who made one call. `peer` is the address at the other end, "" for a Unix socket."""

    __slots__ = ("_block", "_headers", "_read", "peer")

    def __init__(self, peer: str = "", headers: Headers = ()) -> None:
        self.peer = peer
        self._headers = headers
        self._read: Callable[[bytes], Headers] | None = None
        self._block = b""

    @classmethod
    def with_block(cls, peer: str, block: bytes, read: Callable[[bytes], Headers]) -> CallOrigin:
        """One whose headers are read from this block, which must be known to be well-formed.

        They are read when somebody asks for them: of most calls nobody does.
        """
        caller = cls(peer)
        caller._block, caller._read = block, read
        return caller

    @property
    def headers(self) -> Headers:
        """Those headers of the call that are among `CALLER_HEADERS`."""
        read = self._read
        if read is not None:
            self._headers, self._read, self._block = read(self._block), None, b""
        return self._headers
