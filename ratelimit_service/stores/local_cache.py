"""Keys known to be over their limit, so that a flood of denied requests costs no store.

A key enters when not even one hit would pass before some moment, and leaves then, or after a
second: refunds, give-backs and changed rules reach every process within that. This process's
own reach it at once. Nothing is ever admitted from here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from ratelimit_service.clock import Clock, elapsed_us
from ratelimit_service.model import SECOND_US, Hit, Measure, Mode, Outcome
from ratelimit_service.observer import Counters
from ratelimit_service.stores import NEVER, Outcomes, Store, Wanted, always, wanted_at

__all__ = ["LocalCache"]

_ENTRY_BYTES: Final = 320
"""What a key takes beside its own length: its entry, two times, and its part of the table."""

_LIFE_US: Final = SECOND_US


class _Over(NamedTuple):
    """Until when a key is believed to be over, and until when it is if nothing is given back."""

    expires_us: int
    passes_us: int
    measure: Measure


class LocalCache:
    """A store before which denied requests end, if all they ask for is known to be over.

    Only enforced single hits are answered: a rule in shadow or quota mode, one that counts what
    is denied, and `concurrency`, whose leases come back at any time, always ask the store.
    """

    def __init__(
        self, store: Store, max_bytes: int, counters: Counters, clock: Clock = elapsed_us
    ) -> None:
        self._store = store
        self._max_bytes = max_bytes
        self._counters = counters
        self._clock = clock
        self._over: dict[bytes, _Over] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._over)

    async def start(self) -> None:
        """As the store behind it."""
        await self._store.start()

    async def close(self) -> None:
        """As the store behind it."""
        await self._store.close()

    def charge(
        self,
        requests: Sequence[Sequence[Hit]],
        done: Callable[[list[Outcomes]], None],
        wanted: Wanted = always,
        deadline_us: int = NEVER,
    ) -> None:
        """Denies what is known to be over, and has the store settle the rest."""
        known = self._known(requests) if self._over else {}
        counts = self._counters.local_cache
        counts["hit"] += len(known)
        counts["miss"] += len(requests) - len(known)
        if not known:
            self._store.charge(
                requests, partial(self._settled, requests, done), wanted, deadline_us
            )
            return
        places = [place for place in range(len(requests)) if place not in known]
        asked = [requests[place] for place in places]
        some_settled = partial(self._some_settled, asked, known, done)
        if asked:
            self._store.charge(asked, some_settled, partial(wanted_at, wanted, places), deadline_us)
        else:
            some_settled([])

    def _settled(
        self,
        requests: Sequence[Sequence[Hit]],
        done: Callable[[list[Outcomes]], None],
        outcomes: list[Outcomes],
    ) -> None:
        self._learn(requests, outcomes)
        done(outcomes)

    def _some_settled(
        self,
        asked: Sequence[Sequence[Hit]],
        known: dict[int, Outcomes],
        done: Callable[[list[Outcomes]], None],
        outcomes: list[Outcomes],
    ) -> None:
        self._learn(asked, outcomes)
        rest = iter(outcomes)
        places = range(len(asked) + len(known))
        done([known[at] if at in known else next(rest) for at in places])

    def _known(self, requests: Sequence[Sequence[Hit]]) -> dict[int, Outcomes]:
        """The outcomes of requests of which every hit is known to be over, by their place."""
        found: dict[int, Outcomes] = {}
        now = self._clock()
        for place, hits in enumerate(requests):
            outcomes = []
            for hit in hits:
                over = self._over.get(hit[0])
                if over is None or not _cached(hit) or over.measure != hit.measure:
                    break
                if over.expires_us <= now:
                    self._forget(hit[0])
                    break
                outcomes.append(Outcome(True, 0, over.passes_us - now, 0))
            else:
                if outcomes and len({hit.key for hit in hits}) == len(hits):
                    found[place] = outcomes
        return found

    def _learn(self, requests: Sequence[Sequence[Hit]], outcomes: Sequence[Outcomes]) -> None:
        over = self._over
        for place, found in enumerate(outcomes):
            if not over:  # then there is nothing to forget, and most have nothing to remember
                for outcome in found:
                    if outcome is not None and outcome[0]:
                        break
                else:
                    continue
            hits = requests[place]
            for at, outcome in enumerate(found):
                hit = hits[at]
                if outcome is None:
                    continue
                if outcome.over:
                    self._remember(hit, outcome, hits)
                elif hit.refund or not outcome.charged:
                    self._forget(hit.key)  # given back, or not charged: others may pass

    def _remember(self, hit: Hit, outcome: Outcome, hits: Sequence[Hit]) -> None:
        """Takes in the key of a denied hit, if no other hit of the request can have filled it."""
        if (
            outcome.left
            or outcome.local
            or not _cached(hit)
            or sum(other.key == hit.key for other in hits) > 1
        ):
            return
        now, passes_us = self._clock(), outcome.reset_us
        self._forget(hit.key)
        self._over[hit.key] = _Over(now + min(passes_us, _LIFE_US), now + passes_us, hit.measure)
        self._bytes += _ENTRY_BYTES + len(hit.key)
        while self._bytes > self._max_bytes:
            self._forget(next(iter(self._over)))

    def _forget(self, key: bytes) -> None:
        if self._over.pop(key, None) is not None:
            self._bytes -= _ENTRY_BYTES + len(key)


def _cached(hit: Hit) -> bool:
    """Whether a hit may be denied from here: for others the store has more to do, or to say."""
    return (
        hit.addend == 1
        and hit.mode is Mode.ENFORCED
        and not (hit.count_denied or hit.refund)
        and hit.measure.algorithm != "concurrency"
    )
