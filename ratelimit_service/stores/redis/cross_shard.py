"""A request whose counters have several homes: all of its hits count, or none.

Its parts are charged at the same time, each as a request of its own. If one part is denied, the
whole request is, and what the other parts have counted is given back. Until then that charge may
deny somebody else; it never admits anybody. As long as all parts are within, `charge` only
collects their outcomes. What is here begins with the first part that is not.
What must not live here: which home a counter has, and what a server does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from ratelimit_service.algorithms import descriptors_of
from ratelimit_service.model import FailurePolicy, Hit, Mode, Outcome
from ratelimit_service.observability.stats import Stats
from ratelimit_service.stores import DROPPED, Outcomes, Settled, Verdict, judge
from ratelimit_service.stores.redis.batch import Background
from ratelimit_service.stores.redis.give_back import (
    GivenBack,
    give_back,
    late_refunds,
    look,
    refunds,
    undoable,
)
from ratelimit_service.stores.redis.shard import Shard

__all__ = ["ABSENT", "PENDING", "CrossShardRequest", "shard_part_of"]

PENDING: Final = Settled([], Verdict.DROPPED)
"""Stands for the result of a request until that is known. Compare it with `is`."""

ABSENT: Final = Outcome(False, 0, 0, -1)
"""Stands for an outcome until there is an answer. Compare it with `is`."""

_WITHIN: Final = Verdict.WITHIN

ShardPart = tuple[Shard, Sequence[int], int]
"""The answer to a part: its shard, the indexes of its hits in the request, the shard's time."""


