"""How much a round of the event loop reads, of all clients together.

To read 64 KB takes some 50 us, and the loop reads from everybody before it does anything else. So
hundreds of clients that send much at the same moment would keep all others waiting. Therefore all
connections are read into the same room, which is small once a round has read much: it takes what
somebody says who says little. Who has more to say is not read from again before that is handled.
What must not live here: whose bytes are handled next (`turns`).
"""

from __future__ import annotations

import asyncio
from typing import Final

__all__ = ["LITTLE_BYTES", "ROOM_BYTES", "ROUND_BYTES", "Reads"]

ROUND_BYTES: Final = 524_288
"""A round reads so much in large reads, from the connections that come first: half a
millisecond."""

ROOM_BYTES: Final = 65_536
"""So much is read from one connection at once."""

LITTLE_BYTES: Final = 2_048
"""Once a round has read much, so much is still read from each of the other connections: some ten
calls. Nothing is read from those of which so many bytes wait already."""


class Reads:
    """The reads of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.whole = memoryview(bytearray(ROOM_BYTES))
        """What reads go into, one after the other."""
        self.room = self.whole
        """The part of it that the next read may fill."""
        self.scarce = False
        """Whether this round has read as much as it may."""
        self._read = 0
        """How much it has."""

    def charge(self, size: int) -> None:
        """Counts bytes that were read in this round, and wait; not what was handled at once.

        Small reads are not counted: each connection may have one in any case.
        """
        if size <= LITTLE_BYTES:
            return
        if not self._read:
            self._loop.call_soon(self._next_round)
        self._read += size
        if self._read >= ROUND_BYTES and not self.scarce:
            self.scarce, self.room = True, self.whole[:LITTLE_BYTES]

    def is_much(self, waiting: int) -> bool:
        """Whether no more of a connection should be read while so many of its bytes wait."""
        return self.scarce and waiting >= LITTLE_BYTES

    def _next_round(self) -> None:
        self._read, self.scarce, self.room = 0, False, self.whole
