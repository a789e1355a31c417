"""Rules that depend on the time: which of them hold, minute by minute.

A snapshot is looked at in a minute. As long as the same rules hold it is the same value, with one
number; what was remembered under another number is not used.
"""

from __future__ import annotations

from itertools import count
from typing import Final

from ratelimit_service.model import MINUTE_US
from ratelimit_service.rules.tree import Snapshot

__all__ = ["at_moment"]

_NUMBERS: Final = count(-1, -1)
"""Numbers for snapshots at a moment, each given once. The snapshots' own numbers are 0 or
higher."""


def at_moment(snapshot: Snapshot, now_us: int) -> Snapshot:
    """The snapshot as it is in the minute of `now_us`.

    If no rule depends on the time it is the same one. It has a new number if other rules hold than
    before. Only the snapshot itself keeps it, so that rules which were let go are not held in
    memory.
    """
    times = snapshot.times
    if times is None:
        return snapshot
    minute = now_us // MINUTE_US
    last_view = snapshot.last_view
    now = last_view.now
    if now is not None and minute == last_view.minute:
        return now
    phase = times.phase(minute)
    if now is None or phase != last_view.held:
        now = last_view.now = snapshot.in_minute(minute, next(_NUMBERS))
    last_view.minute, last_view.held = minute, phase
    return now
