"""Requests that one server settles, as nearly always: from the store's `charge` to their results.

What must not live here: connections, script calls, and requests with several homes (`divided`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Final

from ratelimit_service.model import FailurePolicy, Hit, Outcome
from ratelimit_service.stores import DROPPED, Done, Settled, Verdict, Wanted, judge, wanted_at
from ratelimit_service.stores.keys import slot_of
from ratelimit_service.stores.redis.batch import Batch, Urgency
from ratelimit_service.stores.redis.cross_shard import PENDING
from ratelimit_service.stores.redis.divided import DividedCharge, expire_batch, without
from ratelimit_service.stores.redis.give_back import (
    GivenBack,
    give_back,
    give_back_here,
    late_refunds,
)
from ratelimit_service.stores.redis.shard import Home, Shard

__all__ = ["Charge"]

_PENDING: Final = PENDING
_LOCAL: Final = FailurePolicy.LOCAL
_WITHIN: Final = Verdict.WITHIN


class Charge(Batch):
    """The requests of one call of `charge`, if all their counters lie in one server."""

    __slots__ = ("_divided", "_done", "_given_back", "_missing", "_settled", "_shard")

    def __init__(
        self,
        shard: Shard,
        requests: Sequence[Sequence[Hit]],
        done: Done,
        wanted: Wanted,
        urgency: Urgency,
        given_back: GivenBack,
    ) -> None:
        super().__init__(requests, urgency, wanted)
        self._shard = shard
        self._done = done
        self._given_back = given_back
        self._missing = len(requests)
        """How many requests are not settled."""
        self._settled: list[Settled] = [_PENDING] * len(requests)
        self._divided: Sequence[DividedCharge] = ()
        """Those requests that the server has refused, since it enforces slots."""

    @property
    def finished(self) -> bool:
        """Whether all are settled: nobody waits any more."""
        return not self._missing

    def has_answer(self, index: int) -> bool:
        """Whether a request is settled."""
        return self._settled[index] is not _PENDING

    def dropped(self, indexes: Sequence[int]) -> None:
        """See `Batch`."""
        for index in indexes:
            self._settled[index] = DROPPED
        self._less(len(indexes))

    def answered(
        self, indexes: Sequence[int], found: Iterator[Outcome | None], at_us: int, within: bool
    ) -> None:
        """See `Batch`."""
        requests, settled, late = self.requests, self._settled, not self._missing
        for index in indexes:
            hits = requests[index]
            outcomes = list(islice(found, len(hits)))
            if late:
                self._answered_late(index, outcomes, at_us)
            else:
                settled[index] = Settled(outcomes, _WITHIN) if within else judge(hits, outcomes)
        if not late:
            self._less(len(indexes))

    def _answered_late(self, index: int, late: list[Outcome | None], at_us: int) -> None:
        """Takes an answer that nobody waits for any more."""
        settled = self._settled[index]
        denied = not settled.verdict.passes
        refunds = late_refunds(self.requests[index], settled.outcomes, late, at_us, denied=denied)
        give_back(self._shard, refunds, self._given_back)

    def failed(self, indexes: Sequence[int], reason: str) -> None:
        """See `Batch`."""
        settled, shard = self._settled, self._shard
        left = [index for index in indexes if settled[index] is _PENDING]
        if not left:
            return
        requests = [self.requests[index] for index in left]
        at_us = shard.server.clock.now_us()
        count = sum(map(len, requests))
        local = [hit for hits in requests for hit in hits if hit[8] is _LOCAL]
        if len(local) in (0, count):
            # As each counts as a whole or not at all, there is nothing to give back in between.
            shard.stats.store_errors[reason] += count
            counted = shard.charge_each_here(requests, at_us) if local else [()] * len(left)
            for index, hits, outcomes in zip(left, requests, counted, strict=True):
                settled[index] = judge(hits, [*outcomes] or [None] * len(hits))
        else:
            for index, hits in zip(left, requests, strict=True):
                found = without(hits, reason, shard, at_us)
                settled[index] = judge(hits, found)
                if any(found) and not settled[index].verdict.passes:
                    give_back_here(shard, hits, found, at_us)
        self._less(len(left))

    def divided_by_slot(self, indexes: Sequence[int]) -> Sequence[Batch] | None:
        """The requests that have no answer yet, as a charge with several homes."""
        left = [index for index in indexes if self._settled[index] is _PENDING]
        if not left:
            return []
        divided = DividedCharge(
            [self.requests[index] for index in left],
            partial(self._settled_by_slot, left),
            partial(wanted_at, self.wanted, left),
            self.urgency,
            self._shard.stats,
            self._given_back,
        )
        self._divided = [*self._divided, divided]
        return divided.divide(self._homes)

    def _homes(self, hits: Sequence[Hit]) -> list[Home]:
        return [(self._shard, slot_of(hit[0])) for hit in hits]

    def _settled_by_slot(self, indexes: Sequence[int], settled: Sequence[Settled]) -> None:
        for index, each in zip(indexes, settled, strict=True):
            self._settled[index] = each
        self._less(len(indexes))

    def _less(self, count: int) -> None:
        """Notes that so many more are settled; with the last it is done."""
        self._missing -= count
        if not self._missing:
            self._divided = ()  # they refer to this: it would be a cycle, which nobody collects
            self._done(self._settled)

    def left_us(self, read_us: int) -> int:
        """How long until it has waited for a server that is late; `read_us` is as in `expire`."""
        return self._shard.server.left_us(read_us, self.urgency)

    def expire(self, read_us: int) -> None:
        """Ends the charge: requests without an outcome get none any more.

        All replies that had come by `read_us` have been read.
        """
        for divided in self._divided:
            divided.expire(read_us)
        expire_batch(self, self._shard, read_us)
        self.abandon()  # after a fault of ours only: by now all is settled

    def abandon(self) -> None:
        """Ends the charge in any state: none of its hits gets an outcome."""
        if self._missing:
            self._settled = [judge(hits, [None] * len(hits)) for hits in self.requests]
            self._less(self._missing)
