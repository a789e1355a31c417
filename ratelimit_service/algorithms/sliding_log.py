"""sliding_log: the time of every hit, so that no window of that length ever holds more.

The state is `l`, the time that the first entry counts from, the newest entry's time, the number
of hits, and the entries from the oldest to the newest. An entry is the microseconds since the one
before it, doubled, plus 1 if the number of its hits follows, which is else 1; both are varints
(as in Protocol Buffers). A charge reads what has expired and no more, whatever the length.
`lua/sliding_log.lua` is the same arithmetic. No state is kept here, no time asked for.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from ratelimit_service.algorithms.step import State, Step, step
from ratelimit_service.model import Measure

__all__ = ["MAX_HITS", "charge", "refund"]

MAX_HITS = 10_000
"""The highest limit: an entry takes up to 5 bytes or so, and every hit writes all of them."""

_MAX_BYTES = 1 << 16
"""In a log as long as this, where hits count in any case, only the newest entry grows."""

_HEAD = struct.Struct(">cddd")
_MARK = b"l"


class _Log(NamedTuple):
    """What still counts. `base` is what the first entry's time counts from."""

    base: int
    last: int
    total: int
    entries: bytes

    def state(self) -> State:
        return _HEAD.pack(_MARK, self.base, self.last, self.total) + self.entries

    def listed(self) -> list[tuple[int, int]]:
        """Time and hits of each entry, the oldest first."""
        found, time, at = [], self.base, 0
        while at < len(self.entries):
            since, hits, at = _entry_at(self.entries, at)
            time += since
            found.append((time, hits))
        return found


def charge(
    state: State | None, now_us: int, addend: int, measure: Measure, force: bool, _lease: bytes
) -> Step:
    """Notes `addend` hits if all of them fit below the limit, or in any case with `force`."""
    limit, window_us = measure.limit, measure.window_us
    log, damaged = _read(state, now_us, window_us)
    passed = log.total + addend <= limit
    retry_us = 0 if passed else _retry_us(log, now_us, addend, measure)
    left = limit - log.total - addend if passed else max(0, limit - log.total)
    counted = addend if passed or force else 0
    if counted:
        log = _with(log, max(now_us, log.last) if log.total else now_us, addend)
        state = log.state()
    return step(
        (passed, state, left, _reset_us(log, now_us, window_us), retry_us, counted, damaged)
    )


def refund(state: State | None, now_us: int, addend: int, measure: Measure, _lease: bytes) -> Step:
    """Takes back up to `addend` hits, the newest first."""
    log, damaged = _read(state, now_us, measure.window_us)
    given_back = min(addend, log.total)
    if given_back:
        listed, rest = log.listed(), given_back
        while rest:
            time, hits = listed.pop()
            if hits > rest:
                listed.append((time, hits - rest))
            rest -= min(hits, rest)
        log = _log(log.base, listed)
        state = log.state()
    left = max(0, measure.limit - log.total)
    reset_us = _reset_us(log, now_us, measure.window_us)
    return Step(True, state, left, reset_us, 0, given_back, damaged)


def _read(state: State | None, now_us: int, window_us: int) -> tuple[_Log, bool]:
    """The log without what has expired, and whether it is damaged."""
    empty = _Log(now_us, now_us, 0, b"")
    if not (isinstance(state, bytes) and state[:1] == _MARK and len(state) > _HEAD.size):
        return empty, False
    base, last, total = map(int, _HEAD.unpack_from(state)[1:])
    if last - now_us >= window_us:
        return empty, True
    gone_us, at = max(now_us, last) - window_us, _HEAD.size
    while at < len(state):
        since, hits, after = _entry_at(state, at)
        if base + since > gone_us:
            return _Log(base, last, total, state[at:]), False
        base, total, at = base + since, total - hits, after
    return empty, False


def _with(log: _Log, now_us: int, addend: int) -> _Log:
    """The log with one more entry."""
    if len(log.entries) >= _MAX_BYTES:
        listed = log.listed()
        listed[-1] = (now_us, listed[-1][1] + addend)
        return _log(log.base, listed)
    base, last = (log.base, log.last) if log.total else (now_us, now_us)
    return _Log(base, now_us, log.total + addend, log.entries + _entry(now_us - last, addend))


def _log(base: int, listed: list[tuple[int, int]]) -> _Log:
    entries, last = [], base
    for time, hits in listed:
        entries.append(_entry(time - last, hits))
        last = time
    return _Log(base, last, sum(hits for _, hits in listed), b"".join(entries))


def _reset_us(log: _Log, now_us: int, window_us: int) -> int:
    return log.last + window_us - now_us if log.total else 0


def _retry_us(log: _Log, now_us: int, addend: int, measure: Measure) -> int:
    """How long until enough of the oldest have expired."""
    if addend > measure.limit:
        return measure.window_us
    excess, time, at = log.total + addend - measure.limit, log.base, 0
    while excess > 0:
        since, hits, at = _entry_at(log.entries, at)
        excess -= hits
        time += since
    return time + measure.window_us - now_us


def _entry(since_us: int, hits: int) -> bytes:
    if hits == 1:
        return _varint(since_us * 2)
    return _varint(since_us * 2 + 1) + _varint(hits)


def _entry_at(entries: bytes, at: int) -> tuple[int, int, int]:
    """Time since the entry before and hits of an entry, and where the next one starts."""
    since, at = _varint_at(entries, at)
    if since & 1:
        hits, at = _varint_at(entries, at)
        return since >> 1, hits, at
    return since >> 1, 1, at


def _varint(number: int) -> bytes:
    coded = bytearray()
    while number >= _GROUP:
        coded.append(number % _GROUP + _GROUP)
        number //= _GROUP
    coded.append(number)
    return bytes(coded)


def _varint_at(coded: bytes, at: int) -> tuple[int, int]:
    number, weight = 0, 1
    while (byte := coded[at]) >= _GROUP:
        number += (byte - _GROUP) * weight
        weight *= _GROUP
        at += 1
    return number + byte * weight, at + 1


_GROUP = 128
