"""Advances: hits of leased limits that this process holds, counted before they are spent.

The server charges an advance when it gives it. So what is admitted and what is unspent was counted
once each, and whatever becomes of this process, nobody gets more than the limit. What it holds may
be spent until the window ends in which it was charged, and not a moment later.
A call that balances can pay makes no round trip. All else is charged plainly, and a process that
charges much asks for an advance behind those hits.
What must not live here: how much is given (`algorithms.settle`), and connections.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, Protocol

from ratelimit_service.algorithms import LEAST_ADVANCE
from ratelimit_service.eventloop.clock import Clock, since_boot_us
from ratelimit_service.model import (
    LEASED,
    MAX_ADDEND,
    SECOND_US,
    FailurePolicy,
    Hit,
    Mode,
    Outcome,
    Receipt,
)
from ratelimit_service.observability.bugs import Bugs
from ratelimit_service.observability.stats import Stats
from ratelimit_service.stores import (
    NEVER,
    Done,
    KnownOver,
    Look,
    Outcomes,
    Settled,
    Store,
    Verdict,
    Wanted,
    always,
    wanted_at,
)
from ratelimit_service.stores.redis.balance import Balance, Taken, payable
from ratelimit_service.stores.redis.cross_shard import shard_part_of

__all__ = ["Advances", "Lender"]

_MOST: Final = 10_000
"""So many counters are known at most. One that is put out hands its balance back."""

_SPARED: Final = 4
"""So many balances in use are passed over for one that can be put out."""

_LOOK_SECONDS: Final = 0.1
_LOOKED_AT: Final = 1_000
"""How often, and at how many, it is looked for what is idle."""

_LEAST_AHEAD_US: Final = SECOND_US // 10
_MOST_AHEAD_US: Final = 5 * SECOND_US
_PARTS: Final = 10
"""A process asks for what it needs in this part of the window, or in two round trips."""

_AT_ONCE: Final = 8
"""What came in less than this part of the time ahead may be a burst, and is taken for that part."""

_LONGEST_US: Final = 10 * SECOND_US
"""The most that an advance lives, so that clocks that run unlike each other matter little."""

_PERMILLE: Final = 999
_MARGIN_US: Final = 2_000
"""An advance ends sooner than its window by 0.1 % of that, and by this: clocks run unlike."""

_CLOSE_SECONDS: Final = 1.0
"""How long what is handed back at the end may take."""

_RETRY_US: Final = SECOND_US
"""Who is denied is told no longer wait, since others may hand back what they hold."""

_WITHIN: Final = Verdict.WITHIN


class Lender(Protocol):
    """The store that gives advances."""

    def advance(
        self, hit: Hit, heard: Callable[[Outcome | None, int], None], priority: int, /
    ) -> None:
        """Asks for an advance, behind what was charged before it in this turn.

        `heard` gets the outcome, with the hits that are given as `charged`, and the server's time;
        None if there is no answer.
        """

    def hand_back(self, hit: Hit, told: Callable[[Outcomes | None], None], /) -> None:
        """Gives hits back as soon as the server is there, and at most once."""

    async def look(self, peeks: Sequence[Hit], /) -> list[Look | None]:
        """How these counters stand."""

    def processes(self, hit: Hit, /) -> int:
        """How many processes count where this counter lies; 0 while its server is away."""


class Advances:
    """A store in front of another. It pays hits of leased limits from what it holds of them."""

    def __init__(
        self,
        store: Store,
        lender: Lender,
        stats: Stats,
        known_over: KnownOver,
        clock: Clock = since_boot_us,
    ) -> None:
        """`store` settles what is charged plainly; `known_over` is what it knows to be over."""
        self._store = store
        self._lender = lender
        self._hits = stats.leased_hits
        self._sent = stats.leased_sent
        self._known_over = known_over
        self._clock = clock
        self._bugs = Bugs()
        self._balances: OrderedDict[tuple[bytes, int], Balance] = OrderedDict()
        """By the key and the limit; what was looked at last is last."""
        self._round_trip_us = 0
        self._timer: asyncio.TimerHandle | None = None
        self._returning = 0
        self._returned = asyncio.Event()
        self._closed = False

    def __len__(self) -> int:
        """How many counters are known."""
        return len(self._balances)

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
        """Hands back what is unspent, which takes a second at most; then closes the store."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self.hand_back_all()
        if self._returning:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._returned.wait(), _CLOSE_SECONDS)
        await self._store.close()

    def held(self, hit: Hit) -> int:
        """How many hits of this limit this process holds."""
        balance = self._balances.get((hit.key, hit.spec.limit))
        return balance.unspent if balance is not None and self._clock() < balance.end_us else 0

    async def look(self, peeks: Sequence[Hit]) -> list[Look | None]:
        """How these counters stand, and what this process holds of them, by whichever limit."""
        looks = await self._lender.look(peeks)
        held = dict.fromkeys([peek.key for peek in peeks], 0)
        now_us = self._clock()
        for (key, _), balance in self._balances.items():
            if key in held and now_us < balance.end_us:
                held[key] += balance.unspent
        return [
            look and look._replace(held=held[peek.key])
            for peek, look in zip(peeks, looks, strict=True)
        ]

    def known_over(self, hits: Sequence[Hit]) -> Settled | None:
        """What becomes of a request that is known to be over, and that no balance can pay."""
        if LEASED.exist and any(hit.spec.advances and self.held(hit) >= hit.addend for hit in hits):
            return None
        return self._known_over(hits)

    def charge(
        self,
        requests: Sequence[Sequence[Hit]],
        done: Done,
        wanted: Wanted = always,
        deadline_us: int = NEVER,
        priority: int = 0,
    ) -> None:
        """Pays what balances can pay, and has the store settle the rest."""
        if not LEASED.exist or not any(hit[1].advances for hits in requests for hit in hits):
            self._store.charge(requests, done, wanted, deadline_us, priority)
            return
        found = self.pay(requests, priority)
        if None not in found:
            done([one for one in found if one is not None])
            return
        now_us = self._clock()
        wanting: list[Balance] = []
        taken = [
            self._take(hits, now_us, wanting)
            for hits, settled in zip(requests, found, strict=True)
            if settled is None
        ]
        self._charge_rest(taken, found, done, wanted, deadline_us, priority)
        self._ask_all(wanting, now_us, priority)

    def pay(self, requests: Sequence[Sequence[Hit]], priority: int) -> list[Settled | None]:
        """Pays those requests that balances can pay, which need no server; None for the others.

        Of those nothing is noted: they are to be charged.
        """
        now_us = self._clock()
        found: list[Settled | None] = []
        wanting: list[Balance] = []
        spent = 0
        for hits in requests:
            if len(hits) > 1 and not self._can_pay(hits, now_us):
                found.append(None)
                continue
            outcomes = [self._pay(hit, now_us, wanting) for hit in hits]
            if outcomes and outcomes[0] is None:
                found.append(None)
                continue
            spent += sum([hit.addend for hit in hits])
            found.append(Settled(outcomes, _WITHIN))
        if spent:
            self._hits["spent"] += spent
        self._ask_all(wanting, now_us, priority)
        return found

    def _can_pay(self, hits: Sequence[Hit], now_us: int) -> bool:
        """Whether balances can pay all of a request, of which several hits may meet one."""
        owed: dict[Balance, int] = {}
        for hit in hits:
            balance = self._paying(hit, now_us)
            if balance is None:
                return False
            owed[balance] = owed.get(balance, 0) + hit.addend
            if owed[balance] > balance.unspent:
                return False
        return True

    def _paying(self, hit: Hit, now_us: int) -> Balance | None:
        """What can pay all of a hit."""
        if not payable(hit):
            return None
        balance = self._balances.get((hit.key, hit.spec.limit))
        return balance if balance is not None and balance.pays(hit, now_us) else None

    def _pay(self, hit: Hit, now_us: int, wanting: list[Balance]) -> Outcome | None:
        """Spends a hit, if its balance can pay all of it. Notes who should ask for an advance."""
        balance = self._paying(hit, now_us)
        if balance is None:
            return None
        outcome = balance.spend(hit.addend, now_us)
        if balance.unspent <= balance.low and not balance.asking:
            balance.asking = True
            wanting.append(balance)
        return outcome

    def _not_paid(self, hit: Hit, now_us: int, wanting: list[Balance]) -> None:
        """Notes that a hit is charged plainly, and who should ask for an advance."""
        if not payable(hit):
            return
        spec = hit.spec
        balance = self._balances.get((hit.key, spec.limit))
        if balance is not None and balance.hit.spec is not spec and balance.hit.spec != spec:
            del self._balances[hit.key, spec.limit]  # other rules have another rate or window
            self._let_go(balance, now_us)
            balance = None
        if balance is None:
            balance = self._new(hit, now_us)
        balance.hits += hit.addend
        balance.used_us = now_us
        if balance.unspent and now_us >= balance.end_us:
            self._end(balance)
        if not balance.asking:
            balance.asking = True
            wanting.append(balance)

    def _take(self, hits: Sequence[Hit], now_us: int, wanting: list[Balance]) -> Taken:
        """Takes those hits of a request from balances that they can pay."""
        taken = Taken(hits)
        for at, hit in enumerate(hits):
            outcome = self._pay(hit, now_us, wanting)
            if outcome is None:
                self._not_paid(hit, now_us, wanting)
                taken.rest.append(at)
                continue
            balance = self._balances[hit.key, hit.spec.limit]
            taken.outcomes[at] = outcome
            taken.ats.append(at)
            taken.balances.append(balance)
            taken.windows.append(balance.window)
        return taken

    def _charge_rest(
        self,
        taken: list[Taken],
        found: list[Settled | None],
        done: Done,
        wanted: Wanted,
        deadline_us: int,
        priority: int,
    ) -> None:
        """Charges the hits that balances cannot pay, each request's as a request of its own."""
        asked = [shard_part_of(one.hits, one.rest) if one.ats else one.hits for one in taken]
        if len(asked) < len(found):
            places = [place for place, settled in enumerate(found) if settled is None]
            wanted = partial(wanted_at, wanted, places)
        settled = partial(self._rest_settled, taken, found, done)
        self._store.charge(asked, settled, wanted, deadline_us, priority)

    def _rest_settled(
        self,
        taken: list[Taken],
        found: list[Settled | None],
        done: Done,
        rest: list[Settled],
    ) -> None:
        """Puts the results of the rest beside what was paid, or puts that back."""
        merged = iter([self._merged(one, each) for one, each in zip(taken, rest, strict=True)])
        done([one if one is not None else next(merged) for one in found])

    def _merged(self, taken: Taken, rest: Settled) -> Settled:
        """What becomes of a request, of which the store has settled the `rest`."""
        passes = rest.verdict.passes
        for at, balance, window in zip(taken.ats, taken.balances, taken.windows, strict=True):
            addend = taken.hits[at].addend
            if passes:
                self._hits["spent"] += addend
            else:
                self._put_back(taken, at, balance, window)
        if not rest.outcomes:
            return rest
        outcomes = taken.outcomes
        for at, outcome in zip(taken.rest, rest.outcomes, strict=True):
            outcomes[at] = self._told(taken.hits[at], outcome, cached=rest.cached)
        by = taken.rest[rest.by] if rest.by >= 0 else -1
        return Settled(outcomes, rest.verdict, by, rest.cached)

    def _put_back(self, taken: Taken, at: int, balance: Balance, window: int) -> None:
        """Puts hits of a denied request back into the balance of the window they came from."""
        outcome, addend = taken.outcomes[at], taken.hits[at].addend
        if balance.window == window and not balance.gone and self._clock() < balance.end_us:
            balance.unspent += addend
        else:
            self._hits["lost"] += addend
        if outcome is not None:
            taken.outcomes[at] = outcome.replaced(remaining=outcome.remaining + addend, charged=0)

    def _told(self, hit: Hit, outcome: Outcome | None, *, cached: bool) -> Outcome | None:
        """Learns what is left of a leased limit, and says no longer wait than others may need."""
        if outcome is None or not hit.spec.advances:
            return outcome
        if not (cached or outcome.local):
            self._sent["hit"] += 1
        balance = self._balances.get((hit.key, hit.spec.limit))
        if balance is not None and not outcome.local:
            balance.left = 0 if outcome.over else outcome.remaining
            if balance.unspent and not outcome.over:
                return outcome.replaced(remaining=outcome.remaining + balance.unspent)
        if outcome.over and outcome.reset_us > _RETRY_US and self._lender.processes(hit) > 1:
            return outcome.replaced(reset_us=_RETRY_US)
        return outcome

    # What is asked for, and what goes back.

    def _ask_all(self, wanting: Sequence[Balance], now_us: int, priority: int) -> None:
        """Asks for what these need; a fault with one must not cost others their answers."""
        for balance in wanting:
            try:
                self._ask(balance, now_us, priority)
            except Exception as error:
                balance.asking = False
                self._bugs.note("hits could not be asked for ahead", error)

    def _new(self, hit: Hit, now_us: int) -> Balance:
        """Gets to know a counter; the table is bounded."""
        balances = self._balances
        if len(balances) >= _MOST:
            for _ in range(_SPARED):
                name, first = next(iter(balances.items()))
                if not first.unspent or now_us - first.used_us >= _LEAST_AHEAD_US:
                    break
                balances.move_to_end(name)
            self._let_go(balances.popitem(last=False)[1], now_us)
        balance = balances[hit.key, hit.spec.limit] = Balance(hit, now_us)
        if self._timer is None and not self._closed:
            self._look_later()
        return balance

    def _ahead_us(self, balance: Balance) -> int:
        spec = balance.hit.spec
        ahead_us = max(_LEAST_AHEAD_US, 2 * self._round_trip_us, spec.window_us // _PARTS)
        if spec.rate and spec.algorithm.advance is not None:  # in a bucket it lives no longer
            ahead_us = min(ahead_us, spec.algorithm.advance(spec, 0))
        return min(ahead_us, _MOST_AHEAD_US)

    def _ask(self, balance: Balance, now_us: int, priority: int) -> None:
        """Asks for what is needed ahead, at the pace of late, less what is held."""
        ahead_us = self._ahead_us(balance)
        lasted_us = now_us - balance.since_us
        demand = balance.hits * ahead_us // max(lasted_us, ahead_us // _AT_ONCE)
        if lasted_us >= ahead_us:  # what is long ago counts less and less
            balance.hits //= 2
            balance.since_us = now_us - lasted_us // 2
        hit = balance.hit
        wanted = min(demand - balance.unspent, MAX_ADDEND)
        processes = min(self._lender.processes(hit), 0xFFFF)
        if (
            not processes
            or wanted < LEAST_ADVANCE
            or balance.left // (2 * processes) < LEAST_ADVANCE
        ):
            balance.asking = False
            return
        asked = Hit(
            hit.key,
            hit.spec,
            wanted,
            Mode.ADVANCE,
            lease=processes.to_bytes(2, "big"),
            policy=FailurePolicy.OPEN,
        )
        self._lender.advance(asked, partial(self._heard, balance, now_us), priority)

    def _heard(self, balance: Balance, asked_us: int, outcome: Outcome | None, at_us: int) -> None:
        """Takes an advance. A late one counts as well, until its end."""
        balance.asking = False
        now_us = self._clock()
        if outcome is None:
            return
        self._sent["advance"] += 1
        self._round_trip_us += (now_us - asked_us - self._round_trip_us) // 4
        balance.left = outcome.remaining
        if not outcome.charged:
            return
        self._hits["advanced"] += outcome.charged
        spec, until_us = balance.hit.spec, at_us + outcome.reset_us
        assert spec.algorithm.advance is not None  # noqa: S101 -- lint refuses the others
        lives_us = spec.algorithm.advance(spec, outcome.reset_us)
        lives_us = lives_us * _PERMILLE // 1000 - _MARGIN_US
        end_us = asked_us + min(lives_us, _LONGEST_US)
        window = at_us if spec.rate else until_us
        if balance.window != window and balance.unspent:
            self._end(balance)  # of an earlier window
        balance.window = window
        balance.unspent += outcome.charged
        # Of a bucket only one is held, as each ends by itself: the next is asked for when it is
        # spent.
        balance.low = 0 if spec.rate else balance.unspent // 2
        balance.at_us, balance.until_us, balance.end_us = at_us, until_us, end_us
        balance.resets_us = asked_us + outcome.reset_us
        counts_on = lives_us > _LONGEST_US or spec.algorithm.ticks
        balance.returns_us = end_us - min(SECOND_US, lives_us // _PARTS) if counts_on else NEVER
        if balance.gone:
            self._hand_back(balance, now_us)

    def _end(self, balance: Balance) -> None:
        """What is unspent when its window is over is lost."""
        self._hits["lost"] += balance.unspent
        balance.unspent = balance.low = 0
        balance.left = balance.hit.spec.limit

    def _let_go(self, balance: Balance, now_us: int) -> None:
        """Forgets a counter, and hands back what is unspent."""
        balance.gone = True
        self._hand_back(balance, now_us)

    def _hand_back(self, balance: Balance, now_us: int) -> None:
        """Hands back what is unspent; it leaves the balance before it is sent."""
        unspent = balance.unspent
        if unspent and now_us >= balance.end_us:
            self._end(balance)
            return
        if not unspent:
            return
        balance.unspent = balance.low = 0
        self._returning += 1
        receipt = Receipt(balance.at_us, balance.until_us)
        back = Hit(balance.hit.key, balance.hit.spec, unspent, refund=True, receipt=receipt)
        self._lender.hand_back(back, partial(self._back, unspent))

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

    def _needed(self, balance: Balance, now_us: int) -> int:
        """How much will be spent until it ends, at the pace of late."""
        left_us, lasted_us = balance.end_us - now_us, now_us - balance.since_us
        return balance.hits * left_us // max(1, lasted_us)

    def _look_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_LOOK_SECONDS, self._look)

    def _look(self) -> None:
        self._timer = None
        try:
            self.hand_back_idle()
        except Exception as error:
            self._bugs.note("unspent hits could not be handed back", error)
        if self._balances:
            self._look_later()

    def hand_back_all(self) -> None:
        """Hands back all that is unspent."""
        while self._balances:
            self._let_go(self._balances.popitem()[1], self._clock())

    def hand_back_idle(self) -> None:
        """Hands back what nobody has used for twice the time that it was asked for.

        That is also what becomes of limits that were changed or removed, and of those that an
        override has taken over.
        """
        now_us, balances = self._clock(), self._balances
        for _ in range(min(len(balances), _LOOKED_AT)):
            name, balance = balances.popitem(last=False)
            if now_us - balance.used_us >= 2 * self._ahead_us(balance):
                self._let_go(balance, now_us)
                continue
            balances[name] = balance
            if now_us >= balance.returns_us and balance.unspent > self._needed(balance, now_us):
                self._hand_back(balance, now_us)
