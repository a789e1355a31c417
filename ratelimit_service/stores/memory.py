"""Counters in this process: the embedded default. Bounded, and exact for one process.

What must not live here: how hits are judged (`algorithms`) and how keys look (`keys`).
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Final

from ratelimit_service.algorithms.fixed_window import passing
from ratelimit_service.algorithms.settle import settle
from ratelimit_service.bugs import Bugs
from ratelimit_service.clock import Clock, now_us
from ratelimit_service.health import Health
from ratelimit_service.model import CounterSpec, Hit, Outcome, State
from ratelimit_service.observer import Stats
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

__all__ = ["UNSETTLED", "MemoryCounter", "MemoryStore"]

_SAMPLE: Final = 6
"""A full store looks at so many old counters to find the one to put out."""

_MOST_ALIKE: Final = 2
"""So many others of these may be put out next, if they have used as little."""

_LIGHT_SHARE: Final = 0.5
"""Only counters that have used less than this are put out for being like another."""

_COUNTERS_PER_TABLE: Final = 512
"""Many small tables instead of one: growing a dict of a million entries takes 40 ms."""

_MAX_TABLES: Final = 4_096

_BULK_BYTES: Final = 256
"""In a longer state each further piece of so many bytes counts as another counter."""

_MOST_OUT: Final = 8
"""At most so many counters are put out after a batch in which others have grown."""

_SLACK_US: Final = 1_000_000
"""A counter whose time is over is kept so much longer, for clocks that step back; as in Redis."""

UNSETTLED: Final = -(1 << 40)
"""Further below 0 than hits of any request can be above a limit."""

_NO_SHARE: Final = 2.0
"""More than any share that a counter can have used."""

_LEAST_SHARE: Final = 2.0**-64
"""Less than the share of any single hit in its limit, but more than nothing."""

_CROWDED_US: Final = 60_000_000
"""For so long health reports that a live counter was put out."""

_WITHIN: Final = Verdict.WITHIN


class MemoryCounter:
    """A state with what is needed to judge, without its rule, how much it matters.

    The state is `number`, which lies in the object itself where it is compiled, or `packed` where
    that is below 0. It has none if the store has dropped it, so that who holds it knows.
    """

    __slots__ = ("number", "packed", "spec")

    def __init__(self, state: State | None, spec: CounterSpec) -> None:
        self.number = -1
        self.packed: bytes | None = None
        self.set(state)
        self.spec = spec

    def get(self) -> State | None:
        """The state."""
        return self.number if self.number >= 0 else self.packed

    def kept(self) -> bool:
        """Whether it is in the store."""
        return self.number >= 0 or self.packed is not None

    def set(self, state: State | None) -> None:
        """Sets another state; none where the store drops it."""
        if isinstance(state, int):
            self.number, self.packed = state, None
        else:
            self.number, self.packed = -1, state


_Table = dict[bytes, MemoryCounter]


class MemoryStore:
    """At most `max_counters` counters in memory; a long log or many leases count for several.

    Charging waits for nothing, so each request is atomic. An insert into a full store puts
    out one of a few old counters: an expired one, else the one that has used the smallest
    share of its limit. Putting out a live one admits too much, so it degrades health.
    """

    def __init__(
        self, max_counters: int, stats: Stats, health: Health, clock: Clock = now_us
    ) -> None:
        self._max_counters = max_counters
        self._stats = stats
        self._health = health
        self._clock = clock
        tables = 1
        while tables < _MAX_TABLES and tables * 2 * _COUNTERS_PER_TABLE <= max_counters:
            tables *= 2
        self._tables: list[_Table] = [{} for _ in range(tables)]
        self._damage = Damage(stats)
        self._bugs = Bugs()
        self._size = 0
        self._bulk = 0
        """How many counters large states count for, beside themselves."""
        self._hand = 0
        self._alike: list[tuple[_Table, bytes, float]] = []
        """Counters that were looked at and had used no more than the one that was put out, with
        the share that they had used."""
        self._crowded_until_us = 0

    def __len__(self) -> int:
        return self._size

    @property
    def waits(self) -> bool:
        """Never, because the counters lie in this process."""
        return False

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
            self._health.recover("store")
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
        if counter is None:
            number = -1
            if self._size + self._bulk >= self._max_counters:
                return UNSETTLED
        else:
            number = counter.number
        if not (spec.adds and addend and (number >= 0 or counter is None)):
            return self._charge_any(key, spec, addend, counter, now)
        number, remaining, reset_us = passing(number, now, addend, spec.limit, spec.window_us)
        if remaining < 0:
            return -1 - max(0, remaining + addend) if reset_us else UNSETTLED
        if counter is not None:
            counter.number = number
            counter.spec = spec
        else:
            table = self._table(key)
            self._sweep(table, now)
            table[key] = MemoryCounter(number, spec)
            self._size += 1
        return remaining

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
            self._bulk += _bulk(state) - _bulk(before)
        elif state is not None:
            table = self._table(key)
            self._sweep(table, now)
            table[key] = MemoryCounter(state, spec)
            self._size += 1
            self._bulk += _bulk(state)
        if self._size + self._bulk > self._max_counters:
            self._make_room(now)
        return remaining

    def counter(self, key: bytes) -> MemoryCounter | None:
        """The counter of a key, for `charge_alone`."""
        return self._table(key).get(key)

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
        new: list[tuple[_Table, bytes]] = []
        state: State | None
        try:
            for key, spec, addend, _, _, refund, lease, _, _, _ in hits:
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
                before = counter.get() if counter is not None else None
                passed, state, remaining, reset_us, _, counted, damaged = spec.algorithm.charge(
                    before, now, addend, spec, False, lease
                )
                if refund or not passed or damaged:
                    return self._settle_anew(hits, now, undo, new)
                if counter is not None:
                    undo.append((counter, before))
                    counter.set(state)
                    counter.spec = spec
                    self._bulk += _bulk(state) - _bulk(before)
                elif state is not None:
                    self._sweep(table, now)
                    table[key] = MemoryCounter(state, spec)
                    self._size += 1
                    new.append((table, key))
                outcomes.append(Outcome(False, remaining, reset_us, counted))
        except Exception:
            self._take_back(undo, new)
            raise
        return Settled(outcomes, _WITHIN)

    def _settle_anew(
        self,
        hits: Sequence[Hit],
        now: int,
        undo: list[tuple[MemoryCounter, State | None]],
        new: list[tuple[_Table, bytes]],
    ) -> Settled:
        """Takes back what was charged of a request so far, and settles it by the rule."""
        self._take_back(undo, new)
        return self._settle(hits, now)

    def _take_back(
        self, undo: list[tuple[MemoryCounter, State | None]], new: list[tuple[_Table, bytes]]
    ) -> None:
        """Undoes the charges of a request. A second call does nothing."""
        for changed, earlier in reversed(undo):
            if changed.kept():  # else it was swept away meanwhile
                self._bulk += _bulk(earlier) - _bulk(changed.get())
                changed.set(earlier)
        for table, key in new:
            table.pop(key).set(None)
        self._size -= len(new)
        undo.clear()
        new.clear()

    def state(self, key: bytes) -> State | None:
        """What is kept of a counter."""
        counter = self._table(key).get(key)
        return None if counter is None else counter.get()

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
        """Lets these counters start anew."""
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
                self._bulk += _bulk(step.state) - _bulk(counter.get())
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
            self._bulk += _bulk(step.state)
        for hit, step in zip(hits, steps, strict=True):
            if hit.spec.rate and not step.counted:
                # How much of a bucket is used depends on the rule's rate, which may be new.
                counter = self._table(hit.key).get(hit.key)
                if counter is not None:
                    counter.spec = hit.spec
        damaged = [hit.key for hit, step in zip(hits, steps, strict=True) if step.damaged]
        if damaged:
            self._damage.note(len(damaged), damaged[0])
        outcomes: Outcomes = []
        verdict = Verdict.WITHIN if by < 0 else Verdict.DENIED
        for passed, _, remaining, reset_us, retry_us, counted, _ in steps:
            if not passed and by < 0:
                verdict = Verdict.ADMITTED
            until_us = reset_us if passed else retry_us
            outcomes.append(Outcome(not passed, remaining, until_us, counted))
        return Settled(outcomes, verdict, by)

    def _table(self, key: bytes) -> _Table:
        return self._tables[hash(key) & len(self._tables) - 1]

    def _evict(self, now: int, spared: Container[bytes]) -> bool:
        """Puts out one of a few old counters; False if all counters are to be spared."""
        if self._alike and self._evict_alike(now, spared):
            return True
        tables = self._tables
        for _ in range(len(tables)):
            table = tables[self._hand]
            self._hand = (self._hand + 1) % len(tables)
            victim, least, looked_at = b"", _NO_SHARE, 0
            seen: list[bytes] = []
            alike: list[bytes] = []
            for key, counter in table.items():
                seen.append(key)
                if key in spared:
                    continue
                used = _share_used(counter, now)
                if used < least:
                    victim, least = key, used
                    alike.clear()
                elif used == least and len(alike) < _MOST_ALIKE:
                    alike.append(key)
                looked_at += 1
                if looked_at == _SAMPLE:
                    break
            if looked_at:
                self._put_out(table, victim, now, live=least > 0)
                seen.remove(victim)
            # A counter that stays goes to the back. Otherwise the same few heavy counters would
            # be looked at each time, and every newer one would be dropped instead.
            for key in seen:
                table[key] = table.pop(key)
            if looked_at:
                if least < _LIGHT_SHARE:
                    for key in alike:
                        self._alike.append((table, key, least))
                return True
        return False

    def _evict_alike(self, now: int, spared: Container[bytes]) -> bool:
        """Puts out a counter that was looked at before; False if none of these should go."""
        while self._alike:
            table, key, share = self._alike.pop()
            found = table.get(key)
            # Meanwhile the counter may have been used more, or replaced by another.
            if found is not None and key not in spared:
                used = _share_used(found, now)
                if used <= share:
                    self._put_out(table, key, now, live=used > 0)
                    return True
        return False

    def _put_out(self, table: _Table, key: bytes, now: int, *, live: bool) -> None:
        self._dropped(table.pop(key))
        self._stats.evictions["live" if live else "expired"] += 1
        if live:
            self._crowded_until_us = now + _CROWDED_US
            self._health.degrade(
                "store",
                f"the memory store is full ({self._max_counters} counters) and puts out live "
                "ones, which admits too much: raise --max-counters",
            )

    def _sweep(self, table: _Table, now: int) -> None:
        """Drops the oldest counter of a table if it is over, so that dead ones do not pile up.

        What was counted now is never over: it still counts, or lies in the future, a moment ago.
        """
        then = now - _SLACK_US
        for key, counter in table.items():
            spec = counter.spec
            if spec.adds and counter.number >= 0:
                _, remaining, _ = passing(counter.number, then, 0, spec.limit, spec.window_us)
                counts = remaining < spec.limit
            else:
                if spec.rate > 1:
                    spec = spec.with_numbers(spec.limit, 1)  # the slowest that its rule may have
                peek = spec.algorithm.charge(counter.get(), then, 0, spec, False, b"")
                counts = peek.remaining < spec.limit or not peek.passed or peek.damaged
            del table[key]
            if counts:
                table[key] = counter
            else:
                self._dropped(counter)
            return

    def _dropped(self, counter: MemoryCounter) -> None:
        """Notes that a counter is in no table any more."""
        self._size -= 1
        self._bulk -= _bulk(counter.get())
        counter.set(None)


def _bulk(state: State | None) -> int:
    """How many further counters a state counts for, beside one."""
    return len(state) // _BULK_BYTES if isinstance(state, bytes) else 0


def _share_used(counter: MemoryCounter, now: int) -> float:
    """How much of its limit a counter has used up, 0 to 1; 0 is as good as no counter at all.

    A state from so far in the future that it counts for nothing now is neither: it will count
    again if the clock goes back to where it was.
    """
    spec, number = counter.spec, counter.number
    limit = spec.limit
    if number >= 0 and limit and spec.adds:
        _, remaining, _ = passing(number, now, 0, limit, spec.window_us)
        if remaining >= 0:
            return (limit - remaining) / limit
    peek = spec.algorithm.charge(counter.get(), now, 0, spec, False, b"")
    if peek.damaged:
        return _LEAST_SHARE
    return (limit - peek.remaining) / limit if peek.passed and limit else float(not peek.passed)
