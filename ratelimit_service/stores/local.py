"""Counters of the failure policy `local`: this process's share of limits while a store is away.

Each of N processes starts at zero and admits a limit's Nth part, rounded up. So in one window and
outage all of them admit at most N times that part beyond the limit. When the store is back, it is
told what was counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ratelimit_service.health import Health
from ratelimit_service.model import (
    MAX_ADDEND,
    BundleFunction,
    CounterSpec,
    Denied,
    Held,
    Hit,
    Mode,
    Outcome,
)
from ratelimit_service.observer import Stats
from ratelimit_service.stores import Settled
from ratelimit_service.stores.memory import MemoryStore

__all__ = ["Local"]

_MAX_COUNTERS: Final = 100_000

_LEASES_AT_ONCE: Final = 250
"""How many leases are handed back in one hit: some 0.2 ms of Redis' time."""


class Local:
    """Counters of one outage."""

    def __init__(self, stats: Stats) -> None:
        self._stats = stats
        self._now_us = 0
        self._memory = self._empty()
        self._hits: dict[bytes, Hit] = {}
        """The last hit on each counter that has counted. Its limit is the one in force now."""
        self._shares: dict[tuple[int, int], tuple[CounterSpec, CounterSpec]] = {}
        """By a spec's id and the number of processes: the share, and the spec itself, so that
        its id stays its own."""

    def __len__(self) -> int:
        return len(self._hits)

    def charge(self, hits: Sequence[Hit], processes: int, now_us: int) -> list[Outcome]:
        """Settles the hits as one request, each on this process's share of its limit.

        `now_us` is by the store's clock, as far as it is known.
        """
        self._now_us = now_us
        shared = [hit._replace(spec=self._share(hit.spec, processes)) for hit in hits]
        outcomes: list[Outcome] = []

        def done(found: list[Settled]) -> None:
            charged = found[0].outcomes
            outcomes.extend(each.replaced(local=True) for each in charged if each is not None)

        self._memory.charge([shared], done)
        for hit, shared_hit, outcome in zip(hits, shared, outcomes, strict=True):
            if hit.key in self._hits or (outcome.charged and len(self._hits) < _MAX_COUNTERS):
                self._hits[hit.key] = shared_hit._replace(spec=hit.spec)
        return outcomes

    def hand_back(self, processes: int, now_us: int) -> Iterator[tuple[list[list[Hit]], int]]:
        """Takes out, for each counter, requests that count the same, and for how long they matter.

        Fixed and sliding windows can count hits beyond their limit, so the server counts all of
        them. Buckets, logs and leases cannot, so it counts as many as there is room for.
        """
        self._now_us = now_us
        memory, hits = self._memory, self._hits
        self._memory, self._hits = self._empty(), {}
        for last in hits.values():
            # What a pool's other limits have counted is told as well, beyond this one's limit.
            spec = last.spec
            if spec.reserved:
                spec = spec.with_numbers(spec.most, spec.rate)
            hit = last._replace(spec=spec)
            # More than a share can have been counted: `count_denied` goes beyond it, and shares
            # were larger while there were fewer processes.
            overfull = hit.spec.algorithm.denied >= Denied.COUNTED
            most = MAX_ADDEND if overfull else hit.spec.limit
            share = self._share(hit.spec, processes)
            # A refund of 0 hits tells when the counter is like a new one, even if the limit has
            # become lower.
            peek = hit._replace(
                spec=share.with_numbers(most, share.rate),
                addend=0,
                mode=Mode.SHADOW,
                refund=True,
                joined=False,
                receipt=None,
            )
            outcome = _settled(memory, peek)
            used = most - outcome.remaining
            if used > 0:
                expires_us = outcome.reset_us
                if overfull:
                    # Hits of a sliding window weigh on in the next one. They are over once as
                    # many pass as there can be at all.
                    all_hits = peek._replace(addend=most, refund=False, count_denied=False)
                    expires_us = _settled(memory, all_hits).reset_us
                base = peek._replace(spec=hit.spec, refund=False, count_denied=True)
                held, bundle = hit.spec.algorithm.held, hit.spec.algorithm.bundle
                if held and bundle:
                    # Ended leases stay in the state until somebody takes one or gives one back.
                    leases = held(memory.state(hit.key), now_us, hit.spec)
                    pieces = list(_bundles(base, leases, bundle))
                else:
                    pieces = [base._replace(addend=piece) for piece in _pieces(used, hit.spec)]
                yield [[piece] for piece in pieces], expires_us

    def _share(self, spec: CounterSpec, processes: int) -> CounterSpec:
        known = self._shares.get((id(spec), processes))
        if known is None:
            if len(self._shares) >= _MAX_COUNTERS:
                self._shares.clear()
            limit, rate = -(-spec.limit // processes), -(-spec.rate // processes)
            if processes > 1 and not spec.algorithm.divided:
                limit = 0  # this algorithm's limit cannot be counted in parts
            known = spec, spec.with_numbers(limit, rate)
            self._shares[id(spec), processes] = known
        return known[1]

    def _empty(self) -> MemoryStore:
        # Nobody looks at its health, because the store is already reported as away.
        return MemoryStore(_MAX_COUNTERS, self._stats, Health(), lambda: self._now_us)


def _settled(memory: MemoryStore, hit: Hit) -> Outcome:
    found: list[Outcome] = []

    def done(charged: list[Settled]) -> None:
        found.extend(each for each in charged[0].outcomes if each is not None)

    memory.charge([[hit]], done)
    return found[0]


def _bundles(base: Hit, leases: Sequence[Held], bundle: BundleFunction) -> Iterator[Hit]:
    """Hits that take all of these leases. Each takes many, because each writes the counter."""
    for start in range(0, len(leases), _LEASES_AT_ONCE):
        some = leases[start : start + _LEASES_AT_ONCE]
        ids = bundle([(one.hits, one.lease) for one in some])
        yield base._replace(addend=sum([one.hits for one in some]), lease=ids)


def _pieces(used: int, spec: CounterSpec) -> Iterator[int]:
    """Numbers of hits to be charged one after the other.

    A bucket never holds more than its limit. So the hits are halved again and again: then nearly
    as many pass as there is room for.
    """
    if not spec.rate:
        yield used
        return
    while used:
        piece = -(-used // 2)
        yield piece
        used -= piece
