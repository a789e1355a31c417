"""Reads of a late client's socket in its own visits, instead of by the loop, until it is in time.

The loop would read whenever something comes. Under an overload of many connections that is a few
calls at a time, and long before their turn. What must not live here: what becomes of late calls
(`overload`), and how the loop is kept from reading (`protocol`).
"""

from __future__ import annotations

import socket
from typing import Final

from ratelimit_service.grpc.h2.inbox import PIECE_BYTES, Inbox
from ratelimit_service.grpc.h2.overload import Backlog

__all__ = ["NEVER_US", "Drawing"]

NEVER_US: Final = 1 << 62
"""Later than anything comes."""

_DRAWN_BYTES: Final = 65_536
"""So much is read at once. A read that brings less has emptied the socket."""

_MOST_READS: Final = 12
"""So often a socket is read from in one visit, unless it is empty before: as much can be refused in
that visit."""


class Drawing:
    """One connection's reads of its own."""

    def __init__(self, backlog: Backlog) -> None:
        self._backlog = backlog
        self.socket: socket.socket | None = None
        """What is read from, if its bytes are HTTP/2 and nothing else."""
        self.begun = False
        """Whether it is read here now, and not by the loop."""
        self.chosen_us = NEVER_US
        """Calls of the last read that came at this time or later are counted, although they may
        have waited for long."""
        self.spread_us = 0
        """Within which time that has come."""
        self.store_us = 0
        """How long calls waited in the store then."""
        self.fresh_us = NEVER_US
        """When the newest bytes of it came: these are not given up together with the others."""
        self._emptied_us = 0
        """When the socket was last empty: what is read next has come later."""
        self._size = self._empty_visits = 0
        """How many bytes the last visit has brought, and how many in a row brought none."""

    def begin(self, now_us: int) -> None:
        """Reads here from now on; each visit begins with `draw`."""
        self.begun, self._emptied_us = True, now_us
        self._size = self._empty_visits = self._backlog.calm_visits = 0

    def end(self) -> None:
        """Leaves it to the loop again."""
        self.begun, self.spread_us, self.fresh_us = False, 0, NEVER_US

    def goes_on(self, *, late: bool) -> bool:
        """Whether there is to be another visit; the last has found `late` calls, or none.

        There is none once all has been in time for a while, or nothing has come in two rests.
        """
        steady = self._backlog.is_calm(self.spread_us, late=late)
        if self._size > PIECE_BYTES:
            return late
        return not (steady or self._empty_visits > 1)

    def rest_us(self, *, late: bool) -> int:
        """How long to wait before the next visit; the last has found `late` calls, or none."""
        return self._backlog.rest_us(self.spread_us, self._size, late=late)

    def draw(self, now_us: int, inbox: Inbox, store_us: int | None) -> bool:
        """Reads what has come since the socket was last empty; returns whether anything has.

        Calls wait in the store for `store_us` now; None if nobody waits for a store.
        """
        its_socket, size, emptied = self.socket, 0, False
        since_us = self._emptied_us
        self.spread_us = now_us - since_us
        chunks: list[bytes] = []
        try:
            while its_socket is not None and not emptied and len(chunks) < _MOST_READS:
                data = its_socket.recv(_DRAWN_BYTES)
                if not data:
                    break
                chunks.append(data)
                size += len(data)
                emptied = len(data) < _DRAWN_BYTES
        except OSError:  # nothing more has come, or the loop will find the fault
            emptied = True
        self._size, self.store_us = size, store_us or 0
        if not chunks:
            self._emptied_us = now_us
            self._empty_visits += 1
            return False
        self._empty_visits = 0
        fresh_bytes, whole = 0, False
        if emptied:
            # What remains in the socket otherwise is no newer than this: nothing of it is fresh.
            self._emptied_us = now_us
            whole, fresh_bytes = self._backlog.chosen(
                now_us, self.spread_us, size, PIECE_BYTES, store_us
            )
        if whole:
            fresh_bytes = 0
        # The bytes are taken to have come one after the other, at an even pace.
        self.fresh_us = fresh_us = now_us - self.spread_us * fresh_bytes // size
        # Few calls are handled in this visit. Of many some are left for later ones.
        self.chosen_us = NEVER_US if size > PIECE_BYTES else since_us if whole else fresh_us
        late_bytes = size - fresh_bytes
        for data in chunks:
            if late_bytes >= len(data):
                inbox.put(since_us, data)
            elif late_bytes > 0:
                inbox.put(since_us, data[:late_bytes])
                inbox.put(fresh_us, data[late_bytes:])
            else:
                inbox.put(fresh_us, data)
            late_bytes -= len(data)
        return True
