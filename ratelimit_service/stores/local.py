"""What the failure policy `local` counts while a store is away: this process's share of limits.

Each of N processes admits a limit's Nth part, rounded up, from zero: at most N times that much
more than the limit in a window and outage. When the store is back it is told what was counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ratelimit_service.algorithms import held, several
from ratelimit_service.health import Health
from ratelimit_service.model import MAX_ADDEND, Denied, Hit, Measure, Mode, Outcome
from ratelimit_service.observer import Counters
from ratelimit_service.stores import Settled
from ratelimit_service.stores.memory import MemoryStore

__all__ = ["Local"]

_MAX_COUNTERS: Final = 100_000

_LEASES_AT_ONCE: Final = 250
"""How many leases are handed back in one hit: some 0.2 ms of Redis' time."""


class Local:
    """Counters of one outage."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._now_us = 0
        self._memory = self._empty()
        self._hits: dict[bytes, Hit] = {}
        """Of each counter that has counted, the last hit asked for: its limit is what holds now."""
        self._shares: dict[tuple[int, int], tuple[Measure, Measure]] = {}
        """By a measure's id and the number of processes: the measure, held, and the share."""

    def __len__(self) -> int:
        return len(self._hits)

    def charge(self, hits: Sequence[Hit], processes: int, now_us: int) -> list[Outcome]:
        """Settles the hits as one request, each on this process's share of its limit.

        `now_us` is by the store's clock, as far as it is known.
        """
        self._now_us = now_us
        shared = [hit._replace(measure=self._share(hit.measure, processes)) for hit in hits]
        outcomes: list[Outcome] = []

        def done(found: list[Settled]) -> None:
            charged = found[0].outcomes
            outcomes.extend(each._replace(local=True) for each in charged if each is not None)

        self._memory.charge([shared], done)
        for hit, shared_hit, outcome in zip(hits, shared, outcomes, strict=True):
            if hit.key in self._hits or (outcome.charged and len(self._hits) < _MAX_COUNTERS):
                self._hits[hit.key] = shared_hit._replace(measure=hit.measure)
        return outcomes

    def hand_back(self, processes: int, now_us: int) -> Iterator[tuple[list[list[Hit]], int]]:
        """Empties it: for each counter the requests that count the same, and for how long they do.

        Fixed and sliding windows can count hits beyond their limit, so all are counted. Buckets,
        logs and leases cannot: of their hits as many are counted as there is room for.
        """
        self._now_us = now_us
        memory, hits = self._memory, self._hits
        self._memory, self._hits = self._empty(), {}
        for hit in hits.values():
            # A share does not bound what was counted: `count_denied` goes beyond it, and there
            # were fewer processes, so larger shares, before.
            overfull = hit.measure.algorithm.denied >= Denied.COUNTED
            most = MAX_ADDEND if overfull else hit.measure.limit
            share = self._share(hit.measure, processes)
            # A refund of nothing is told when all of it is over, also by a limit that is lower now.
            peek = hit._replace(
                measure=share.with_numbers(most, share.rate),
                addend=0,
                mode=Mode.SHADOW,
                refund=True,
                joined=False,
                receipt=None,
            )
            outcome = _settled(memory, peek)
            used = most - outcome.left
            if used > 0:
                base = peek._replace(measure=hit.measure, refund=False, count_denied=True)
                if hit.measure.algorithm.leases:
                    pieces = list(_bundles(base, held(memory.state(hit.key))))
                else:
                    pieces = [base._replace(addend=piece) for piece in _pieces(used, hit.measure)]
                yield [[piece] for piece in pieces], outcome.reset_us

    def _share(self, measure: Measure, processes: int) -> Measure:
        known = self._shares.get((id(measure), processes))
        if known is None:
            if len(self._shares) >= _MAX_COUNTERS:
                self._shares.clear()
            limit, rate = -(-measure.limit // processes), -(-measure.rate // processes)
            if processes > 1 and not measure.algorithm.divided:
                limit = 0  # no part of it can be counted by itself
            known = measure, measure.with_numbers(limit, rate)
            self._shares[id(measure), processes] = known
        return known[1]

    def _empty(self) -> MemoryStore:
        # Its health is of no interest: that the store is away is said already.
        return MemoryStore(_MAX_COUNTERS, self._counters, Health(), lambda: self._now_us)


def _settled(memory: MemoryStore, hit: Hit) -> Outcome:
    found: list[Outcome] = []

    def done(charged: list[Settled]) -> None:
        found.extend(each for each in charged[0].outcomes if each is not None)

    memory.charge([[hit]], done)
    return found[0]


def _bundles(base: Hit, leases: Sequence[tuple[int, bytes]]) -> Iterator[Hit]:
    """Hits that take all of these leases, many at once: each hit reads and writes the counter."""
    for start in range(0, len(leases), _LEASES_AT_ONCE):
        some = leases[start : start + _LEASES_AT_ONCE]
        yield base._replace(addend=sum([hits for hits, _ in some]), lease=several(some))


def _pieces(used: int, measure: Measure) -> Iterator[int]:
    """Hits to be charged one after the other.

    Buckets never hold more than the limit: of halves of halves as many pass as there is room.
    """
    if not measure.rate:
        yield used
        return
    while used:
        piece = -(-used // 2)
        yield piece
        used -= piece
