"""Counters in this process: the embedded default. Bounded, and exact for one process.

What must not live here: how hits are judged (`algorithms`), how keys look (`keys`), what a counter
is (`memory_counter`), and which one goes where there is no room (`memory_tables`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from ratelimit_service.algorithms import holding
from ratelimit_service.algorithms.settle import settle
from ratelimit_service.eventloop.clock import Clock, now_us
from ratelimit_service.model import CounterSpec, Hit, Mode, Outcome, Step
from ratelimit_service.observability.bugs import Bugs
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.stores import (
    BROKEN,
    NEVER,
    Done,
    Look,
    Outcomes,
    Settled,
    Verdict,
    Wanted,
    always,
)
from ratelimit_service.stores.corrupt_state import CorruptState
from ratelimit_service.stores.memory_counter import UNSETTLED, MemoryCounter, bulk_of
from ratelimit_service.stores.memory_holds import HoldingCounter
from ratelimit_service.stores.memory_tables import CounterTable, CounterTables

__all__ = ["MemoryStore"]

_MOST_OUT: Final = 8
"""At most so many counters are put out after a batch in which others have grown."""

_WITHIN: Final = Verdict.WITHIN
_GRANT: Final = Mode.GRANT

_Before = tuple[CounterTable, bytes, MemoryCounter, int, int, bytes | None]
"""A counter and where it lies, with the `number`, `pair` and `packed` that it had."""


class MemoryStore(CounterTables):
    """At most `max_counters` counters in memory; a long log or many leases count for several.

    Charging waits for nothing, so each request is atomic. To put out a live counter of a full store
    admits too much, so it degrades health.
    """

    def __init__(
        self, max_counters: int, stats: Stats, health: Health, clock: Clock = now_us
    ) -> None:
        super().__init__(max_counters, stats, health)
        self._clock = clock
        self._corrupt_state = CorruptState(stats)
        self._bugs = Bugs()

    @property
    def waits(self) -> bool:
        """Never, because the counters lie in this process."""
        return False

    def wait_us(self, priority: int) -> int:  # noqa: ARG002 -- for all the same
        """Nothing waits here."""
        return 0

    async def start(self) -> None:
        """Nothing to try: memory is always there."""

    async def close(self) -> None:
        """Nothing to let go of."""

    def charge(
        self,
        requests: Sequence[Sequence[Hit]],
        done: Done,
        wanted: Wanted = always,  # noqa: ARG002 -- nothing waits here
        deadline_us: int = NEVER,  # noqa: ARG002
        priority: int = 0,  # noqa: ARG002
    ) -> None:
        """Settles the requests one after the other, at one moment, and calls `done` at once.

        A request that cannot be settled, by a fault of ours, is `BROKEN`; it costs no other.
        """
        now = self._clock()
        if self._crowded_until_us and now >= self._crowded_until_us:
            self._crowded_until_us = 0
            self._health.recover("memory")
        settled = [self._charge(hits, now) for hits in requests]
        if self._size + self._bulk > self._max_counters:
            self._make_room(now)
        done(settled)

    def charge_hit(
        self,
        key: bytes,
        spec: CounterSpec,
        addend: int,
        lease: bytes,
        now: int,
        undo: list[_Before] | None = None,
    ) -> tuple[int, int, int]:
        """Charges a counter if the hits pass, as `MemoryCounter.charge` tells it.

        A request of one hit is settled with that, unless what remains is `UNSETTLED`; a refund, and
        what counts denied hits, is for `charge`. What it was before goes to `undo`.
        """
        table = self._tables[hash(key) & len(self._tables) - 1]
        counter = table.get(key)
        new = counter is None
        if counter is None:
            if self._size + self._bulk >= self._max_counters:
                return UNSETTLED, 0, 0
            counter = MemoryCounter(spec)
        number, pair, packed = counter.number, counter.pair, counter.packed
        charged = counter.charge(now, addend, spec, lease)
        if charged[2]:
            if new:
                self._sweep(table, now)
                table[key] = counter
                self._size += 1
            if counter.packed is not packed:
                self._bulk += bulk_of(counter.packed) - bulk_of(packed)
            if undo is not None:
                undo.append((table, key, counter, number, pair, packed))
            elif self._size + self._bulk > self._max_counters:
                self._make_room(now)
        return charged

    def _make_room(self, now: int) -> None:
        """Puts out counters if those of a batch have grown beyond the bound."""
        try:
            for _ in range(max(_MOST_OUT, self._size - self._max_counters)):
                if self._size + self._bulk <= self._max_counters:
                    break
                self._evict(now, ())
        except Exception as error:  # requests that have been counted still get their answers
            self._bugs.note("counters could not be put out of memory", error)

    def _charge(self, hits: Sequence[Hit], now: int) -> Settled:
        """Charges hit after hit while each passes, as nearly always.

        If a hit does not pass, or is a refund, this is undone and `settle` decides. For a request
        whose hits all pass both do the same. After a fault of ours it has counted nothing.
        """
        outcomes: Outcomes = []
        undo: list[_Before] | None = [] if len(hits) > 1 else None
        tables, mask = self._tables, len(self._tables) - 1
        try:
            for hit in hits:
                key, spec, addend, mode, _, refund, lease, _, _, receipt = hit
                if refund or mode is _GRANT or receipt is not None:
                    break
                table = tables[hash(key) & mask]
                counter = table.get(key)
                if counter is not None and counter.number >= 0:  # what `charge_hit` does with it
                    if undo is not None:
                        undo.append((table, key, counter, counter.number, counter.pair, None))
                    charged = counter.charge(now, addend, spec, lease)
                else:
                    charged = self.charge_hit(key, spec, addend, lease, now, undo)
                remaining, reset_us, counted = charged
                if remaining < 0:
                    break
                outcomes.append(Outcome(False, remaining, reset_us, counted))
            else:
                return Settled(outcomes, _WITHIN)
            self._take_back(undo)
            return self._settle(hits, now)
        except Exception as error:
            self._bugs.note("a request could not be counted in memory", error)
            self._take_back(undo)
            return BROKEN

    def _take_back(self, undo: list[_Before] | None) -> None:
        """Undoes what was charged of a request so far."""
        while undo:
            table, key, counter, number, pair, packed = undo.pop()
            self._bulk += bulk_of(packed) - bulk_of(counter.packed)
            counter.number, counter.pair, counter.packed = number, pair, packed
            new = number < 0 and packed is None and not isinstance(counter, HoldingCounter)
            if new:
                del table[key]
                self._size -= 1

    def known_over(self, hits: Sequence[Hit]) -> Settled | None:
        """What would become of a request that is denied now; None if it passes.

        Nothing is changed. None, too, if a denied request would be counted, or be a refund.
        """
        if any(hit.count_denied or hit.refund for hit in hits):
            return None
        now = self._clock()
        steps, _, by = settle(hits, self.state, now, partial(self._held, now))
        return None if by < 0 else _settled(steps, by)

    async def look(self, peeks: Sequence[Hit]) -> list[Look | None]:
        """How these counters stand. Nothing is kept of who looks."""
        now = self._clock()
        found: list[Look | None] = []
        for peek in peeks:
            state = self.state(peek.key)
            step = holding.peek(peek, state, now, {}, partial(self._held, now))
            until_us = step.reset_us if step.passed else step.retry_us
            outcome = Outcome(not step.passed, step.remaining, until_us, 0)
            counter = self._table(peek.key).get(peek.key)
            if peek.spec.holds and isinstance(counter, HoldingCounter):
                found.append(Look(outcome, state, now, holds=counter.holds()))
            else:
                found.append(Look(outcome, state, now))
        return found

    async def forget(self, hits: Sequence[Hit]) -> None:
        """Lets these counters start again from nothing."""
        for hit in hits:
            counter = self._table(hit.key).pop(hit.key, None)
            if counter is not None:
                self._dropped(counter)

    def _settle(self, hits: Sequence[Hit], now: int) -> Settled:
        steps, changes, by = settle(hits, self.state, now, partial(self._held, now))
        spared: set[bytes] = set()
        crammed = False
        for name, (hit, step) in changes.items():
            if step.state is None:
                continue
            key = hit.key
            table = self._table(key)
            counter = table.get(key)
            if counter is None:
                if self._size + self._bulk < self._max_counters:
                    self._sweep(table, now)
                elif not crammed:
                    # A request's own counters never make room for each other. If there are no
                    # others, the store holds too many until the batch is done.
                    spared = spared or {hit.key for hit in hits}
                    crammed = not self._evict(now, spared)
                counter = table[key] = MemoryCounter(hit.spec)
                self._size += 1
            if name != key:
                self._hold(table, counter, name, hit, step, now)
                continue
            self._bulk += bulk_of(step.state) - bulk_of(counter.packed)
            counter.set(step.state)
            counter.spec = hit.spec
        damaged = []
        for hit, step in zip(hits, steps, strict=True):
            if step.damaged:
                damaged.append(hit.key)
            if hit.spec.rate and not step.counted:
                # How much of a bucket is used depends on the rule's rate, which may be new.
                counter = self._table(hit.key).get(hit.key)
                if counter is not None:
                    counter.spec = hit.spec
        if damaged:
            self._corrupt_state.note(len(damaged), damaged[0])
        return _settled(steps, by)

    def _held(self, now: int, key: bytes, hold_id: bytes) -> int:
        """What is held beside a counter at that moment, as `ReadHeld` says it."""
        counter = self._table(key).get(key)
        if not isinstance(counter, HoldingCounter):
            return 0
        counter.expire(now)
        return counter.held(hold_id)

    def _hold(
        self,
        table: CounterTable,
        counter: MemoryCounter,
        name: bytes,
        hit: Hit,
        step: Step,
        now: int,
    ) -> None:
        """Writes what is held beside a counter under a name of `holding.Changes`."""
        hold_id = holding.held_by(name, hit.key)
        if not hold_id or not isinstance(step.state, int):
            return  # the sum follows from the holds
        if not isinstance(counter, HoldingCounter):
            counter = table[hit.key] = HoldingCounter.of(counter)
        counter.hold(hold_id, step.state, step.reset_us, now)
        self._bulk += counter.grown()


def _settled(steps: Sequence[Step], by: int) -> Settled:
    """What becomes of a request whose hits come to these steps; `by` is the one that denies it."""
    outcomes: Outcomes = []
    verdict = Verdict.WITHIN if by < 0 else Verdict.DENIED
    for passed, _, remaining, reset_us, retry_us, counted, _ in steps:
        if not passed and by < 0:
            verdict = Verdict.ADMITTED
        until_us = reset_us if passed else retry_us
        outcomes.append(Outcome(not passed, remaining, until_us, counted))
    return Settled(outcomes, verdict, by)
