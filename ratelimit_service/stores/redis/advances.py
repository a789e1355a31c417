"""Advances: hits of leased limits that this process holds, counted before they are spent.

The server charges an advance when it gives it. So what is admitted and what is unspent was counted
once each, and whatever becomes of this process, nobody gets more than the limit. What it holds may
be spent until the window ends in which it was charged, and not a moment later.
A call that balances can pay makes no round trip. All else is charged plainly, and a process that
charges much asks for an advance behind those hits.
What must not live here: how much is given (`algorithms.settle`), and connections.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final, Protocol

from ratelimit_service.algorithms import LEAST_ADVANCE
from ratelimit_service.eventloop.clock import Clock, since_boot_us
from ratelimit_service.model import (
    MAX_ADDEND,
    SECOND_US,
    CounterSpec,
    FailurePolicy,
    Hit,
    Mode,
    Outcome,
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
from ratelimit_service.stores.local_cache import denied_us
from ratelimit_service.stores.redis.balance import Balance, Taken, name_of, payable
from ratelimit_service.stores.redis.cross_shard import shard_part_of
from ratelimit_service.stores.redis.hand_backs import Balances

__all__ = ["Advances", "Lender"]

_LEAST_AHEAD_US: Final = SECOND_US // 10
_MOST_AHEAD_US: Final = 5 * SECOND_US
_PARTS: Final = 10
"""A process asks for what it needs in this part of the window, or in two round trips."""

_AT_ONCE: Final = 8
"""What came in less than this part of the time ahead may be a burst, and is taken for that part."""

_TRIPS: Final = 4
"""What is given of a bucket is not asked for if it lives for less than so many round trips."""

_LONGEST_US: Final = 10 * SECOND_US
"""The most that an advance lives, so that clocks that run unlike each other matter little."""

_PERMILLE: Final = 999
_MARGIN_US: Final = 2_000
"""An advance ends sooner than its window by 0.1 % of that, and by this: clocks run unlike."""

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
        self._balances = Balances(lender.hand_back, stats, clock)
        self._table = self._balances.table
        self._leased = True
        """Whether any limit is leased; if none is, nobody looks for those."""
        self._round_trip_us = 0

    def __len__(self) -> int:
        """How many counters are known."""
        return len(self._table)

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
        await self._balances.close()
        await self._store.close()

    def lease(self, specs: Collection[CounterSpec]) -> None:
        """Hears which limits are leased from now on; what is held of others goes back."""
        self._leased = len(specs) > 0
        self._balances.keep_only(specs)

    def hand_back_all(self) -> None:
        """Hands back all that is unspent."""
        self._balances.hand_back_all()

    def hand_back_idle(self) -> None:
        """Hands back of some what is idle; see `Balances`."""
        self._balances.hand_back_idle()

    def held(self, hit: Hit) -> int:
        """How many hits of this limit this process holds."""
        balance = self._table.get(name_of(hit))
        if balance is None or self._clock() >= balance.end_us or balance.hit.spec != hit.spec:
            return 0
        return balance.unspent

    async def look(self, peeks: Sequence[Hit]) -> list[Look | None]:
        """How these counters stand, and what this process holds of them, by whichever limit."""
        looks = await self._lender.look(peeks)
        held = dict.fromkeys([peek.key for peek in peeks], 0)
        now_us = self._clock()
        for (key, _), balance in self._table.items():
            if key in held and now_us < balance.end_us:
                held[key] += balance.unspent
        return [
            look and look._replace(held=held[peek.key])
            for peek, look in zip(peeks, looks, strict=True)
        ]

    def known_over(self, hits: Sequence[Hit]) -> Settled | None:
        """What becomes of a request that is known to be over, and that no balance can pay."""
        leased = self._leased and any(hit.spec.advances for hit in hits)
        if leased and any(hit.spec.advances and self.held(hit) >= hit.addend for hit in hits):
            return None
        known = self._known_over(hits)
        if known is None or not leased:
            return known
        told = [
            self._told(hit, outcome, cached=True)
            for hit, outcome in zip(hits, known.outcomes, strict=True)
        ]
        return Settled(told, known.verdict, known.by, known.cached)

    def charge(
        self,
        requests: Sequence[Sequence[Hit]],
        done: Done,
        wanted: Wanted = always,
        deadline_us: int = NEVER,
        priority: int = 0,
    ) -> None:
        """Pays what balances can pay, and has the store settle the rest."""
        if not (self._leased and self._concerned(requests)):
            self._store.charge(requests, done, wanted, deadline_us, priority)
            return
        found = self.pay(requests, priority)
        if None not in found:
            done([one for one in found if one is not None])
            return
        now_us = self._clock()
        wanting: list[Balance] = []
        taken: list[Taken] = []
        for place, hits in enumerate(requests):
            if found[place] is None:
                one = self._take(hits, now_us, wanting)
                if one.rest:
                    taken.append(one)
                else:  # refunds among them, which `pay` does not weigh
                    found[place] = Settled(one.outcomes, _WITHIN)
        if taken:
            self._charge_rest(taken, found, done, wanted, deadline_us, priority)
        else:
            done([each for each in found if each is not None])
        self._ask_all(wanting, now_us, priority)

    def _concerned(self, requests: Sequence[Sequence[Hit]]) -> bool:
        """Whether any hit is of a leased limit, or of one that an override has taken over."""
        table = self._table
        for hits in requests:
            for hit in hits:
                if hit[1].advances or (table and name_of(hit) in table):
                    return True
        return False

    def pay(self, requests: Sequence[Sequence[Hit]], priority: int) -> list[Settled | None]:
        """Pays those requests that balances can pay, which need no server; None for the others.

        Of those nothing is noted: they are to be charged.
        """
        now_us = self._clock()
        found: list[Settled | None] = []
        wanting: list[Balance] = []
        spent = 0
        for hits in requests:
            if len(hits) == 1:
                outcome = self._pay(hits[0], now_us, wanting)
                if outcome is None:
                    found.append(None)
                else:
                    spent += outcome.charged
                    found.append(Settled([outcome], _WITHIN))
            elif hits and self._can_pay(hits, now_us):
                outcomes = [self._pay(hit, now_us, wanting) for hit in hits]
                spent += sum([hit.addend for hit in hits])
                found.append(Settled(outcomes, _WITHIN))
            else:
                found.append(None)
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
        balance = self._table.get(name_of(hit))
        return balance if balance is not None and balance.pays(hit, now_us) else None

    def _pay(self, hit: Hit, now_us: int, wanting: list[Balance]) -> Outcome | None:
        """Spends a hit, if its balance can pay all of it. Notes who should ask for an advance."""
        key, spec, addend, mode, count_denied, refund, _, _, _, receipt = hit
        if not (spec.advances and addend) or mode or count_denied or refund or receipt:
            return None
        balance = self._table.get((key, spec.reserved))
        if balance is None or balance.unspent < addend or now_us >= balance.end_us:
            return None
        known = balance.hit.spec
        if known is not spec and known != spec:
            return None
        balance.hits += addend
        balance.used_us = now_us
        balance.spent += addend
        balance.unspent = unspent = balance.unspent - addend
        if unspent <= balance.low and not balance.asking:
            balance.asking = True
            wanting.append(balance)
        return Outcome(False, balance.left + unspent, max(0, balance.resets_us - now_us), addend)

    def _not_paid(self, hit: Hit, now_us: int, wanting: list[Balance]) -> None:
        """Notes that a hit is charged plainly, and who should ask for an advance.

        A counter's first hit asks for nothing: most that come once do not come again.
        """
        balance, spec = self._table.get(name_of(hit)), hit.spec
        if balance is not None and balance.hit.spec is not spec and balance.hit.spec != spec:
            self._balances.remove(balance, now_us)  # other rules, or an override
            balance = None
        if not payable(hit):
            return
        if balance is None:
            balance = self._balances.add(hit, now_us)
            balance.hits = hit.addend
            balance.idle_us = 2 * self._ahead_us(spec)
            return
        balance.hits += hit.addend
        balance.used_us = now_us
        if balance.unspent and now_us >= balance.end_us:
            self._balances.end(balance)
        if not balance.asking:
            balance.asking = True
            wanting.append(balance)

    def _refunded(self, hit: Hit, now_us: int) -> Outcome | None:
        """Takes a refund into the advance that it was spent from, before its end; else None."""
        balance = self._table.get(name_of(hit))
        if balance is None or balance.hit.spec != hit.spec:
            return None
        outcome = balance.refunded(hit, now_us)
        if outcome is not None:
            self._hits["refunded"] += hit.addend
        return outcome

    def _take(self, hits: Sequence[Hit], now_us: int, wanting: list[Balance]) -> Taken:
        """Takes those hits of a request from balances that they can pay, and what it refunds."""
        taken = Taken(hits)
        for at, hit in enumerate(hits):
            outcome = self._refunded(hit, now_us) if hit.refund else self._pay(hit, now_us, wanting)
            taken.outcomes[at] = outcome
            if outcome is None:
                self._not_paid(hit, now_us, wanting)
                taken.rest.append(at)
            elif not hit.refund:
                balance = self._table[name_of(hit)]
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
        asked = [
            shard_part_of(one.hits, one.rest) if len(one.rest) < len(one.hits) else one.hits
            for one in taken
        ]
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
            balance.put_back(addend)
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
        balance = self._table.get(name_of(hit))
        if balance is not None and not outcome.local:
            balance.left = 0 if outcome.over else outcome.remaining
            if balance.unspent and not outcome.over:
                return outcome.replaced(remaining=outcome.remaining + balance.unspent)
        if outcome.over:
            least_us = denied_us(hit.spec) if hit.spec.rate and not cached else 0
            resets_us = max(least_us, outcome.reset_us)
            if self._lender.processes(hit) > 1:
                resets_us = min(resets_us, _RETRY_US)
            return outcome.replaced(reset_us=resets_us)
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

    def _ahead_us(self, spec: CounterSpec) -> int:
        ahead_us = max(_LEAST_AHEAD_US, 2 * self._round_trip_us, spec.window_us // _PARTS)
        if spec.rate and spec.algorithm.advance is not None:  # in a bucket it lives no longer
            ahead_us = min(ahead_us, spec.algorithm.advance(spec, 0))
        return min(ahead_us, _MOST_AHEAD_US)

    def _ask(self, balance: Balance, now_us: int, priority: int) -> None:
        """Asks for what is needed ahead, at the pace of late, less what is held."""
        hit = balance.hit
        ahead_us = self._ahead_us(hit.spec)
        balance.idle_us = 2 * ahead_us
        lasted_us = now_us - balance.since_us
        demand = balance.hits * ahead_us // max(lasted_us, ahead_us // _AT_ONCE)
        if lasted_us >= ahead_us:  # what is long ago counts less and less
            balance.hits //= 2
            balance.since_us = now_us - lasted_us // 2
        wanted = min(demand - balance.unspent, MAX_ADDEND)
        processes = min(self._lender.processes(hit), 0xFFFF)
        too_late = hit.spec.rate and ahead_us < _TRIPS * self._round_trip_us
        share = balance.left // (2 * processes) if processes else 0
        if wanted < LEAST_ADVANCE or share < LEAST_ADVANCE or too_late:
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
        if balance.window != window:
            self._balances.end(balance)  # what is of an earlier one
            balance.left = outcome.remaining
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
            self._balances.hand_back(balance, now_us)
