"""The one script: how hits become its arguments and its reply becomes outcomes."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files

from ratelimit_service.algorithms import ALGORITHMS
from ratelimit_service.model import Anchor, Calendar, Hit, Measure, Outcome

__all__ = ["SCRIPT", "SHA", "arguments", "damaged", "outcomes", "weight"]

_COUNT_DENIED = 4
_REFUND = 8
_JOINED = 16
_MORE = 32
_CALENDAR = 64
_LEASE = 128

_HIT = struct.Struct(">IdIBB")
"""A hit packed: limit, window in microseconds, addend, algorithm, mode and flags."""

_MEASURE = struct.Struct(">IBHB")
"""With _MORE the rest of a measure: rate, tick, buckets, and 1 for first_hit, 2 for stepped."""

_PERIODS = struct.Struct(">Idddd")
"""With _CALENDAR this period's number, and when three begin and the last ends."""

_LEASE_BYTES = 8

_SETTLED = 1 << 15
"""Beside the number of a request's hits: it is settled at once, without trying the short way."""

_NUMBERS = {name: number for number, name in enumerate(ALGORITHMS)}

_OVER = 1
_DAMAGED = 2

_PLAIN = "fixed_window"
_CLOCK = Anchor.CLOCK
_PLAIN_WEIGHT = 2
_OTHER_WEIGHT = 3
_PER_WEIGHT = {"sliding_log": 110, "concurrency": 25}
"""The hits of a full counter that weigh one, for reading and writing them."""
_BUCKETS_PER_WEIGHT = 11


def _joined() -> str:
    """The algorithms' files, the rule of passing and the part that talks to Redis, in one."""
    lua = files("ratelimit_service.algorithms") / "lua"
    parts = ["local algorithms = {}"]
    parts.append(f"local level = (function()\n{(lua / 'level.lua').read_text()}\nend)()")
    parts += [
        f"algorithms[{number}] = (function()\n{(lua / f'{name}.lua').read_text()}\nend)()"
        for name, number in _NUMBERS.items()
    ]
    parts.append((lua / "settle.lua").read_text())
    parts.append((files("ratelimit_service.stores.redis") / "charge.lua").read_text())
    return "\n".join(parts)


SCRIPT = _joined()
SHA = hashlib.sha1(SCRIPT.encode(), usedforsecurity=False).hexdigest()


def weight(hits: Sequence[Hit]) -> int:
    """What a request may take of Redis' time at most, in units of some 4 microseconds."""
    found = 0
    for hit in hits:
        measure = hit[1]
        if measure[0] == _PLAIN and measure[5] is _CLOCK:
            found += _PLAIN_WEIGHT
        else:
            found += _weight(measure)
    return found


@lru_cache(maxsize=4096)
def _weight(measure: Measure) -> int:
    weighed = _OTHER_WEIGHT + measure.buckets // _BUCKETS_PER_WEIGHT
    if per_weight := _PER_WEIGHT.get(measure.algorithm):
        weighed += measure.limit // per_weight
    return weighed


def arguments(
    requests: Sequence[Sequence[Hit]], now_us: int, *, judge: bool = False
) -> list[bytes | int | str]:
    """What follows the script's name in EVAL and EVALSHA: keys, time, and the packed hits.

    Redis' own time counts, unless `now_us` is to `judge`; else it only tells which periods of a
    calendar to send, from which Redis picks. Hits are packed into one argument, each request
    led by the number of its hits.
    """
    keys: list[bytes | int | str] = [0]
    packed: list[bytes] = []
    for hits in requests:
        led, start = len(hits), len(packed)
        packed.append(b"")
        for key, measure, addend, mode, count_denied, refund, lease, joined in hits:
            keys.append(key)
            if measure[0] == _PLAIN and measure[5] is _CLOCK:
                number, more = 0, b""
            else:
                number, more = _form(measure)
            flags: int = mode
            if more or count_denied or refund or joined or lease or not addend:
                led |= _SETTLED
                flags |= _COUNT_DENIED * count_denied | _REFUND * refund | _JOINED * joined
                if more:
                    flags |= _MORE
                if isinstance(measure.anchor, Calendar):
                    flags |= _CALENDAR
                    periods = measure.anchor.periods(now_us)
                    more += _PERIODS.pack(periods.number, *periods.starts_us)
                if lease:
                    flags |= _LEASE
                    more += lease
            packed.append(_HIT.pack(measure.limit, measure.window_us, addend, number, flags) + more)
        packed[start] = led.to_bytes(2, "big")
    keys[0] = len(keys) - 1
    return [*keys, now_us if judge else "", b"".join(packed)]


@lru_cache(maxsize=4096)
def _form(measure: Measure) -> tuple[int, bytes]:
    """An algorithm's number, and the rest of a measure."""
    number = _NUMBERS[measure.algorithm]
    variant = (measure.anchor is Anchor.FIRST_HIT) + 2 * measure.stepped
    return number, _MEASURE.pack(measure.rate, measure.tick, measure.buckets, variant)


def outcomes(reply: object, requests: Sequence[Sequence[Hit]]) -> list[list[Outcome]] | None:
    """Reads the script's reply for these requests; None if it is anything else."""
    if not isinstance(reply, list) or len(reply) != 1 + 4 * sum(map(len, requests)):
        return None
    each = iter(reply[1:])
    flat = [
        Outcome(bool(marks & _OVER), *rest)
        for marks, *rest in zip(each, each, each, each, strict=True)
    ]
    found, at = [], 0
    for hits in requests:
        found.append(flat[at : at + len(hits)])
        at += len(hits)
    return found


def damaged(reply: object, requests: Sequence[Sequence[Hit]]) -> list[bytes]:
    """The keys that the script has found damaged, from a reply that `outcomes` has read."""
    assert isinstance(reply, list)  # noqa: S101 -- as `outcomes` has seen
    marks = reply[1::4]
    if max(marks, default=0) < _DAMAGED:
        return []
    keys = (hit.key for hits in requests for hit in hits)
    return [key for key, mark in zip(keys, marks, strict=True) if mark & _DAMAGED]
