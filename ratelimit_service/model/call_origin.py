"""Who makes calls: their addresses, and those of their headers that name a request or a trace.

Nobody reads any of it unless somebody listens. What must not live here: what the headers mean
(`telemetry.parents`), and where they stand in a call (`transport`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

__all__ = ["CALLER_HEADERS", "REQUEST_ID", "CallOrigin", "Headers", "PackedHeaders"]

Headers = Sequence[tuple[bytes, bytes]]
"""Those headers of a call that tell something of its caller: names in small letters, and values."""

PackedHeaders = bytes | tuple[tuple[bytes, bytes], ...]
"""What a call's headers tell of its caller, in a few plain values: the header block or the headers;
nothing if none of them tells anything."""

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

    def __init__(
        self,
        peer: str = "",
        headers: Headers = (),
        block: bytes = b"",
        read: Callable[[bytes], Headers] | None = None,
    ) -> None:
        """With `read` the headers are read from a block, when somebody asks for them.

        The block must be known to be well-formed, and to depend on no other.
        """
        self.peer = peer
        self._headers = headers
        self._read = read
        self._block = block

    def packed(self) -> PackedHeaders:
        """The headers for another process, which can read the block by itself."""
        return tuple(self._headers) if self._read is None else self._block

    @property
    def headers(self) -> Headers:
        """Those headers of the call that are among `CALLER_HEADERS`."""
        read = self._read
        if read is not None:
            self._headers, self._read, self._block = read(self._block), None, b""
        return self._headers
