"""Counters in this process: the embedded default. Bounded, and exact for one process.

What must not live here: how hits are judged (`algorithms`), how keys look (`keys`), what a counter
is (`memory_counter`), and which one goes where there is no room (`memory_tables`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ratelimit_service.algorithms import sliding_window
from ratelimit_service.algorithms.fixed_window import passing
from ratelimit_service.algorithms.settle import settle
from ratelimit_service.eventloop.clock import Clock, now_us
from ratelimit_service.model import CounterSpec, Hit, Outcome, State, Step
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
from ratelimit_service.stores.damage import Damage
from ratelimit_service.stores.memory_counter import MemoryCounter, bulk_of
from ratelimit_service.stores.memory_tables import CounterTable, CounterTables

__all__ = ["UNSETTLED", "MemoryStore"]

_MOST_OUT: Final = 8
"""At most so many counters are put out after a batch in which others have grown."""

UNSETTLED: Final = -(1 << 40)
"""Further below 0 than hits of any request can be above a limit."""

_WITHIN: Final = Verdict.WITHIN


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
        self._damage = Damage(stats)
        self._bugs = Bugs()

    @property
    def waits(self) -> bool:
        """Never, because the counters lie in this process."""
        return False

    def wait_us(self, rank: int) -> int:  # noqa: ARG002 -- for all the same
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
        rank: int = 0,  # noqa: ARG002
    ) -> None:
        """Settles the requests one after the other, at one moment, and calls `done` at once.

        A request that cannot be settled, by a fault of ours, is `BROKEN`; it costs no other.
        """
        now = self._clock()
        if self._crowded_until_us and now >= self._crowded_until_us:
            self._crowded_until_us = 0
            self._health.recover("memory")
        found: list[Settled] = []
        rest = iter(requests)
        while len(found) < len(requests):
            try:
                for hits in rest:
                    found.append(self._charge(hits, now))  # noqa: PERF401 -- kept if one fails
            except Exception as error:
                self._bugs.note("a request could not be counted in memory", error)
                found.append(BROKEN)
        if self._size + self._bulk > self._max_counters:
            self._make_room(now)
        done(found)

    def charge_alone(
        self,
        key: bytes,
        spec: CounterSpec,
        addend: int,
        now: int,
        held: MemoryCounter | None = None,
    ) -> int:
        """Settles a request that is one hit at that moment, as `charge` does.

        Not for refunds, leases, and what counts denied hits. `held` is what `counter` told of this
        key once: then it need not be looked up.

        Tells the hits that remain. If they are below 0, the limit is over and nothing was counted;
        -1 stands for no hit that remains, -2 for one. `UNSETTLED` if this is for `charge`.
        """
        counter = held
        if counter is None or not counter.kept():
            counter = self._table(key).get(key)
        if counter is None and self._size + self._bulk >= self._max_counters:
            return UNSETTLED
        if not addend:
            return self._charge_any(key, spec, addend, counter, now)
        number = -1 if counter is None else counter.number
        if spec.adds and (number >= 0 or counter is None):
            number, remaining, reset_us = passing(number, now, addend, spec.limit, spec.window_us)
            if remaining < 0:
                return -1 - max(0, remaining + addend) if reset_us else UNSETTLED
            if counter is None:
                counter = self._new(key, spec, now)
            counter.number = number
        elif spec.paired and (counter is None or counter.pair >= 0):
            remaining, reset_us = self._pair(key, spec, addend, counter, now)
            if remaining < 0:
                return -1 - max(0, remaining + addend) if reset_us else UNSETTLED
            return remaining
        else:
            return self._charge_any(key, spec, addend, counter, now)
        counter.spec = spec
        return remaining

    def _pair(
        self, key: bytes, spec: CounterSpec, addend: int, counter: MemoryCounter | None, now: int
    ) -> tuple[int, int]:
        """Charges a pair of counts: the hits that remain, and the reset, as `passing` has them.

        If there is no room nothing is changed.
        """
        number, before, count = -1, 0, 0
        if counter is not None:
            number, before, count = counter.get_pair()
        number, before, count, remaining, reset_us = sliding_window.passing(
            number, before, count, now, addend, spec
        )
        if remaining >= 0:
            if counter is None:
                counter = self._new(key, spec, now)
            counter.set_pair(number, before, count)
            counter.spec = spec
        return remaining, reset_us

    def _charge_any(
        self, key: bytes, spec: CounterSpec, addend: int, counter: MemoryCounter | None, now: int
    ) -> int:
        """As `charge_alone`, whatever the algorithm."""
        before = counter.get() if counter is not None else None
        passed, state, remaining, _, _, _, damaged = spec.algorithm.charge(
            before, now, addend, spec, False, b""
        )
        if damaged:
            return UNSETTLED
        if not passed:
            if spec.rate and counter is not None:
                counter.spec = spec  # as in `_settle`
            return -1 - remaining
        if counter is not None:
            counter.set(state)
            counter.spec = spec
            self._bulk += bulk_of(state) - bulk_of(before)
        elif state is not None:
            self._new(key, spec, now).set(state)
            self._bulk += bulk_of(state)
        if self._size + self._bulk > self._max_counters:
            self._make_room(now)
        return remaining

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
        whose hits all pass both do the same.
        """
        tables, mask = self._tables, len(self._tables) - 1
        outcomes: Outcomes = []
        undo: list[tuple[MemoryCounter, State | None]] = []
        new: list[tuple[CounterTable, bytes]] = []
        try:
            for hit in hits:
                key, spec, addend, _, _, refund, _, _, _, _ = hit
                table = tables[hash(key) & mask]
                counter = table.get(key)
                if counter is None and self._size + self._bulk >= self._max_counters:
                    return self._settle_anew(hits, now, undo, new)
                if spec.adds and addend and not refund:
                    number = counter.number if counter is not None else -1
                    number, remaining, reset_us = passing(
                        number, now, addend, spec.limit, spec.window_us
                    )
                    if remaining < 0 or (counter is not None and counter.packed is not None):
                        return self._settle_anew(hits, now, undo, new)
                    if counter is None:
                        self._sweep(table, now)
                        table[key] = MemoryCounter(number, spec)
                        self._size += 1
                        new.append((table, key))
                    else:
                        if len(hits) > 1:
                            undo.append((counter, counter.number))
                        counter.number = number
                        counter.spec = spec
                    outcomes.append(Outcome(False, remaining, reset_us, addend))
                    continue
                outcome = self._charge_other(hit, table, counter, now, undo, new, len(hits) == 1)
                if outcome is None:
                    return self._settle_anew(hits, now, undo, new)
                outcomes.append(outcome)
        except Exception:
            self._take_back(undo, new)
            raise
        return Settled(outcomes, _WITHIN)

    def _charge_other(
        self,
        hit: Hit,
        table: CounterTable,
        counter: MemoryCounter | None,
        now: int,
        undo: list[tuple[MemoryCounter, State | None]],
        new: list[tuple[CounterTable, bytes]],
        alone: bool,
    ) -> Outcome | None:
        """Charges a hit by any algorithm; None if it does not just pass.

        What a later hit would have to undo is noted, unless it is `alone` in its request.
        """
        key, spec, addend, _, _, refund, lease, _, _, _ = hit
        if spec.paired and addend and not refund and (counter is None or counter.pair >= 0):
            if counter is not None and not alone:
                undo.append((counter, counter.get()))
            remaining, reset_us = self._pair(key, spec, addend, counter, now)
            if remaining < 0:
                return None
            if counter is None:
                new.append((table, key))
            return Outcome(False, remaining, reset_us, addend)
        before = None if counter is None else counter.get()
        passed, state, remaining, reset_us, _, counted, damaged = spec.algorithm.charge(
            before, now, addend, spec, False, lease
        )
        if refund or not passed or damaged:
            return None
        if counter is not None:
            undo.append((counter, before))
            counter.set(state)
            counter.spec = spec
            self._bulk += bulk_of(state) - bulk_of(before)
        elif state is not None:
            self._new(key, spec, now).set(state)
            new.append((table, key))
        return Outcome(False, remaining, reset_us, counted)

    def _settle_anew(
        self,
        hits: Sequence[Hit],
        now: int,
        undo: list[tuple[MemoryCounter, State | None]],
        new: list[tuple[CounterTable, bytes]],
    ) -> Settled:
        """Takes back what was charged of a request so far, and settles it by the rule."""
        self._take_back(undo, new)
        return self._settle(hits, now)

    def _take_back(
        self, undo: list[tuple[MemoryCounter, State | None]], new: list[tuple[CounterTable, bytes]]
    ) -> None:
        """Undoes the charges of a request. A second call does nothing."""
        for changed, earlier in reversed(undo):
            if changed.kept():  # else it was swept away meanwhile
                self._bulk += bulk_of(earlier) - bulk_of(changed.packed)
                changed.set(earlier)
        for table, key in new:
            table.pop(key).set(None)
        self._size -= len(new)
        undo.clear()
        new.clear()

    def known_over(self, hits: Sequence[Hit]) -> Settled | None:
        """What would become of a request that is denied now; None if it passes.

        Nothing is changed. None, too, if a denied request would be counted, or be a refund.
        """
        if any(hit.count_denied or hit.refund for hit in hits):
            return None
        steps, _, by = settle(hits, self.state, self._clock())
        return None if by < 0 else _settled(steps, by)

    async def look(self, peeks: Sequence[Hit]) -> list[Look | None]:
        """How these counters stand. Nothing is kept of who looks."""
        now = self._clock()
        found: list[Look | None] = []
        for peek in peeks:
            state = self.state(peek.key)
            step = peek.spec.algorithm.charge(state, now, 0, peek.spec, False, b"")
            until_us = step.reset_us if step.passed else step.retry_us
            outcome = Outcome(not step.passed, step.remaining, until_us, 0)
            found.append(Look(outcome, state, now))
        return found

    async def forget(self, hits: Sequence[Hit]) -> None:
        """Lets these counters start again from nothing."""
        for hit in hits:
            counter = self._table(hit.key).pop(hit.key, None)
            if counter is not None:
                self._dropped(counter)

    def _settle(self, hits: Sequence[Hit], now: int) -> Settled:
        steps, changes, by = settle(hits, self.state, now)
        spared: set[bytes] = set()
        crammed = False
        for key, (hit, step) in changes.items():
            if step.state is None:
                continue
            table = self._table(key)
            counter = table.get(key)
            if counter is not None:
                self._bulk += bulk_of(step.state) - bulk_of(counter.packed)
                counter.set(step.state)
                counter.spec = hit.spec
                continue
            if self._size + self._bulk < self._max_counters:
                self._sweep(table, now)
            elif not crammed:
                # A request's own counters never make room for each other. If there are no
                # others, the store holds too many until the batch is done.
                spared = spared or {hit[0] for hit in hits}
                crammed = not self._evict(now, spared)
            table[key] = MemoryCounter(step.state, hit.spec)
            self._size += 1
            self._bulk += bulk_of(step.state)
        for hit, step in zip(hits, steps, strict=True):
            if hit.spec.rate and not step.counted:
                # How much of a bucket is used depends on the rule's rate, which may be new.
                counter = self._table(hit.key).get(hit.key)
                if counter is not None:
                    counter.spec = hit.spec
        damaged = [hit.key for hit, step in zip(hits, steps, strict=True) if step.damaged]
        if damaged:
            self._damage.note(len(damaged), damaged[0])
        return _settled(steps, by)


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
