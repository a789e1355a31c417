"""sliding_log: the time of every hit, so that no window of that length ever holds more.

The state is `l`, the time that the first entry counts from, the newest entry's time, the number
of hits, and the entries from the oldest to the newest. An entry is twice the microseconds since
the one before it; in front of that, unless it is a single hit, twice the number of hits plus 1.
Numbers are written in groups of seven bits, of which all but the first have the high bit set:
so they can be read from either end, and nothing reads more of a log than has expired, or is
given back. `lua/sliding_log.lua` is the same arithmetic. No state is kept here, no time asked for.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from ratelimit_service.model import Algorithm, CounterSpec, Held, Receipt, State, Step, step

__all__ = ["ALGORITHM", "charge", "refund"]

_MAX_HITS: Final = 10_000
"""The highest limit: an entry takes up to 5 bytes or so, and every hit writes all of them."""

_MAX_BYTES: Final = 1 << 16
"""In a log as long as this, where hits count in any case, only the newest entry grows."""

_MAX_TOTAL: Final = 1 << 51
"""Where hits count in any case no more than this are noted, so that all numbers stay exact."""

_HEAD: Final = struct.Struct(">cddd")
_MARK: Final = b"l"


class _Log(NamedTuple):
    """What still counts. `base` is what the first entry's time counts from."""

    base: int
    last: int
    total: int
    entries: bytes

    def state(self) -> State:
        return _HEAD.pack(_MARK, self.base, self.last, self.total) + self.entries

    def with_hits(self, now_us: int, addend: int) -> _Log:
        """One entry more; in a long log the newest takes the hits in."""
        if len(self.entries) >= _MAX_BYTES:
            older, hits = self.without_newest()
            return older.with_hits(now_us, hits + addend)
        base, last = (self.base, self.last) if self.entries else (now_us, now_us)
        entries = self.entries + _entry(now_us - last, addend)
        return _Log(base, now_us, self.total + addend, entries)

    def without_newest(self) -> tuple[_Log, int]:
        """The log before its newest entry, and the hits of that."""
        since, at = _number_before(self.entries, len(self.entries))
        hits = 1
        if at:
            number, before = _number_before(self.entries, at)
            if number & 1:
                hits, at = number >> 1, before
        last = self.last - (since >> 1)
        return _Log(self.base, last, self.total - hits, self.entries[:at]), hits

    def without(self, moment_us: int, addend: int) -> tuple[_Log, int]:
        """The log without so many hits of a moment, and how many it had."""
        entries, end, time, last, rest = (
            self.entries,
            len(self.entries),
            self.last,
            self.last,
            addend,
        )
        while end and time >= moment_us and rest:
            since, at = _number_before(entries, end)
            since >>= 1
            hits = 1
            if at:
                number, before = _number_before(entries, at)
                if number & 1:
                    hits, at = number >> 1, before
            if time == moment_us:
                given = min(rest, hits)
                rest -= given
                if hits > given:
                    entries = entries[:at] + _entry(since, hits - given) + entries[end:]
                elif end < len(entries):
                    since_next, hits_next, after = _entry_at(entries, end)
                    entries = entries[:at] + _entry(since + since_next, hits_next) + entries[after:]
                else:
                    entries, last = entries[:at], time - since
            time, end = time - since, at
        return _Log(self.base, last, self.total - addend + rest, entries), addend - rest


def charge(
    state: State | None, now_us: int, addend: int, spec: CounterSpec, force: bool, _lease: bytes
) -> Step:
    """Notes `addend` hits if all of them fit below the limit, or in any case with `force`."""
    limit, window_us = spec.limit, spec.window_us
    log, damaged = _read(state, now_us, window_us)
    passed = log.total + addend <= limit
    retry_us = 0 if passed else _retry_us(log, now_us, addend, spec)
    remaining = limit - log.total - addend if passed else max(0, limit - log.total)
    counted = addend if passed or force else 0
    if counted:
        if noted := min(addend, _MAX_TOTAL - log.total):
            log = log.with_hits(max(now_us, log.last) if log.entries else now_us, noted)
        state = log.state()
    return step(
        (passed, state, remaining, _reset_us(log, now_us, window_us), retry_us, counted, damaged)
    )


