"""Keys known to be over their limit, so that a flood of denied requests costs no store.

A key enters when not even one hit would pass before some moment. It leaves at that moment, but
after a second at most, so that refunds, give-backs and changed rules of other processes take effect
within a second. Those of this process take effect at once, also against the answer to a charge that
was asked before them. The moment is reckoned from when the store was asked, never from when it
answered, so that no key is denied for longer than its window. Nothing is ever admitted from here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from ratelimit_service.eventloop.clock import Clock, elapsed_us
from ratelimit_service.model import SECOND_US, CounterSpec, Hit, Mode, Outcome
from ratelimit_service.observability.bugs import Bugs
from ratelimit_service.observability.stats import Stats
from ratelimit_service.stores import (
    NEVER,
    Done,
    Outcomes,
    Settled,
    Store,
    Verdict,
    Wanted,
    always,
    wanted_at,
)

__all__ = ["LocalCache", "denied_us"]

_ENTRY_BYTES: Final = 320
"""The bytes that a key takes beside its own: its entry, two times, and its part of the table."""

_LIFE_US: Final = SECOND_US
_LEAST_LIFE_US: Final = SECOND_US // 10
_PARTS: Final = 50
"""A leased limit is taken to be over for this part of its window, or of the time in which its
bucket fills, and 0.1 s at least: any process may hand back hits that it was given ahead."""
_WITHIN: Final = Verdict.WITHIN

_MAX_GIVEN_BACK: Final = 1_000
"""For so many keys the moment of their last give-back is remembered."""


class _Over(NamedTuple):
    """Until when a key is taken to be over, and until when it is over if nothing is given back."""

    expires_us: int
    passes_us: int
    spec: CounterSpec


class LocalCache:
    """A store in front of another. It denies requests of which every hit is known to be over.

    Only enforced single hits are answered: a rule in shadow or quota mode, one that counts what
    is denied, and algorithms that can let somebody in at any time always ask the store.
    """

    def __init__(
        self, store: Store, max_bytes: int, stats: Stats, clock: Clock = elapsed_us
    ) -> None:
        self._store = store
        self._max_bytes = max_bytes
        self._stats = stats
        self._clock = clock
        self._over: dict[bytes, _Over] = {}
        self._bytes = 0
        self._bugs = Bugs()
        self._given_back: dict[bytes, int] = {}
        """For each key when hits on it were last given back, the oldest first."""
        self._trusted_after_us = -1
        """Answers to charges before this moment are not used: later give-backs may be forgotten."""

    def __len__(self) -> int:
        return len(self._over)

    @property
    def waits(self) -> bool:
        """As the store behind it."""
        return self._store.waits

    def wait_us(self, priority: int) -> int:
        """As in the store behind it."""
        return self._store.wait_us(priority)

    async def start(self) -> None:
        """As the store behind it."""
        await self._store.start()

    async def close(self) -> None:
        """As the store behind it."""
        await self._store.close()

    def charge(
        self,
        requests: Sequence[Sequence[Hit]],
        done: Done,
        wanted: Wanted = always,
        deadline_us: int = NEVER,
        priority: int = 0,
    ) -> None:
        """Denies what is known to be over, and has the store settle the rest."""
        asked_us = self._clock()
        known = self._known(requests, asked_us) if self._over else None
        counts = self._stats.local_cache
        if not known:
            counts["miss"] += len(requests)
            settled = partial(self._settled, requests, asked_us, done)
            self._store.charge(requests, settled, wanted, deadline_us, priority)
            return
        counts["hit"] += len(known)
        counts["miss"] += len(requests) - len(known)
        indexes = [index for index in range(len(requests)) if index not in known]
        unknown = [requests[index] for index in indexes]
        merge = partial(self._merge, unknown, asked_us, known, done)
        if unknown:
            wanted_unknown = partial(wanted_at, wanted, indexes)
            self._store.charge(unknown, merge, wanted_unknown, deadline_us, priority)
        else:
            merge([])

    def _settled(
        self,
        requests: Sequence[Sequence[Hit]],
        asked_us: int,
        done: Done,
        results: list[Settled],
    ) -> None:
        self._learn(requests, results, asked_us)
        done(results)

    def _merge(
        self,
        unknown: Sequence[Sequence[Hit]],
        asked_us: int,
        known: dict[int, Settled],
        done: Done,
        results: list[Settled],
    ) -> None:
        self._learn(unknown, results, asked_us)
        rest = iter(results)
        indexes = range(len(unknown) + len(known))
        done([known[index] if index in known else next(rest) for index in indexes])

    def _known(self, requests: Sequence[Sequence[Hit]], now: int) -> dict[int, Settled]:
        """What becomes of requests of which every hit is known to be over, by their place."""
        known: dict[int, Settled] = {}
        for index, hits in enumerate(requests):
            outcomes: Outcomes = []
            for hit in hits:
                over = self._over.get(hit[0])
                if over is None or not _cached(hit) or over.spec != hit.spec:
                    break
                if over.expires_us <= now:
                    self._expired(hit[0], over, now)
                    break
                outcomes.append(Outcome(True, 0, over.passes_us - now, 0))
            else:
                if outcomes and len({hit.key for hit in hits}) == len(hits):
                    known[index] = Settled(outcomes, Verdict.DENIED, 0, cached=True)
        return known

    def _expired(self, key: bytes, over: _Over, now: int) -> None:
        """The store is asked again. Of a leased limit one asks for all, until it has its answer."""
        if over.spec.advances and now < over.passes_us:
            expires_us = min(over.passes_us, now + denied_us(over.spec))
            self._over[key] = over._replace(expires_us=expires_us)
        else:
            self._forget(key)

    def known_over(self, hits: Sequence[Hit]) -> Settled | None:
        """What becomes of a request of which every hit is known to be over; else None."""
        known = self._known((hits,), self._clock()).get(0) if self._over else None
        if known is not None:
            self._stats.local_cache["hit"] += 1
        return known

    def given_back(self, keys: Sequence[bytes]) -> None:
        """Hits on these counters have been given back: what denied them may deny no more.

        That goes for charges under way as well: they may have been settled before.
        """
        now, moments = self._clock(), self._given_back
        for key in keys:
            self._forget(key)
            moments.pop(key, None)
            moments[key] = now
        while len(moments) > _MAX_GIVEN_BACK:
            self._trusted_after_us = moments.pop(next(iter(moments)))

    def _learn(
        self, requests: Sequence[Sequence[Hit]], settled: Sequence[Settled], asked_us: int
    ) -> None:
        over = self._over
        try:
            for hits, each in zip(requests, settled, strict=True):
                if each.verdict is _WITHIN and not over:  # nothing to remember or to forget
                    for hit in hits:
                        if hit[5]:
                            break
                    else:
                        continue
                self._learn_from(hits, each.outcomes, asked_us)
        except Exception as error:  # a fault in this cache must cost no request its answer
            self._bugs.note("the local cache is emptied", error)
            self._over, self._bytes = {}, 0

    def _learn_from(self, hits: Sequence[Hit], outcomes: Outcomes, asked_us: int) -> None:
        for hit, outcome in zip(hits, outcomes, strict=False):
            if outcome is None:
                continue
            if hit.refund:
                self.given_back([hit.key])
            elif outcome.over:
                self._remember(hit, outcome, hits, asked_us)
            elif (
                not outcome.charged
                or hit.spec.advances
                or _leaks_otherwise(self._over.get(hit.key), hit)
            ):
                self._forget(hit.key)  # hits of others may pass

    def _remember(self, hit: Hit, outcome: Outcome, hits: Sequence[Hit], asked_us: int) -> None:
        """Takes in the key of a denied hit, if no other hit of the request can have filled it."""
        if (
            outcome.remaining
            or outcome.local
            or not _cached(hit)
            or sum(other.key == hit.key for other in hits) > 1
            or asked_us <= self._given_back.get(hit.key, self._trusted_after_us)
        ):
            return
        # The store counted later than it was asked, so the wait ends no earlier than this.
        passes_us, life_us = outcome.reset_us, denied_us(hit.spec)
        if hit.spec.advances and hit.spec.rate:
            passes_us = max(passes_us, life_us)
        self._forget(hit.key)
        self._over[hit.key] = _Over(
            asked_us + min(passes_us, life_us), asked_us + passes_us, hit.spec
        )
        self._bytes += _ENTRY_BYTES + len(hit.key)
        while self._bytes > self._max_bytes:
            self._forget(next(iter(self._over)))

    def _forget(self, key: bytes) -> None:
        if self._over.pop(key, None) is not None:
            self._bytes -= _ENTRY_BYTES + len(key)


def denied_us(spec: CounterSpec) -> int:
    """How long a key is taken to be over at most; of a leased bucket just so long.

    What has come back to a bucket meanwhile passes then, at once.
    """
    if not spec.advances:
        return _LIFE_US
    window_us = spec.limit * spec.window_us // spec.rate if spec.rate else spec.window_us
    return max(_LEAST_LIFE_US, min(_LIFE_US, window_us // _PARTS))


def _leaks_otherwise(known: _Over | None, hit: Hit) -> bool:
    """Whether the bucket may be emptier than is known, because this hit leaks at another rate.

    An override can give one of the descriptors that share a bucket another rate.
    """
    return known is not None and known.spec.rate != hit.spec.rate


def _cached(hit: Hit) -> bool:
    """Whether a hit may be denied from here. Others need the store, to count or to say more."""
    return (
        hit.addend == 1
        and hit.mode is Mode.ENFORCED
        and not (hit.count_denied or hit.refund)
        and hit.spec.cached
    )
