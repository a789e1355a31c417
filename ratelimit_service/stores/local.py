"""Counters of the failure policy `local`: this process's share of limits while a store is away.

Each of N processes starts at zero and admits a limit's Nth part, rounded up. So in one window and
outage all of them admit at most N times that part beyond the limit. When the store is back, it is
told what was counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ratelimit_service.model import (
    MAX_ADDEND,
    BundleFunction,
    CounterSpec,
    Denied,
    Held,
    Hit,
    Mode,
    Outcome,
    new_tuple,
)
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
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
        self._shares: dict[int, tuple[CounterSpec, CounterSpec]] = {}
        """By a spec's id: its share, and the spec itself, so that its id stays its own."""
        self._processes = 0
        """The number of processes by which these are divided."""

    def __len__(self) -> int:
        return len(self._hits)

    def charge(self, hits: Sequence[Hit], processes: int, now_us: int) -> list[Outcome]:
        """Settles the hits as one request, each on this process's share of its limit.

        `now_us` is by the store's clock, as far as it is known. There is no outcome after a fault
        of ours.
        """
        return self.charge_each([hits], processes, now_us)[0]

    def charge_each(
        self, requests: Sequence[Sequence[Hit]], processes: int, now_us: int
    ) -> list[list[Outcome]]:
        """Settles these requests one after the other, as `charge` does."""
        self._now_us = now_us
        self._divide_by(processes)
        known, share = self._shares.get, self._share
        settled: list[Settled] = []
        shared = [
            [
                new_tuple(Hit, (hit[0], (known(id(hit[1])) or share(hit[1]))[1], *hit[2:]))
                for hit in hits
            ]
            for hits in requests
        ]
        self._memory.charge(shared, settled.extend)
        last = self._hits
        charged: list[list[Outcome]] = []
        for hits, one in zip(requests, settled, strict=True):
            outcomes: list[Outcome] = one.outcomes  # type: ignore[assignment]  # memory has all
            for hit, outcome in zip(hits, outcomes, strict=False):
                outcome.local = True  # nobody else has seen it yet
                if hit[0] in last or (outcome.charged and len(last) < _MAX_COUNTERS):
                    last[hit[0]] = hit
            charged.append(outcomes)
        return charged

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
            self._divide_by(processes)  # hits that came between may have known another number
            share = self._share(hit.spec)[1]
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
                    charges = list(_bundles(base, leases, bundle))
                else:
                    charges = [base._replace(addend=charge) for charge in _portions(used, hit.spec)]
                yield [[charge] for charge in charges], expires_us

    def _divide_by(self, processes: int) -> None:
        """Sets the number of processes that share limits."""
        if processes != self._processes:
            self._processes = processes
            self._shares.clear()

    def _share(self, spec: CounterSpec) -> tuple[CounterSpec, CounterSpec]:
        """Works out a spec's share, and remembers it. The spec itself comes first."""
        if len(self._shares) >= _MAX_COUNTERS:
            self._shares.clear()
        processes = self._processes
        limit, rate = -(-spec.limit // processes), -(-spec.rate // processes)
        if processes > 1 and not spec.algorithm.divided:
            limit = 0  # this algorithm's limit cannot be counted in parts
        known = self._shares[id(spec)] = spec, spec.with_numbers(limit, rate)
        return known

    def _empty(self) -> MemoryStore:
        # Nobody looks at its health, because the store is already reported as away.
        return MemoryStore(_MAX_COUNTERS, self._stats, Health(), lambda: self._now_us)


def _settled(memory: MemoryStore, hit: Hit) -> Outcome:
    outcomes: list[Outcome] = []

    def done(charged: list[Settled]) -> None:
        outcomes.extend(each for each in charged[0].outcomes if each is not None)

    memory.charge([[hit]], done)
    return outcomes[0]


def _bundles(base: Hit, leases: Sequence[Held], bundle: BundleFunction) -> Iterator[Hit]:
    """Hits that take all of these leases. Each takes many, because each writes the counter."""
    for start in range(0, len(leases), _LEASES_AT_ONCE):
        some = leases[start : start + _LEASES_AT_ONCE]
        ids = bundle([(one.hits, one.lease) for one in some])
        yield base._replace(addend=sum([one.hits for one in some]), lease=ids)


def _portions(used: int, spec: CounterSpec) -> Iterator[int]:
    """Numbers of hits to be charged one after the other.

    A bucket never holds more than its limit. So the hits are halved again and again: then nearly
    as many pass as there is room for.
    """
    if not spec.rate:
        yield used
        return
    while used:
        portion = -(-used // 2)
        yield portion
        used -= portion
