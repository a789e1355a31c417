"""concurrency: how many are under way at a time. A hit takes a lease and gives it back.

A lease that is not given back ends by itself after the window. Leases are found by their id of
8 bytes; several hits charged at once share one. Several leases can be taken at once (`several`): as
many as there is room for, each whole or not at all. The state is `c`, the number of hits, and the
leases from the oldest to the newest: time, hits and id. `lua/concurrency.lua` is the same
arithmetic. No state is kept here, no time asked for.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from ratelimit_service.model import (
    Algorithm,
    CounterSpec,
    Denied,
    Held,
    Receipt,
    State,
    Step,
    step,
)

__all__ = ["ALGORITHM", "charge", "refund", "several"]

_MAX_LEASES: Final = 10_000
"""The highest limit: every hit reads and writes all leases, each of 20 bytes."""

_HEAD: Final = struct.Struct(">cI")
_LEASE: Final = struct.Struct(">dI8s")
_ID_AT: Final = 12
_ID_SIZE: Final = 8
_ONE_OF_SEVERAL: Final = struct.Struct(">I8s")
_MARK: Final = b"c"


class _Leases:
    """The leases that have not ended."""

    __slots__ = ("_leases", "_window_us", "damaged", "last", "now_us", "total")

    def __init__(self, state: State | None, now_us: int, window_us: int) -> None:
        self._leases, self._window_us, self.total, self.last = b"", window_us, 0, 0
        self.now_us, self.damaged = now_us, False
        if not (
            isinstance(state, bytes)
            and state[:1] == _MARK
            and len(state) > _HEAD.size
            and (len(state) - _HEAD.size) % _LEASE.size == 0
        ):
            return
        last = int(_LEASE.unpack_from(state, len(state) - _LEASE.size)[0])
        if last - now_us >= window_us:
            self.damaged = True
            return
        self.now_us, self.last = max(now_us, last), last
        total, at = _HEAD.unpack_from(state)[1], _HEAD.size
        while at < len(state):
            time, hits, _ = _LEASE.unpack_from(state, at)
            if time + window_us > self.now_us:
                break
            total, at = total - hits, at + _LEASE.size
        self._leases, self.total = state[at:], total

    def state(self) -> State:
        return _HEAD.pack(_MARK, self.total) + self._leases

    def add(self, hits: int, lease: bytes) -> None:
        self._leases += _LEASE.pack(self.now_us, hits, lease)
        self.total += hits
        self.last = self.now_us

    def add_several(self, several: bytes, limit: int) -> int:
        """Takes those for which there is room; returns their hits."""
        added, taken = [], 0
        for hits, lease in _ONE_OF_SEVERAL.iter_unpack(several):
            if self.total + hits <= limit:
                added.append(_LEASE.pack(self.now_us, hits, lease))
                self.total += hits
                taken += hits
        if taken:
            self._leases += b"".join(added)
            self.last = self.now_us
        return taken

    def give_back(self, hits: int, lease: bytes) -> int:
        """Gives hits of a lease back, or of the oldest ones where none is named."""
        rest, at = hits, self._find(lease, 0)
        while rest and 0 <= at < len(self._leases):
            time, held, name = _LEASE.unpack_from(self._leases, at)
            given = min(held, rest)
            remainder = _LEASE.pack(time, held - given, name) if held > given else b""
            self._leases = self._leases[:at] + remainder + self._leases[at + _LEASE.size :]
            rest -= given
            at = self._find(lease, at)
        self.total -= hits - rest
        if self._leases:
            self.last = int(_LEASE.unpack_from(self._leases, len(self._leases) - _LEASE.size)[0])
        return hits - rest

    def until_us(self, most: int, now_us: int) -> int:
        """From now until no more than these are left, if none is given back."""
        ends_us, at, total = now_us, 0, self.total
        while total > most:
            time, hits, _ = _LEASE.unpack_from(self._leases, at)
            ends_us, at, total = int(time) + self._window_us, at + _LEASE.size, total - hits
        return ends_us - now_us

    def held(self) -> list[Held]:
        return [
            Held(int(time), hits, lease) for time, hits, lease in _LEASE.iter_unpack(self._leases)
        ]

    def _find(self, lease: bytes, at: int) -> int:
        """Where the next lease with this id is, -1 if there is none; without an id the next."""
        if not lease:
            return at
        offset = self._leases.find(lease, at)
        while offset >= 0 and offset % _LEASE.size != _ID_AT:
            offset = self._leases.find(lease, offset + 1)
        return offset - _ID_AT if offset >= 0 else -1


def charge(
    state: State | None, now_us: int, addend: int, spec: CounterSpec, _force: bool, lease: bytes
) -> Step:
    """Takes a lease on `addend` hits if as many are free; of `several` those that are."""
    limit, window_us = spec.limit, spec.window_us
    leases = _Leases(state, now_us, window_us)
    if len(lease) > _ID_SIZE:
        taken = leases.add_several(lease, limit)
        state = leases.state() if taken else state
        remaining, reset_us = max(0, limit - leases.total), _reset_us(leases, now_us, window_us)
        return step((True, state, remaining, reset_us, 0, taken, leases.damaged))
    remaining, damaged = limit - leases.total, leases.damaged
    if addend > remaining:
        retry_us = leases.until_us(limit - addend, now_us) if addend <= limit else window_us
        reset_us = _reset_us(leases, now_us, window_us)
        return step((False, state, max(0, remaining), reset_us, retry_us, 0, damaged))
    if addend:
        leases.add(addend, lease)
        state = leases.state()
    return step(
        (True, state, remaining - addend, _reset_us(leases, now_us, window_us), 0, addend, damaged)
    )


def refund(
    state: State | None,
    now_us: int,
    addend: int,
    spec: CounterSpec,
    lease: bytes,
    _receipt: Receipt | None,
) -> Step:
    """Gives back the lease, or without one the oldest; an unknown one gives back nothing."""
    leases = _Leases(state, now_us, spec.window_us)
    given_back = leases.give_back(addend, lease) if addend else 0
    if given_back:
        state = leases.state()
    remaining = max(0, spec.limit - leases.total)
    reset_us = _reset_us(leases, now_us, spec.window_us)
    return Step(True, state, remaining, reset_us, 0, given_back, leases.damaged)


def several(leases: Iterable[tuple[int, bytes]]) -> bytes:
    """What stands for an id where several leases are taken at once: hits and id of each."""
    return b"".join([_ONE_OF_SEVERAL.pack(hits, lease) for hits, lease in leases])


def _held(state: State | None, now_us: int, spec: CounterSpec) -> list[Held]:
    """The leases that have not ended."""
    return _Leases(state, now_us, spec.window_us).held()


def _reset_us(leases: _Leases, now_us: int, window_us: int) -> int:
    """When the last lease has ended."""
    return leases.last + window_us - now_us if leases.total else 0


_WEIGHT: Final = 3
_LEASES_PER_WEIGHT: Final = 25
"""The leases of a full counter that weigh one, for reading and writing them."""


def _weight(spec: CounterSpec) -> int:
    return _WEIGHT + spec.most // _LEASES_PER_WEIGHT


ALGORITHM: Final = Algorithm(
    "concurrency",
    "c",
    charge,
    refund,
    most=_MAX_LEASES,
    most_why=f"keeps every lease, at most {_MAX_LEASES}",
    weight=_weight,
    held=_held,
    denied=Denied.NOT_COUNTED,
    bundle=several,
    exact_why="it hands out a lease for every hit; leave sync out",
    cached=False,  # leases come back at any time
)