def refund(
    state: State | None,
    now_us: int,
    addend: int,
    spec: CounterSpec,
    _lease: bytes,
    receipt: Receipt | None,
) -> Step:
    """Takes back up to `addend` hits, the newest first; or those of the receipt's moment."""
    log, damaged = _read(state, now_us, spec.window_us)
    given_back = min(addend, log.total)
    if receipt:
        log, given_back = log.without(receipt.until_us - spec.window_us, addend)
        state = log.state() if given_back else state
    elif given_back:
        rest = given_back
        while rest:
            newest = log.last
            log, hits = log.without_newest()
            if hits > rest:
                log = log.with_hits(newest, hits - rest)
            rest -= min(rest, hits)
        state = log.state()
    remaining = max(0, spec.limit - log.total)
    reset_us = _reset_us(log, now_us, spec.window_us)
    return Step(True, state, remaining, reset_us, 0, given_back, damaged)


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


def _held(state: State | None, now_us: int, spec: CounterSpec) -> list[Held]:
    """The hits that still count, those of one moment together."""
    log, _ = _read(state, now_us, spec.window_us)
    held, time, at = [], log.base, 0
    while at < len(log.entries):
        since, hits, at = _entry_at(log.entries, at)
        time += since
        held.append(Held(time, hits))
    return held


def _reset_us(log: _Log, now_us: int, window_us: int) -> int:
    return log.last + window_us - now_us if log.entries else 0


def _retry_us(log: _Log, now_us: int, addend: int, spec: CounterSpec) -> int:
    """How long until enough of the oldest have expired."""
    if addend > spec.limit:
        return spec.window_us
    excess, time, at = log.total + addend - spec.limit, log.base, 0
    while excess > 0:
        since, hits, at = _entry_at(log.entries, at)
        excess -= hits
        time += since
    return time + spec.window_us - now_us


def _entry(since_us: int, hits: int) -> bytes:
    counted = _coded(hits * 2 + 1) if hits > 1 else b""
    return counted + _coded(since_us * 2)


def _entry_at(entries: bytes, at: int) -> tuple[int, int, int]:
    """Time since the entry before and hits of an entry, and where the next one starts."""
    number, at = _number_at(entries, at)
    if number & 1:
        since, at = _number_at(entries, at)
        return since >> 1, number >> 1, at
    return number >> 1, 1, at


def _coded(number: int) -> bytes:
    groups = bytearray()
    while number >= _GROUP:
        groups.append(number % _GROUP + _GROUP)
        number //= _GROUP
    groups.append(number)
    groups.reverse()
    return bytes(groups)


def _number_at(coded: bytes, at: int) -> tuple[int, int]:
    """The number that starts here, and where it ends."""
    number = coded[at]
    at += 1
    while at < len(coded) and coded[at] >= _GROUP:
        number = number * _GROUP + coded[at] - _GROUP
        at += 1
    return number, at


def _number_before(coded: bytes, end: int) -> tuple[int, int]:
    """The number that ends here, and where it starts."""
    at = end - 1
    while coded[at] >= _GROUP:
        at -= 1
    return _number_at(coded[at:end], 0)[0], at


_GROUP: Final = 128

_WEIGHT: Final = 3
_HITS_PER_WEIGHT: Final = 110
"""The hits of a full log that weigh one, for reading and writing them."""


def _weight(spec: CounterSpec) -> int:
    return _WEIGHT + spec.most // _HITS_PER_WEIGHT


ALGORITHM: Final = Algorithm(
    "sliding_log",
    "l",
    charge,
    refund,
    most=_MAX_HITS,
    most_why=f"keeps every hit, at most {_MAX_HITS}: for more use sliding_window with buckets, "
    "which never admits more either",
    weight=_weight,
    held=_held,
    exact_why="it keeps the moment of every hit, and a hit that is counted ahead has none yet; use "
    "sliding_window with buckets, which never admits more either",
)
