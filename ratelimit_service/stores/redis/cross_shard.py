"""A request whose counters have several homes: all of its hits count, or none.

Its pieces are charged at the same time, each as a request of its own. If one piece is denied, the
whole request is, and what the other pieces have counted is given back. Until then that charge may
deny somebody else; it never admits anybody. As long as all pieces are within, `charge` only
collects their outcomes. What is here begins with the first piece that is not.
What must not live here: which home a counter has, and what a server does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from ratelimit_service.model import FailurePolicy, Hit, Mode, Outcome
from ratelimit_service.observability.stats import Stats
from ratelimit_service.stores import DROPPED, Outcomes, Settled, Verdict, judge
from ratelimit_service.stores.redis.batch import Background
from ratelimit_service.stores.redis.give_back import (
    GivenBack,
    give_back,
    late_refunds,
    look,
    undo,
    undoable,
)
from ratelimit_service.stores.redis.shard import Shard

__all__ = ["ABSENT", "PENDING", "CrossShardRequest", "piece_of"]

PENDING: Final = Settled([], Verdict.DROPPED)
"""Stands for the result of a request until that is known. Compare it with `is`."""

ABSENT: Final = Outcome(False, 0, 0, -1)
"""Stands for an outcome until there is an answer. Compare it with `is`."""

_WITHIN: Final = Verdict.WITHIN

Piece = tuple[Shard, Sequence[int], int]
"""The answer to a piece: its shard, the indexes of its hits in the request, the shard's time."""


class CrossShardRequest:
    """A request whose counters have several homes.

    Each home's hits are a piece of it, and `ats` are their indexes in the request.
    """

    __slots__ = (
        "dropped",
        "finished",
        "hits",
        "index",
        "missing",
        "outcomes",
        "pieces",
        "returning",
        "settle",
        "settled",
        "stats",
        "tell_of_give_backs",
    )

    def __init__(
        self,
        index: int,
        hits: Sequence[Hit],
        outcomes: Outcomes,
        settle: Callable[[int, Settled], None],
        given_back: GivenBack,
        stats: Stats,
    ) -> None:
        """`settle` is called once, with the index of the request and its result.

        `outcomes` are those that are known already; the others are `ABSENT`. The caller says in
        `pieces` and `missing` which pieces have their answers.
        """
        self.index = index
        self.hits = hits
        self.settle = settle
        self.settled = PENDING
        self.tell_of_give_backs = given_back
        self.stats = stats
        self.outcomes = outcomes
        self.pieces: list[Piece] = []
        """The pieces that have their answers."""
        self.missing = 0
        """How many pieces have no answer yet."""
        self.returning: list[Sequence[int]] = []
        """The hits of each give-back that is under way."""
        self.dropped = False
        """Whether a piece was not sent, since nobody wants the request any more."""
        self.finished = False

    def drop(self, ats: Sequence[int]) -> None:
        """A piece was not sent, and will not be."""
        self.dropped = True
        for at in ats:
            self.outcomes[at] = None
        self.missing -= 1
        if not self.missing:
            self._settle()

    def answered(self, shard: Shard, ats: Sequence[int], found: Outcomes, at_us: int) -> None:
        """A piece has its outcomes; the last one settles the request."""
        outcomes = self.outcomes
        if outcomes[ats[0]] is not ABSENT:  # the piece was given up before: this answer is too late
            denied = not judge(self.hits, outcomes).verdict.passes
            hits = [self.hits[at] for at in ats]
            decided = [outcomes[at] for at in ats]
            refunds = late_refunds(hits, decided, found, at_us, denied=denied, dropped=self.dropped)
            give_back(shard, refunds, self.tell_of_give_backs)
            return
        for at, outcome in zip(ats, found, strict=True):
            outcomes[at] = outcome
        self.pieces.append((shard, ats, at_us))
        self.missing -= 1
        if not self.missing:
            self._settle()

    def _settle(self) -> None:
        """Every piece has its outcomes: gives back what is not to be counted."""
        self.settled = DROPPED if self.dropped else judge(self.hits, self.outcomes)
        if self.settled.verdict is _WITHIN:
            self.finish()
            return
        changed = self._changed()
        taken_back = []
        for shard, ats, at_us in self.pieces:
            for local in (False, True):
                there = [
                    at
                    for at in ats
                    if at in changed and (found := self.outcomes[at]) and found.local == local
                ]
                if there:
                    taken_back.append((shard, there, at_us, local))
        self.returning = [ats for _, ats, _, _ in taken_back]
        for shard, ats, at_us, local in taken_back:
            self._take_back(shard, ats, at_us, local=local)
        if not self.returning:
            self.finish()

    def _changed(self) -> set[int]:
        """The indexes of hits whose outcomes are not those that they were charged with.

        Either the hit was counted and is to be given back, or another hit of the request is on the
        same counter: then every one of these hits must report what all of them together leave.
        """
        hits, outcomes = self.hits, self.outcomes
        if not self.settled.verdict.passes:
            over = [at for at, hit in enumerate(hits) if not hit.refund]
            keys = [hits[at].key for at in over]
        else:
            keys = []  # each limit of a descriptor has a counter of its own
            # A descriptor in shadow mode counts in all of its limits or in none.
            over = [
                at
                for ats, is_over in descriptors(hits, outcomes)
                if is_over and hits[ats[0]].mode is Mode.SHADOW
                for at in ats
            ]
        return {
            at
            for at in over
            if (found := outcomes[at])
            and (
                undoable(hits[at], found, dropped=self.dropped)
                or (not found.over and keys.count(hits[at].key) > 1)
            )
        }

    def _take_back(self, shard: Shard, ats: Sequence[int], at_us: int, *, local: bool) -> None:
        """Gives back what was counted of these hits, all of one home, and asks what is left."""
        undone, peeks = [], []
        for at in ats:
            hit, outcome = self.hits[at], self.outcomes[at]
            assert outcome is not None  # noqa: S101 -- it was counted
            peeks.append(look(hit))
            if undoable(hit, outcome, dropped=self.dropped):
                undone.append(undo(hit, outcome, at_us))
                self.stats.given_back += hit.addend
        count = len(undone)
        undone.reverse()  # in a queue only the last place can be given back, so begin with it
        if local:
            now_us = shard.server.clock.now_us()
            self._undone(ats, shard.charge_here([*undone, *peeks], now_us)[count:])
            return
        shard.charge(Background([[*undone, *peeks]], partial(self._given_back, ats)))

    def _given_back(self, ats: Sequence[int], found: Outcomes | None) -> None:
        """The shard has given these hits back, and says what is left on their counters."""
        self.tell_of_give_backs([self.hits[at].key for at in ats])
        self._undone(ats, found and found[-len(ats) :])

    def _undone(self, ats: Sequence[int], peeks: Sequence[Outcome | None] | None) -> None:
        """Hears that these hits are given back, and what is left now where `peeks` say it."""
        if self.finished:
            return
        self._report(ats, peeks)
        self.returning.remove(ats)
        if not self.returning:
            self.finish()

    def _report(self, ats: Sequence[int], peeks: Sequence[Outcome | None] | None) -> None:
        """Puts into the outcomes that the charges are given back; `peeks` say what is left now."""
        for at, peek in zip(ats, peeks or [None] * len(ats), strict=True):
            outcome = self.outcomes[at]
            assert outcome is not None  # noqa: S101 -- it has counted
            undone = undoable(self.hits[at], outcome, dropped=self.dropped)
            charged = 0 if undone else outcome.charged
            remaining = outcome.remaining + outcome.charged - charged
            outcome = outcome.replaced(remaining=remaining, charged=charged)
            if peek is not None:
                outcome = outcome.replaced(remaining=peek.remaining, reset_us=peek.reset_us)
            self.outcomes[at] = outcome

    def finish(self) -> None:
        """Hands the result on. A give-back that is still under way is reported as done."""
        if self.finished or self.missing:
            return
        self.finished = True
        for ats in self.returning:
            self._report(ats, None)
        self.settle(self.index, self.settled)


