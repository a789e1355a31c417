"""The overrides that are in force in this process: followed where they are kept, and changed there.

What must not live here: what overrides do (`steering`), and where they are kept (`stores`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

from ratelimit_service.bugs import Bugs
from ratelimit_service.clock import Clock, now_us
from ratelimit_service.errors import StoreError
from ratelimit_service.model import SECOND_US, Override
from ratelimit_service.observer import Stats
from ratelimit_service.service.steering import Steering
from ratelimit_service.stores.overrides import KeptOverrides

__all__ = ["Overrides", "age"]

_LOOK_SECONDS: Final = 0.4
"""How often it is asked whether they have changed; within a second they are in force."""

_AT_ONCE: Final = 50
"""So many are put in force between batches of requests."""

_KEPT_US: Final = 60 * SECOND_US
"""For so long ended ones are kept, for clocks that are not as far."""

_NEVER_US: Final = 1 << 62


def age(override: Override) -> tuple[int, str]:
    """By which the oldest comes first."""
    return override.made_us, override.id


class Overrides:
    """Keeps `steering` up to date. While nobody can say, the last known ones stay in force."""

    def __init__(
        self, kept: KeptOverrides, steering: Steering, stats: Stats, clock: Clock = now_us
    ) -> None:
        self.kept = kept
        self.clock = clock
        self._stats = stats
        self._steering = steering
        self._known: dict[str, Override] = {}
        """All that are kept, ended ones too."""
        self._steered: dict[str, Override] = {}
        """Those that are in force."""
        self._in_order: list[Override] | None = None
        """The same, the oldest first, once somebody wants to know."""
        self._next_end_us = _NEVER_US
        self._turn = asyncio.Lock()
        self._bugs = Bugs()

    def in_force(self) -> list[Override]:
        """Those that hold now, the oldest first."""
        now = self.clock()
        if self._in_order is None:
            self._in_order = sorted(self._steered.values(), key=age)
        return [each for each in self._in_order if each.holds(now)]

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

    async def refresh(self) -> None:
        """Puts in force what is kept now. Raises StoreError if nobody can say."""
        async with self._turn:
            found = await self.kept.changed()
            if found is not None:
                self._known = dict(found)
                await self._take(found)
            self._end()

    async def change(
        self, added: Sequence[Override], removed: Sequence[str], audit: str | None
    ) -> None:
        """Adds and removes overrides for all processes; here they are in force at once.

        Raises StoreError and OverrideError.
        """
        before_us = self.clock() - _KEPT_US
        ended = [name for name, each in self._known.items() if not each.holds(before_us)]
        await self.kept.change(added, [*removed, *ended], audit)
        await self.refresh()

    async def _take(self, found: Mapping[str, Override]) -> None:
        """Makes what is in force what is kept, some at a time; first what is new."""
        now = self.clock()
        new = [
            each
            for name, each in found.items()
            if self._steered.get(name) != each and each.holds(now)
        ]
        for start in range(0, len(new), _AT_ONCE):
            some = new[start : start + _AT_ONCE]
            for each in some:
                if each.id in self._steered:
                    self._steering.remove([self._steered.pop(each.id)])
                self._steered[each.id] = each
            self._steering.add(some)
            self._in_order = None
            await asyncio.sleep(0)
        gone = [each for name, each in self._steered.items() if name not in found]
        for start in range(0, len(gone), _AT_ONCE):
            some = gone[start : start + _AT_ONCE]
            for each in some:
                del self._steered[each.id]
            self._steering.remove(some)
            await asyncio.sleep(0)
        self._note()

    def _end(self) -> None:
        """Forgets those that have ended, so that nobody pays for them."""
        now = self.clock()
        if now < self._next_end_us:
            return
        ended = [each for each in self._steered.values() if not each.holds(now)]
        for each in ended:
            del self._steered[each.id]
        self._steering.remove(ended)
        self._note()

    def _note(self) -> None:
        """Notes that there are others, how many, and when the next one ends."""
        self._in_order = None
        kinds = Counter([str(each.kind) for each in self._steered.values()])
        self._stats.overrides = dict(kinds)
        ends = [each.until_us for each in self._steered.values() if each.until_us is not None]
        self._next_end_us = min(ends, default=_NEVER_US)

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                await self.refresh()
            except StoreError:
                pass  # the store's health says so; what was known stays in force
            except Exception as error:
                self._bugs.note("overrides could not be looked at", error)