class CrossShardRequest:
    """A request whose counters have several homes.

    Each home's hits are a part of it, and `indexes` are their indexes in the request.
    """

    __slots__ = (
        "dropped",
        "finished",
        "hits",
        "index",
        "missing",
        "outcomes",
        "returning",
        "settle",
        "settled",
        "shard_parts",
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
        `shard_parts` and `missing` which parts have their answers.
        """
        self.index = index
        self.hits = hits
        self.settle = settle
        self.settled = PENDING
        self.tell_of_give_backs = given_back
        self.stats = stats
        self.outcomes = outcomes
        self.shard_parts: list[ShardPart] = []
        """The parts that have their answers."""
        self.missing = 0
        """How many parts have no answer yet."""
        self.returning: list[Sequence[int]] = []
        """The hits of each give-back that is under way."""
        self.dropped = False
        """Whether a part was not sent, since nobody wants the request any more."""
        self.finished = False

    def drop(self, indexes: Sequence[int]) -> None:
        """A part was not sent, and will not be."""
        self.dropped = True
        for index in indexes:
            self.outcomes[index] = None
        self.missing -= 1
        if not self.missing:
            self._settle()

    def answered(
        self, shard: Shard, indexes: Sequence[int], part_outcomes: Outcomes, at_us: int
    ) -> None:
        """A part has its outcomes; the last one settles the request."""
        outcomes = self.outcomes
        if outcomes[indexes[0]] is not ABSENT:  # it was given up before: this answer is late
            denied = not judge(self.hits, outcomes).verdict.passes
            hits = [self.hits[index] for index in indexes]
            decided = [outcomes[index] for index in indexes]
            refunds = late_refunds(
                hits, decided, part_outcomes, at_us, denied=denied, dropped=self.dropped
            )
            give_back(shard, refunds, self.tell_of_give_backs)
            return
        for index, outcome in zip(indexes, part_outcomes, strict=True):
            outcomes[index] = outcome
        self.shard_parts.append((shard, indexes, at_us))
        self.missing -= 1
        if not self.missing:
            self._settle()

    def _settle(self) -> None:
        """Every part has its outcomes: gives back what is not to be counted."""
        self.settled = DROPPED if self.dropped else judge(self.hits, self.outcomes)
        if self.settled.verdict is _WITHIN:
            self.finish()
            return
        changed = self._changed()
        taken_back = []
        for shard, indexes, at_us in self.shard_parts:
            for local in (False, True):
                there = [
                    index
                    for index in indexes
                    if index in changed
                    and (outcome := self.outcomes[index])
                    and outcome.local == local
                ]
                if there:
                    taken_back.append((shard, there, at_us, local))
        self.returning = [indexes for _, indexes, _, _ in taken_back]
        for shard, indexes, at_us, local in taken_back:
            self._take_back(shard, indexes, at_us, local=local)
        if not self.returning:
            self.finish()

    def _changed(self) -> set[int]:
        """The indexes of hits whose outcomes are not those that they were charged with.

        Either the hit was counted and is to be given back, or another hit of the request is on the
        same counter: then every one of these hits must report what all of them together leave.
        """
        hits, outcomes = self.hits, self.outcomes
        if not self.settled.verdict.passes:
            over = [index for index, hit in enumerate(hits) if not hit.refund]
            keys = [hits[index].key for index in over]
        else:
            keys = []  # each limit of a descriptor has a counter of its own
            # A descriptor in shadow mode counts in all of its limits or in none.
            over = [
                index
                for indexes in descriptors_of(hits)
                if hits[indexes[-1]].mode is Mode.SHADOW
                and any(_over(hits[index], outcomes[index]) for index in indexes)
                for index in indexes
            ]
        return {
            index
            for index in over
            if (outcome := outcomes[index])
            and (
                undoable(hits[index], outcome, dropped=self.dropped)
                or (
                    not outcome.over
                    and (
                        keys.count(hits[index].key) > 1
                        # Behind a grant that paid it was told how long to wait for room.
                        or (
                            hits[index - 1].mode is Mode.GRANT
                            and not (outcome.charged or outcome.remaining)
                        )
                    )
                )
            )
        }

    def _take_back(self, shard: Shard, indexes: Sequence[int], at_us: int, *, local: bool) -> None:
        """Gives back what was counted of these hits, all of one home, and asks what is left."""
        hits = [self.hits[index] for index in indexes]
        outcomes = [self.outcomes[index] for index in indexes]
        undone, peeks = refunds(hits, outcomes, at_us, dropped=self.dropped), list(map(look, hits))
        self.stats.given_back += sum(refund.addend for refund in undone)
        count = len(undone)
        if local:
            now_us = shard.server.clock.now_us()
            self._undone(indexes, shard.charge_here([*undone, *peeks], now_us)[count:])
            return
        shard.charge(Background([[*undone, *peeks]], partial(self._given_back, indexes)))

    def _given_back(self, indexes: Sequence[int], outcomes: Outcomes | None) -> None:
        """The shard has given these hits back, and says what is left on their counters."""
        self.tell_of_give_backs([self.hits[index].key for index in indexes])
        self._undone(indexes, outcomes and outcomes[-len(indexes) :])

    def _undone(self, indexes: Sequence[int], peeks: Sequence[Outcome | None] | None) -> None:
        """Hears that these hits are given back, and what is left now where `peeks` say it."""
        if self.finished:
            return
        self._report(indexes, peeks)
        self.returning.remove(indexes)
        if not self.returning:
            self.finish()

    def _report(self, indexes: Sequence[int], peeks: Sequence[Outcome | None] | None) -> None:
        """Puts into the outcomes that the charges are given back; `peeks` say what is left now."""
        for index, peek in zip(indexes, peeks or [None] * len(indexes), strict=True):
            outcome = self.outcomes[index]
            assert outcome is not None  # noqa: S101 -- it has counted
            undone = undoable(self.hits[index], outcome, dropped=self.dropped)
            charged = 0 if undone else outcome.charged
            remaining = outcome.remaining + outcome.charged - charged
            outcome = outcome.replaced(remaining=remaining, charged=charged)
            if peek is not None:
                outcome = outcome.replaced(remaining=peek.remaining, reset_us=peek.reset_us)
            self.outcomes[index] = outcome

    def finish(self) -> None:
        """Hands the result on. A give-back that is still under way is reported as done."""
        if self.finished or self.missing:
            return
        self.finished = True
        for indexes in self.returning:
            self._report(indexes, None)
        self.settle(self.index, self.settled)


def _over(hit: Hit, outcome: Outcome | None) -> bool:
    """Whether a hit has no room; without an outcome, whether its policy denies."""
    if outcome is None:
        return hit.policy in (FailurePolicy.CLOSED, FailurePolicy.ERROR)
    return outcome.over


def shard_part_of(hits: Sequence[Hit], indexes: Sequence[int]) -> list[Hit]:
    """Some hits of a request as a request of their own, which is charged in one home.

    The part must be denied only by what denies the whole request. Quotas deny only if all of them
    are over. So if some of the quotas have another home, those in this part are always counted.
    """
    quotas = {index for index, hit in enumerate(hits) if hit.mode is Mode.QUOTA and not hit.refund}
    if not quotas - set(indexes):
        quotas = set()  # all quotas are in this part, so it can be denied by them
    # A hit that is joined to one in another home begins a descriptor in this part.
    groups = descriptors_of(hits)
    alone = {index for group in groups if group[-1] in quotas for index in group}
    leaders = {index: group[0] for group in groups for index in group}
    part: list[Hit] = []
    for number, index in enumerate(indexes):
        hit, before = hits[index], leaders.get(indexes[number - 1]) if number else None
        if index in quotas:
            hit = hit._replace(mode=Mode.SHADOW)
        # In a row joined hits in shadow mode would count together or not at all.
        joined = before is not None and before == leaders.get(index) and index not in alone
        part.append(hit._replace(joined=joined))
    return part
