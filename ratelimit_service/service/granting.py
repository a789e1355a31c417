"""Charges requests whose callers have grants: extra hits, which are spent before the limits' own.

A hit of such a request is charged on a grant's counter first. If there is no room the whole request
is charged again, with the next grant or the limit itself in its place; a request that does not pass
has charged nothing, so no hit counts twice. What must not live here: which grants there are
(`limiter.apply_overrides`), and how hits are counted (`stores`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from ratelimit_service.eventloop.clock import Clock, elapsed_us
from ratelimit_service.model import MAX_ADDEND, SECOND_US, Hit, Mode, Outcome
from ratelimit_service.observability.bugs import Bugs
from ratelimit_service.service.giving_back import give_back
from ratelimit_service.stores import (
    BROKEN,
    Done,
    Granted,
    Settled,
    Store,
    Verdict,
    Wanted,
    wanted_at,
)

__all__ = ["Granting", "Wish"]

_MOST_SPENT: Final = 10_000
"""So many grants are remembered to be spent."""

_SPENT_US: Final = 60 * SECOND_US
"""For so long, so that nothing is lost if the counter of one is reset."""


class Wish:
    """A request that is to be charged: its hits, and for each the hits on grants before it.

    A `banned` one is denied whatever becomes of its hits, which are refunds.
    """

    __slots__ = ("banned", "grants", "hits")

    def __init__(
        self, hits: Sequence[Hit], grants: Sequence[Sequence[Hit]] = (), *, banned: bool = False
    ) -> None:
        self.hits = hits
        self.grants = grants
        self.banned = banned


class Granting:
    """Charges a store, grants first."""

    def __init__(self, store: Store, clock: Clock = elapsed_us) -> None:
        self._store = store
        self._clock = clock
        self._bugs = Bugs()
        self._spent: dict[bytes, int] = {}
        """Grants' counters on which there was no room for a single hit, and until when that is
        remembered; the oldest first."""

    def charge(
        self,
        wishes: Sequence[Wish],
        done: Done,
        wanted: Wanted,
        deadline_us: int,
        priority: int = 0,
    ) -> None:
        """As `Store.charge`. Each call to the store is settled atomically."""
        now_us = self._clock()
        tries = [
            _Try(index, wish, self._unspent(wish, now_us)) for index, wish in enumerate(wishes)
        ]
        _Charging(self, tries, done, wanted, deadline_us, priority).go_on(tries)

    def ask(
        self, tries: Sequence[_Try], done: Done, wanted: Wanted, deadline_us: int, priority: int
    ) -> None:
        """Has the store settle what is to be tried next."""
        still = _WantedAt(wanted, [each.index for each in tries]).wanted
        self._store.charge([each.hits for each in tries], done, still, deadline_us, priority)

    def spent(self, key: bytes) -> None:
        """Remembers that nothing is left of a grant."""
        self._spent.pop(key, None)
        self._spent[key] = self._clock() + _SPENT_US
        while len(self._spent) > _MOST_SPENT:
            del self._spent[next(iter(self._spent))]

    def give_back(self, hits: Sequence[Hit], settled: Settled) -> None:
        """Gives back what was charged for a request that is broken all the same."""
        give_back(self._store, hits, settled, self._bugs.note)

    def note(self, error: Exception) -> None:
        """Logs a fault of ours."""
        self._bugs.note("a grant could not be tried", error)

    def _unspent(self, wish: Wish, now_us: int) -> list[list[Hit]]:
        """The grants of each hit that may have something left."""
        if not self._spent:
            return [list(each) for each in wish.grants]
        return [
            [hit for hit in each if self._spent.get(hit.key, 0) <= now_us] for each in wish.grants
        ]


class _WantedAt:
    """`wanted` for some of the places."""

    def __init__(self, wanted: Wanted, indices: Sequence[int]) -> None:
        self._wanted = wanted
        self._indices = indices

    def wanted(self, index: int) -> bool:
        """Whether its caller still waits."""
        return wanted_at(self._wanted, self._indices, index)


class _Charging:
    """One batch: its requests are tried until each has passed, or has no grant left."""

    def __init__(
        self,
        granting: Granting,
        tries: Sequence[_Try],
        done: Done,
        wanted: Wanted,
        deadline_us: int,
        priority: int,
    ) -> None:
        self._granting = granting
        self._tries = tries
        self._done = done
        self._wanted = wanted
        self._deadline_us = deadline_us
        self._priority = priority
        self._asking: Sequence[_Try] = ()

    def go_on(self, tries: Sequence[_Try]) -> None:
        self._asking = tries
        self._granting.ask(tries, self._settled, self._wanted, self._deadline_us, self._priority)

    def _settled(self, results: list[Settled]) -> None:
        again = []
        count = len(self._asking)
        if len(results) != count:  # nobody can tell whose these are
            self._granting.note(ValueError(f"{count} requests were asked, {len(results)} answered"))
            results = [BROKEN] * count
        for each, settled in zip(self._asking, results, strict=True):
            hits = each.hits
            try:
                if each.settled(settled, self._granting):
                    again.append(each)
            except Exception as error:
                self._granting.note(error)
                self._granting.give_back(hits, settled)
                each.result = BROKEN
        if again:
            try:
                self.go_on(again)
            except Exception as error:
                self._granting.note(error)  # the second try has charged nothing
            else:
                return
        self._done([each.result for each in self._tries])


class _Try:
    """A request, and what was charged for it last."""

    def __init__(self, index: int, wish: Wish, grants: list[list[Hit]]) -> None:
        self.index = index
        self._wish = wish
        self._grants = grants
        """Those that are left to be tried, for each hit."""
        self._refunded: dict[int, Outcome | None] = {}
        """What became of the refunds, by their places: they count at the first try."""
        self._final = False
        """Whether the next answer stands."""
        self.result = BROKEN
        self.hits: Sequence[Hit] = ()
        self._of: list[int] = []
        """The places in the wish of the hits that are charged."""
        self._peeks: dict[int, list[int]] = {}
        """Where the limits' own counters are looked at, and then the grants that come after the one
        that is tried, by places in the wish."""
        self._rest: Counter[int] = Counter()
        """What is left of grants that had too little for all hits, by places in the wish."""
        self._prepare()

    def settled(self, stored: Settled, granting: Granting) -> bool:
        """Takes what the store says; returns whether it is to be asked again."""
        if not any(self._grants) and not self._refunded and not self._rest:
            self.result = self._banned(stored)
            return False
        if not stored.outcomes:
            self.result = stored
            return False
        spent = self._spent(stored, granting)
        self._keep_refunds(stored)
        if not stored.verdict.passes and not self._final:
            if spent:
                for index, rest in spent.items():
                    del self._grants[index][0]
                    self._rest[index] += rest
                self._prepare()
                return True
            # Without grants denied hits have been counted by this try.
            counting = any(self._grants) and any(hit.count_denied for hit in self._wish.hits)
            if stored.verdict is Verdict.DENIED and counting:
                self._final = True
                self._prepare()
                return True
        self.result = self._banned(self._mapped(stored))
        return False

    def _spent(self, stored: Settled, granting: Granting) -> dict[int, int]:
        """The places whose grants had no room, and for how many hits they have."""
        spent = {}
        keys = Counter([hit.key for hit in self.hits])
        for at, index in enumerate(self._of):
            outcome = stored.outcomes[at]
            if self._on_grant(index) and outcome is not None and outcome.over:
                spent[index] = outcome.remaining
                key = self.hits[at].key
                # Another hit of the same request may have used the grant up.
                if not (outcome.remaining or outcome.local) and keys[key] == 1:
                    granting.spent(key)
        return spent

    def _keep_refunds(self, stored: Settled) -> None:
        for at, index in enumerate(self._of):
            if self._wish.hits[index].refund:
                self._refunded[index] = stored.outcomes[at]

    def _on_grant(self, index: int) -> bool:
        return bool(self._grants) and bool(self._grants[index])

    def _prepare(self) -> None:
        """Puts together what is charged next.

        Grants are enforced, so that a request passes only if they have room. With grants nothing
        that is denied is counted, since the request may be charged again. The limits that grants
        stand for are only looked at, for what remains, and so are the grants behind.
        """
        wish, hits, peeks = self._wish, [], []
        self._of = []
        granted = any(self._grants)
        passes_quota = granted and self._passes_quota()
        led = False
        for index, hit in enumerate(wish.hits):
            if not hit.joined:
                led = False
            if index in self._refunded:
                continue
            self._of.append(index)
            if self._on_grant(index):
                hits.append(self._grants[index][0])
                peeks.append(index)
                continue
            own = hit._replace(joined=hit.joined and led)
            if granted and not self._final:
                own = own._replace(count_denied=False)
            if passes_quota and hit.mode is Mode.QUOTA:
                own = own._replace(mode=Mode.SHADOW, joined=False)
            hits.append(own)
            led = True
        self._peeks = {}
        for index in peeks:
            others = [wish.hits[index], *self._grants[index][1:]]
            self._peeks[index] = list(range(len(hits), len(hits) + len(others)))
            hits += [
                each._replace(addend=0, mode=Mode.SHADOW, count_denied=False, joined=False)
                for each in others
            ]
        self.hits = hits

    def _passes_quota(self) -> bool:
        """Whether all limits of one quota are on grants: then the others cannot deny."""
        descriptor = True
        for index, hit in enumerate(self._wish.hits):
            if not hit.joined:
                if index and descriptor:
                    return True
                descriptor = hit.mode is Mode.QUOTA and not hit.refund
            descriptor = descriptor and self._on_grant(index)
        return descriptor

    def _mapped(self, stored: Settled) -> Settled:
        """The result with one outcome for each hit of the wish."""
        outcomes: list[Outcome | None] = [
            self._refunded.get(index) for index in range(len(self._wish.hits))
        ]
        charged = [*self._wish.hits]
        for at, index in enumerate(self._of):
            outcome = stored.outcomes[at]
            peeks = [stored.outcomes[other] for other in self._peeks.get(index, ())]
            if outcome is not None and not outcome.over and (peeks or self._rest[index]):
                more = sum([peek.remaining for peek in peeks if peek is not None])
                outcome = outcome.replaced(
                    remaining=min(MAX_ADDEND, outcome.remaining + more + self._rest[index]),
                    reset_us=peeks[0].reset_us if peeks and peeks[0] is not None else None,
                )
            outcomes[index] = outcome
            charged[index] = self.hits[at]
        by = self._of[stored.by] if 0 <= stored.by < len(self._of) else -1
        return Granted(outcomes, stored.verdict, by, stored.cached, charged)

    def _banned(self, stored: Settled) -> Settled:
        if self._wish.banned and stored.verdict.passes:
            return Settled(stored.outcomes, Verdict.DENIED)
        return stored
