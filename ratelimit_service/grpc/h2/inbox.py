"""What is read from one client and not handled yet: bytes, with the times of their reads.

What must not live here: how they are read (`protocol`, `drawing`), what they say (`connection`).
"""

from __future__ import annotations

from collections import deque
from typing import Final

from ratelimit_service.grpc.h2.limits import INBOX_BYTES

__all__ = ["PIECE_BYTES", "Inbox"]

PIECE_BYTES: Final = 8_192
"""So many bytes are handled before it is another client's turn."""


class Inbox:
    """Bytes in the order in which they came. They are taken out a piece at a time."""

    def __init__(self) -> None:
        self.chunks: deque[tuple[int, bytes]] = deque()
        """What each read has brought, with its time by `elapsed_us`."""
        self.size = 0
        """How many bytes are left in all."""
        self._taken = 0
        """How many bytes of the first chunk have been taken."""

    def put(self, came_us: int, data: bytes) -> None:
        """Takes in what a read has brought."""
        self.chunks.append((came_us, data))
        self.size += len(data)

    def take(self, most: int) -> bytes:
        """Takes the next bytes of one read, at most so many. There must be some."""
        data = self.chunks[0][1]
        start, stop = self._taken, self._taken + most
        if stop < len(data):
            self._taken = stop
            self.size -= most
            return data[start:stop]
        self._taken = 0
        self.chunks.popleft()
        self.size -= len(data) - start
        return data[start:] if start else data

    def take_before(self, until_us: int) -> bytes:
        """Takes the first bytes, and all that follow and were read before this time."""
        piece, chunks = self.take(INBOX_BYTES), self.chunks
        size = len(piece)
        if not chunks or chunks[0][0] >= until_us or size >= INBOX_BYTES:
            return piece
        pieces = [piece]
        while chunks and chunks[0][0] < until_us and size < INBOX_BYTES:
            pieces.append(self.take(INBOX_BYTES))
            size += len(pieces[-1])
        return b"".join(pieces)

    def clear(self) -> None:
        """Forgets all that is left."""
        self.chunks.clear()
        self.size = self._taken = 0
