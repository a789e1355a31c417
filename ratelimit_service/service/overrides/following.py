"""The overrides that are in force in this process: followed where they are kept, and changed there.

What must not live here: what overrides do (`in_force`), and where they are kept (`stores`).
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import islice
from typing import Final

from ratelimit_service.errors import StoreError
from ratelimit_service.eventloop.clock import Clock, now_us
from ratelimit_service.eventloop.slices import slowly
from ratelimit_service.model import NEVER_US, SECOND_US, Entry, Override
from ratelimit_service.observability.bugs import Bugs
from ratelimit_service.observability.stats import Stats
from ratelimit_service.service.overrides.in_force import OverridesInForce
from ratelimit_service.stores.overrides import OverrideStore

__all__ = ["Overrides", "age"]

_LOOK_SECONDS: Final = 0.4
"""How often it is asked whether they have changed; within a second they are in force."""

_AT_ONCE: Final = 50
"""So many are put in force between batches of requests."""

_COMPARED_AT_ONCE: Final = 500
"""So many are compared with what is in force between batches of requests."""

_KEPT_US: Final = 60 * SECOND_US
"""Ended overrides are kept for so long, for processes whose clocks are behind."""

_FORGOTTEN_AT_ONCE: Final = 100
"""So many ended ones go with a change: where they are kept they are removed in one go."""


def age(override: Override) -> tuple[int, str]:
    """By which the oldest comes first."""
    return override.made_us, override.id


class Overrides:
    """Keeps those in force up to date. While nobody can say, the last known ones stay in force."""

    def __init__(
        self, kept: OverrideStore, in_force: OverridesInForce, stats: Stats, clock: Clock = now_us
    ) -> None:
        self.kept = kept
        self.clock = clock
        self._stats = stats
        self._in_force = in_force
        self._known: dict[str, Override] = {}
        """All that are kept, ended ones too."""
        self._held: dict[str, Override] = {}
        """Those that are in force."""
        self._in_order: list[Override] = []
        """The same, the oldest first."""
        self._alike: dict[tuple[str, tuple[Entry, ...]], list[Override]] = {}
        """The same by domain and entries."""
        self._kinds: Counter[str] = Counter()
        self.patterns = 0
        """How many of them have a `*`."""
        self._next_end_us = NEVER_US
        """None ends before."""
        self._changing = asyncio.Lock()
        self._turn = asyncio.Lock()
        self._bugs = Bugs()

    def in_force(self) -> list[Override]:
        """Those that hold now, the oldest first."""
        now = self.clock()
        return [each for each in self._in_order if each.holds(now)]

    def find(self, name: str) -> Override | None:
        """The one with this id, if it holds now."""
        override = self._held.get(name)
        return override if override is not None and override.holds(self.clock()) else None

    def alike(self, domain: str, entries: tuple[Entry, ...]) -> list[Override]:
        """Those that hold now and are written with just these entries, the oldest first."""
        now = self.clock()
        overrides = [each for each in self._alike.get((domain, entries), ()) if each.holds(now)]
        return sorted(overrides, key=age)

    @asynccontextmanager
    async def followed(self) -> AsyncIterator[None]:
        """Keeps up with changes; those that are kept now are in force from the beginning."""
        with suppress(StoreError):  # the store's health says so
            await self.refresh()
        following = asyncio.create_task(self._follow())
        try:
            yield
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[None]:
        """A block in which overrides are looked at and then changed; only one runs at a time here.

        What others have changed until now is in force at the beginning. Raises StoreError.
        """
        async with self._changing:
            await self.refresh()
            yield

    async def refresh(self) -> None:
        """Puts in force what is kept now. Raises StoreError if nobody can say."""
        async with self._turn:
            overrides = await self.kept.changed()
            if overrides is not None:
                self._known = dict(overrides)
                await self._take(overrides)
            await self._end()

    async def change(self, added: Sequence[Override], removed: Sequence[str], *audit: str) -> None:
        """Adds and removes overrides for all processes; here they are in force at once.

        Raises StoreError and OverrideError.
        """
        before_us = self.clock() - _KEPT_US
        ended = (name for name, each in self._known.items() if not each.holds(before_us))
        forgotten = islice(ended, max(_FORGOTTEN_AT_ONCE, len(added)))
        await self.kept.change(added, [*removed, *forgotten], *audit)
        await self.refresh()

    async def _take(self, overrides: Mapping[str, Override]) -> None:
        """Brings the overrides in force to what is kept, some at a time; new ones come first."""
        now = self.clock()
        held = self._held
        new: list[Override] = []
        async for each in slowly(overrides.values(), _COMPARED_AT_ONCE):
            known = held.get(each.id)
            # Nearly all are the very same, and to compare them takes longer.
            if known is not each and known != each and each.holds(now):
                new.append(each)
        async for each in slowly(new, _AT_ONCE):
            if each.id in held:
                self._drop(held[each.id])
            self._put(each)
        old = slowly(list(held.values()), _COMPARED_AT_ONCE)
        gone = [each async for each in old if each.id not in overrides]
        async for each in slowly(gone, _AT_ONCE):
            self._drop(each)

    def _put(self, override: Override) -> None:
        """Puts one in force."""
        self._held[override.id] = override
        self._alike.setdefault((override.domain, override.entries), []).append(override)
        self._in_force.add([override])
        insort(self._in_order, override, key=age)
        self.patterns += not override.exact
        if override.until_us is not None:
            self._next_end_us = min(self._next_end_us, override.until_us)
        self._note(override, 1)

    def _drop(self, override: Override) -> None:
        """Takes one out of force."""
        del self._held[override.id]
        alike = self._alike[override.domain, override.entries]
        alike.remove(override)
        if not alike:
            del self._alike[override.domain, override.entries]
        self._in_force.remove([override])
        del self._in_order[bisect_left(self._in_order, age(override), key=age)]
        self.patterns -= not override.exact
        self._note(override, -1)

    def _note(self, override: Override, change: int) -> None:
        """Notes how many there are of each kind."""
        self._kinds[str(override.kind)] += change
        self._stats.overrides = {kind: count for kind, count in self._kinds.items() if count}

    async def _end(self) -> None:
        """Forgets those that have ended, some at a time, so that nobody pays for them."""
        now = self.clock()
        if now < self._next_end_us:
            return
        ended, next_end_us = list[Override](), NEVER_US
        async for each in slowly(list(self._held.values()), _COMPARED_AT_ONCE):
            if not each.holds(now):
                ended.append(each)
            elif each.until_us is not None:
                next_end_us = min(next_end_us, each.until_us)
        async for each in slowly(ended, _AT_ONCE):
            self._drop(each)
        self._next_end_us = next_end_us

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                await self.refresh()
            except StoreError:
                pass  # the store's health says so; what was known stays in force
            except Exception as error:
                self._bugs.note("overrides could not be looked at", error)
