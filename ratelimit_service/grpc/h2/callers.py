"""Who makes the calls of one connection, for whoever traces or logs them.

What must not live here: how header blocks are read (`headers`).
"""

from __future__ import annotations

from ratelimit_service.grpc.h2.headers import HeaderReader
from ratelimit_service.model.call_origin import CallOrigin

__all__ = ["Callers"]


class Callers:
    """What header blocks tell of callers. Most clients send the same block with every call."""

    def __init__(self, headers: HeaderReader) -> None:
        self._headers = headers
        self.peer = ""
        """The address of the client; "" for a Unix socket."""
        self.wanted = False
        """Whether somebody asks who makes calls."""
        self._nobody = CallOrigin()
        """Who makes the calls that tell nothing but the peer's address."""
        self._latest_block = b""
        self._latest = CallOrigin()

    def of(self, block: bytes) -> CallOrigin:
        """Who made a call with this header block, which has been recalled."""
        if block == self._latest_block:
            return self._latest
        if self._headers.is_nameless(block):
            if self._nobody.peer != self.peer:
                self._nobody = CallOrigin(self.peer)
            return self._nobody
        origin = CallOrigin(self.peer, (), block, self._headers.caller_headers)
        self._latest_block, self._latest = block, origin
        return origin
