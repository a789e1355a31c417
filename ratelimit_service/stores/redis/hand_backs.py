"""What a process holds of leased limits goes back: when it is idle, out of date, or put out.

What must not live here: when it is spent and asked for (`advances`).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import Final

from ratelimit_service.eventloop.clock import Clock
from ratelimit_service.model import CounterSpec, Hit, Receipt
from ratelimit_service.observability.bugs import Bugs
from ratelimit_service.observability.stats import Stats
from ratelimit_service.stores import Outcomes
from ratelimit_service.stores.redis.balance import Balance, Name, name_of

__all__ = ["Balances", "HandBack"]

_MOST: Final = 30_000
"""So many counters are known at most. One that is put out hands its balance back."""

_SPARED: Final = 4
"""So many balances in use are passed over for one that can be put out."""

_IN_USE_US: Final = 100_000

_LOOK_SECONDS: Final = 0.02
_LOOKED_AT: Final = 1_000
_HANDED_BACK: Final = 100
"""How often it is looked for what is idle, at how many, and of how many it is handed back: that
takes 1 ms at most."""

_CLOSE_SECONDS: Final = 1.0
"""How long what is handed back at the end may take."""

HandBack = Callable[[Hit, Callable[[Outcomes | None], None]], None]
"""Gives hits back as soon as their server is there, and at most once."""


class Balances:
    """What this process holds, by counter and limit. There is a bounded number of them."""

    def __init__(self, hand_back: HandBack, stats: Stats, clock: Clock) -> None:
        self._hand_back = hand_back
        self._hits = stats.leased_hits
        self._sent = stats.leased_sent
        self._clock = clock
        self._bugs = Bugs()
        self.table: OrderedDict[Name, Balance] = OrderedDict()
        """What was known last is last."""
        self._looking_at: list[Balance] = []
        """All that there were when a look at all of them began; `_at` is the next of these."""
        self._at = 0
        self._specs: Collection[CounterSpec] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._returning = 0
        self._returned = asyncio.Event()
        self._closed = False

    async def close(self) -> None:
        """Hands back what is unspent, and waits for the answers, for a second at most."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self.hand_back_all()
        if self._returning:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._returned.wait(), _CLOSE_SECONDS)

    def add(self, hit: Hit, now_us: int) -> Balance:
        """Gets to know a counter, for which another may be put out."""
        table = self.table
        if len(table) >= _MOST:
            for _ in range(_SPARED):
                name, first = next(iter(table.items()))
                if not first.unspent or now_us - first.used_us >= _IN_USE_US:
                    break
                table.move_to_end(name)
            self._let_go(table.popitem(last=False)[1], now_us)
        balance = table[name_of(hit)] = Balance(hit, now_us)
        if self._timer is None and not self._closed:
            self._look_later()
        return balance

    def remove(self, balance: Balance, now_us: int) -> None:
        """Forgets a counter, and hands back what is unspent."""
        del self.table[name_of(balance.hit)]
        self._let_go(balance, now_us)

    def keep_only(self, specs: Collection[CounterSpec]) -> None:
        """Hands back what is of other limits than these, a little at a time."""
        self._specs = specs
        self._looking_at, self._at = [], 0
        self._look_at_some()

    def hand_back_all(self) -> None:
        """Hands back all that is unspent."""
        while self.table:
            self._let_go(self.table.popitem()[1], self._clock())

    def hand_back_idle(self) -> None:
        """Hands back of some what nobody has used for twice the time that it was asked for.

        What counts beyond its end goes back before that.
        """
        now_us, returning = self._clock(), self._returning
        if self._at >= len(self._looking_at):
            self._looking_at, self._at = list(self.table.values()), 0
        specs = self._specs
        for balance in self._looking_at[self._at : self._at + _LOOKED_AT]:
            self._at += 1
            if balance.gone:
                continue
            if now_us - balance.used_us >= balance.idle_us:
                self.remove(balance, now_us)
            elif specs is not None and balance.specs is not specs:
                balance.specs = specs
                if balance.hit.spec not in specs:
                    self.remove(balance, now_us)
            elif now_us >= balance.returns_us and balance.unspent > balance.needed(now_us):
                self.hand_back(balance, now_us)
            if self._returning - returning >= _HANDED_BACK:
                break

    def end(self, balance: Balance) -> None:
        """What is unspent when its window is over is lost."""
        self._hits["lost"] += balance.unspent
        balance.unspent = balance.low = balance.spent = 0
        balance.left = balance.hit.spec.limit

    def hand_back(self, balance: Balance, now_us: int) -> None:
        """Hands back what is unspent; it leaves the balance before it is sent."""
        unspent = balance.unspent
        if unspent and now_us >= balance.end_us:
            self.end(balance)
            return
        if not unspent:
            return
        balance.unspent = balance.low = 0
        self._returning += 1
        receipt = Receipt(balance.at_us, balance.until_us)
        back = Hit(balance.hit.key, balance.hit.spec, unspent, refund=True, receipt=receipt)
        self._hand_back(back, partial(self._back, unspent))

    def _let_go(self, balance: Balance, now_us: int) -> None:
        balance.gone = True
        self.hand_back(balance, now_us)

    def _back(self, unspent: int, found: Outcomes | None) -> None:
        """Hears that hits were handed back, once at most; without an answer they are lost."""
        outcome = found[0] if found else None
        if outcome is not None:
            self._sent["hand_back"] += 1
        given = min(outcome.charged, unspent) if outcome is not None else 0
        self._hits["handed_back"] += given
        self._hits["lost"] += unspent - given
        self._returning -= 1
        if not self._returning and self._closed:
            self._returned.set()

    def _look_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look)

    def _look(self) -> None:
        self._timer = None
        self._look_at_some()
        if self.table and not self._closed:
            self._look_later()

    def _look_at_some(self) -> None:
        try:
            self.hand_back_idle()
        except Exception as error:
            self._bugs.note("unspent hits could not be handed back", error)
