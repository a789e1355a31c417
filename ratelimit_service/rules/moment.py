"""Rules that depend on the time: which of them hold, minute by minute.

A snapshot is looked at in a minute. As long as the same rules hold it is the same value, with one
number; what was remembered under another number is not used.
"""

from __future__ import annotations

from ratelimit_service.model import MINUTE_US
from ratelimit_service.rules.tree import Snapshot

__all__ = ["Moments"]


class Moments:
    """Gives a snapshot as it is at a moment. Snapshots without such rules are given as they are."""

    def __init__(self) -> None:
        self._of: Snapshot | None = None
        self._minute = -1
        self._phase: object = None
        self._now: Snapshot | None = None
        self._number = 0

    def at(self, snapshot: Snapshot, now_us: int) -> Snapshot:
        """The snapshot in the minute of `now_us`.

        Its number is another one than before if other rules hold.
        """
        if snapshot.times is None:
            return snapshot
        minute = now_us // MINUTE_US
        now = self._now
        if now is not None and snapshot is self._of and minute == self._minute:
            return now
        phase = snapshot.times.phase(minute)
        if now is None or snapshot is not self._of or phase != self._phase:
            self._number -= 1  # numbers of snapshots themselves are above 0
            now = self._now = snapshot.in_minute(minute, self._number)
        self._of, self._minute, self._phase = snapshot, minute, phase
        return now