def descriptors(hits: Sequence[Hit], outcomes: Outcomes) -> Iterable[tuple[Sequence[int], bool]]:
    """The indexes of the hits of each descriptor that charges, and whether it is over."""
    groups: list[list[int]] = []
    for at, hit in enumerate(hits):
        if hit.refund:
            continue
        if hit.joined and groups:
            groups[-1].append(at)
        else:
            groups.append([at])
    return [(ats, any(_over(hits[at], outcomes[at]) for at in ats)) for ats in groups]


def _over(hit: Hit, outcome: Outcome | None) -> bool:
    """Whether a hit has no room; without an outcome, whether its policy denies."""
    if outcome is None:
        return hit.policy in (FailurePolicy.CLOSED, FailurePolicy.ERROR)
    return outcome.over


def piece_of(hits: Sequence[Hit], ats: Sequence[int]) -> list[Hit]:
    """Some hits of a request as a request of their own, which is charged in one home.

    The piece must be denied only by what denies the whole request. Quotas deny only if all of them
    are over. So if some of the quotas have another home, those in this piece are always counted.
    """
    quotas = {at for at, hit in enumerate(hits) if hit.mode is Mode.QUOTA and not hit.refund}
    if not quotas - set(ats):
        quotas = set()  # all quotas are in this piece, so it can be denied by them
    # A hit that is joined to one in another home begins a descriptor in this piece.
    first, piece = 0, []
    leaders = [first := first if hit.joined else at for at, hit in enumerate(hits)]
    for number, at in enumerate(ats):
        if at in quotas:
            # Not joined: joined hits in shadow mode would count together or not at all.
            piece.append(hits[at]._replace(mode=Mode.SHADOW, joined=False))
        else:
            joined = number > 0 and leaders[at] == leaders[ats[number - 1]]
            piece.append(hits[at]._replace(joined=joined))
    return piece
