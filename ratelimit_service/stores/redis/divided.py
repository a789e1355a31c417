"""A charge whose counters may have several homes: what goes to which, and when all is settled.

Hits of one request that have the same home are settled there by one script call. If a request's
hits have several homes, it is divided into parts. Their outcomes are only collected, side by side
for all requests, as long as all of them are within. A request with a part that is not within, or
has no answer, becomes a `CrossShardRequest`.
What must not live here: connections, and which home a counter has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate, islice
from typing import Final

from ratelimit_service.model import FailurePolicy, Hit, Mode, Outcome
from ratelimit_service.observability.stats import Stats
from ratelimit_service.stores import (
    DROPPED,
    Done,
    Outcomes,
    Settled,
    Verdict,
    Wanted,
    judge,
    wanted_at,
)
from ratelimit_service.stores.keys import slot_of
from ratelimit_service.stores.redis.batch import Batch, Urgency
from ratelimit_service.stores.redis.cross_shard import (
    ABSENT,
    PENDING,
    CrossShardRequest,
    shard_part_of,
)
from ratelimit_service.stores.redis.give_back import (
    GivenBack,
    give_back,
    give_back_here,
    late_refunds,
)
from ratelimit_service.stores.redis.shard import FindAll, Home, Shard

__all__ = ["DividedCharge", "expire_batch", "without"]

_PENDING: Final = PENDING
_ABSENT: Final = ABSENT
_LOCAL: Final = FailurePolicy.LOCAL
_WITHIN: Final = Verdict.WITHIN


class DividedCharge:
    """The requests of one call of `charge`, and those of their results that are known."""

    __slots__ = (
        "batches",
        "begins",
        "cross_shard",
        "done",
        "finished",
        "given_back",
        "missing",
        "outcomes",
        "requests",
        "settled",
        "shard_parts",
        "stats",
        "urgency",
        "wanted",
    )

    def __init__(
        self,
        requests: Sequence[Sequence[Hit]],
        done: Done,
        wanted: Wanted,
        urgency: Urgency,
        stats: Stats,
        given_back: GivenBack,
    ) -> None:
        self.requests = requests
        self.given_back = given_back
        self.done = done
        self.wanted = wanted
        self.urgency = urgency
        self.stats = stats
        self.settled: list[Settled] = [_PENDING] * len(requests)
        self.outcomes: Outcomes = []
        """The outcomes of parts that are within. Here the hits of all requests stand in a row; the
        number of a hit in it is its position."""
        self.begins: list[int] = []
        """The position of each request's first hit; behind the last one the number of all hits."""
        self.shard_parts: dict[int, list[tuple[ShardBatch, int]]] = {}
        """The parts of each request, once one was looked for: the batch and the index there."""
        self.missing = len(requests)
        """How many parts and whole requests have no answer yet, with the cross-shard requests that
        are not settled."""
        self.finished = False
        """Whether `done` was called: nobody waits any more."""
        self.batches: list[ShardBatch] = []
        self.cross_shard: dict[int, CrossShardRequest] = {}
        """Those requests of which a part is not within, or has no answer."""

    def start(self, find_all: FindAll) -> None:
        """Hands every shard its batch."""
        for batch in self.divide(find_all):
            batch.shard.charge(batch)

    def give_up(self, find_all: FindAll, reason: str) -> None:
        """Ends the charge before it began: its caller has no time left."""
        if [hit for hits in self.requests for hit in hits if hit[8] is _LOCAL]:
            for batch in self.divide(find_all):
                batch.failed(range(len(batch.requests)), reason)
        else:
            self.stats.store_errors[reason] += sum(map(len, self.requests))
            self.abandon()

    def divide(self, find_all: FindAll) -> Sequence[ShardBatch]:
        """Divides the requests between the homes of their counters, a batch for each shard.

        This takes the hits of all requests together. A step for each request takes twice as long.
        """
        hits, numbers = self._spread()
        batches = self._batches_of(hits, numbers, range(len(hits)), find_all(hits))
        self.missing = sum([len(batch.requests) for batch in batches])
        return batches

    def _spread(self) -> tuple[list[Hit], list[int]]:
        """The hits of all requests in a row, and the request of each hit."""
        hits = [hit for each in self.requests for hit in each]
        if not self.begins:
            self.begins = list(accumulate(map(len, self.requests), initial=0))
            self.outcomes = [_ABSENT] * len(hits)
        return hits, [number for number, each in enumerate(self.requests) for _ in each]

    def _batches_of(
        self,
        hits: Sequence[Hit],
        numbers: Sequence[int],
        positions: Sequence[int],
        homes: Sequence[Home],
    ) -> list[ShardBatch]:
        """New batches, one for each shard, of the hits at these positions, each with its home."""
        positions_of: dict[Home, list[int]] = {home: [] for home in set(homes)}
        for position, home in zip(positions, homes, strict=True):
            positions_of[home].append(position)
        batches: dict[Shard, ShardBatch] = {}
        for (shard, _), there in positions_of.items():
            batch = batches.get(shard)
            if batch is None:
                batch = batches[shard] = ShardBatch(self, shard)
            batch.add([hits[at] for at in there], there, [numbers[at] for at in there])
        if [hit for hit in hits if hit[7] or hit[3] is _QUOTA]:
            for batch in batches.values():
                batch.make_parts_alone()
        self.batches += batches.values()
        return list(batches.values())

    def divide_by_slot(self, refused: ShardBatch, indexes: Sequence[int]) -> ShardBatch:
        """What a shard has refused, as another batch: each of its slots is a home of its own."""
        hits, numbers = self._spread()
        positions: list[int] = []
        for index in indexes:
            number = refused.indexes[index]
            begin, end = self.begins[number : number + 2]
            positions += [begin + at for at in refused.hit_indexes(index)] or range(begin, end)
            refused.requests[index] = _MOVED
            if number in self.cross_shard:
                self.cross_shard[number].missing -= 1
        homes = [(refused.shard, slot_of(hits[position][0])) for position in positions]
        self.shard_parts = {}
        (batch,) = self._batches_of(hits, numbers, positions, homes)
        self.missing += len(batch.requests) - len(indexes)
        for number in batch.indexes:
            if number in self.cross_shard:
                self.cross_shard[number].missing += 1
        return batch

    def settle(self, index: int, settled: Settled) -> None:
        """Takes the result of one request."""
        self.settled[index] = settled
        self.less(1)

    def less(self, count: int) -> None:
        """Notes that so many more have an answer, or are settled; with the last it is done."""
        self.missing -= count
        if not self.missing and not self.finished:
            outcomes, begins = self.outcomes, self.begins
            self.settled = [
                Settled(outcomes[begins[number] : begins[number + 1]], _WITHIN)
                if settled is _PENDING
                else settled
                for number, settled in enumerate(self.settled)
            ]
            self.finished = True  # not before: after a fault the deadline ends it
            # Batches and cross-shard requests refer to their charge. It drops them, or they would
            # be a cycle, which nobody collects.
            self.batches.clear()
            self.cross_shard = {}
            self.shard_parts = {}
            self.done(self.settled)

    def abandon(self) -> None:
        """Ends the charge in any state: none of its hits gets an outcome."""
        if not self.finished:
            self.settled = [judge(hits, [None] * len(hits)) for hits in self.requests]
            self.less(self.missing)

    def left_us(self, read_us: int) -> int:
        """How long until it has waited for a server that is late; `read_us` is as in `expire`."""
        lefts_us = [batch.shard.server.left_us(read_us, self.urgency) for batch in self.batches]
        return min(lefts_us, default=0)

    def expire(self, read_us: int) -> None:
        """Ends the charge: hits without an outcome get none any more.

        All replies that had come by `read_us` have been read.
        """
        for batch in list(self.batches):
            expire_batch(batch, batch.shard, read_us)
        for request in list(self.cross_shard.values()):
            request.finish()
        self.abandon()  # after a fault of ours only: by now all is settled

    def cross(self, index: int) -> CrossShardRequest:
        """A request that has several homes, on its own, with the answers that it has so far."""
        request = self.cross_shard.get(index)
        if request is None:
            outcomes = self.outcomes[self.begins[index] : self.begins[index + 1]]
            request = self.cross_shard[index] = CrossShardRequest(
                index, self.requests[index], outcomes, self.settle, self.given_back, self.stats
            )
            self.missing += 1
            for batch, part_index in self._shard_parts_of(index):
                hit_indexes = batch.hit_indexes(part_index)
                if outcomes[hit_indexes[0]] is _ABSENT:
                    request.missing += 1
                else:
                    request.shard_parts.append((batch.shard, hit_indexes, batch.at_us[part_index]))
        return request

    def _shard_parts_of(self, index: int) -> list[tuple[ShardBatch, int]]:
        if not self.shard_parts:
            for batch in self.batches:
                for part_index, number in enumerate(batch.indexes):
                    if batch.requests[part_index]:
                        self.shard_parts.setdefault(number, []).append((batch, part_index))
        return self.shard_parts[index]


_QUOTA: Final = Mode.QUOTA
_MOVED: Final[Sequence[Hit]] = ()
"""Stands in a batch for a request that another batch has now."""


class ShardBatch(Batch):
    """What of a charge goes to one shard: whole requests, and parts of those with several homes.

    What is known of each of these stands in lists, side by side.
    """

    __slots__ = ("at_us", "charge", "cross_shard", "indexes", "positions", "shard", "starts")

    def __init__(self, charge: DividedCharge, shard: Shard) -> None:
        self.indexes: list[int] = []
        """Of which request of the charge each is a part, or the whole."""
        super().__init__((), charge.urgency, partial(wanted_at, charge.wanted, self.indexes))
        self.charge = charge
        self.cross_shard = charge.cross_shard
        """As the charge has them; a batch keeps them for answers that come too late."""
        self.shard = shard
        self.positions: list[int] = []
        """The position of each hit in the charge."""
        self.starts: list[int] = []
        """Where in `positions` each part begins; the next one begins where it ends."""
        self.at_us: list[int] = []
        """Of each part with an answer the shard's time."""

    def add(self, hits: list[Hit], positions: list[int], of: list[int]) -> None:
        """Adds the parts of one home: their hits in a row, and the request of each hit."""
        before = len(self.positions)
        starts = [at for at, number in enumerate(of) if not at or of[at - 1] != number]
        if len(starts) == len(of):  # each part is a single hit
            self.requests += [[hit] for hit in hits]
            self.indexes += of
        else:
            ends = [*starts[1:], len(hits)]
            self.requests += [hits[start:end] for start, end in zip(starts, ends, strict=True)]
            self.indexes += [of[at] for at in starts]
        self.starts += [before + start for start in starts] if before else starts
        self.positions += positions
        self.at_us += [0] * len(starts)

    def make_parts_alone(self) -> None:
        """Makes each part a request that only what denies the whole one denies."""
        for index in range(len(self.requests)):
            hit_indexes = self.hit_indexes(index)
            if hit_indexes:
                whole = self.charge.requests[self.indexes[index]]
                self.requests[index] = shard_part_of(whole, hit_indexes)

    def hit_indexes(self, index: int) -> list[int]:
        """The indexes of a part's hits in its request; none if it is the whole request."""
        charge, of = self.charge, self.indexes[index]
        start, size = self.starts[index], len(self.requests[index])
        if size == len(charge.requests[of]):
            return []
        return [position - charge.begins[of] for position in self.positions[start : start + size]]

    @property
    def finished(self) -> bool:
        """As the charge."""
        return self.charge.finished

    def dropped(self, indexes: Sequence[int]) -> None:
        """See `Batch`."""
        charge = self.charge
        for index in indexes:
            hit_indexes, of = self.hit_indexes(index), self.indexes[index]
            if hit_indexes:
                charge.cross(of).drop(hit_indexes)
            else:
                charge.settled[of] = DROPPED
        charge.less(len(indexes))

    def answered(
        self, indexes: Sequence[int], found: Iterator[Outcome | None], at_us: int, within: bool
    ) -> None:
        """Takes the outcomes of parts, and of whole requests beside them."""
        requests = self.requests
        if self.charge.finished:
            for index in indexes:
                self._answered_late(index, list(islice(found, len(requests[index]))), at_us)
            return
        charge, of, at_us_of = self.charge, self.indexes, self.at_us
        collected, positions, starts = charge.outcomes, self.positions, self.starts
        usual = within and not charge.cross_shard
        first, count = indexes[0], len(indexes)
        if usual and indexes[-1] == first + count - 1 and len(positions) == len(starts):
            # Single hits, one after the other.
            some = positions[first : first + count]
            for position, outcome in zip(some, found, strict=False):
                collected[position] = outcome
            at_us_of[first : first + count] = [at_us] * count
            charge.less(count)
            return
        for index in indexes:
            outcomes = list(islice(found, len(requests[index])))
            if usual or (of[index] not in charge.cross_shard and _are_within(outcomes)):
                at_us_of[index] = at_us
                start = starts[index]
                for outcome in outcomes:
                    collected[positions[start]] = outcome
                    start += 1
                continue
            hit_indexes = self.hit_indexes(index)
            if hit_indexes:
                charge.cross(of[index]).answered(self.shard, hit_indexes, outcomes, at_us)
            else:
                charge.settled[of[index]] = judge(requests[index], outcomes)
        charge.less(count)

    def _answered_late(self, index: int, late: Outcomes, at_us: int) -> None:
        """Takes an answer that nobody waits for any more."""
        hit_indexes, of = self.hit_indexes(index), self.indexes[index]
        request = self.cross_shard.get(of) if hit_indexes else None
        if request is not None:
            request.answered(self.shard, hit_indexes, late, at_us)
        else:
            hits, settled = self.requests[index], self.charge.settled[of]
            outcomes, denied = settled.outcomes, not settled.verdict.passes
            decided = [outcomes[at] for at in hit_indexes] if hit_indexes and outcomes else outcomes
            refunds = late_refunds(hits, decided, late, at_us, denied=denied)
            give_back(self.shard, refunds, self.charge.given_back)

    def failed(self, indexes: Sequence[int], reason: str) -> None:
        """See `Batch`."""
        charge, count, at_us = self.charge, 0, self.shard.server.clock.now_us()
        for index in indexes:
            if self.has_answer(index):
                continue
            hits, of = self.requests[index], self.indexes[index]
            hit_indexes = self.hit_indexes(index)
            outcomes = without(hits, reason, self.shard, at_us)
            count += 1
            if hit_indexes:
                charge.cross(of).answered(self.shard, hit_indexes, outcomes, at_us)
                continue
            charge.settled[of] = settled = judge(hits, outcomes)
            if not settled.verdict.passes:
                give_back_here(self.shard, hits, outcomes, at_us)
        if count:
            charge.less(count)

    def divided_by_slot(self, indexes: Sequence[int]) -> Sequence[Batch] | None:
        """The requests that still have no answer."""
        unanswered = [index for index in indexes if not self.has_answer(index)]
        return [self.charge.divide_by_slot(self, unanswered)] if unanswered else []

    def has_answer(self, index: int) -> bool:
        """Whether a part or whole request has an answer, or needs none."""
        charge, of = self.charge, self.indexes[index]
        if charge.finished or charge.settled[of] is not _PENDING or not self.requests[index]:
            return True
        request = charge.cross_shard.get(of)
        if request is not None:
            return request.outcomes[self.hit_indexes(index)[0]] is not _ABSENT
        return charge.outcomes[self.positions[self.starts[index]]] is not _ABSENT


def _are_within(outcomes: Outcomes) -> bool:
    """Whether none of these is over, and none is missing."""
    return all(outcome is not None and not outcome.over for outcome in outcomes)


def without(hits: Sequence[Hit], reason: str, shard: Shard, at_us: int) -> list[Outcome | None]:
    """The outcomes of hits for which their shard has given none.

    Hits whose policy is `local` are counted in this process, at the time `at_us`.
    """
    shard.stats.store_errors[reason] += len(hits)
    local = [hit for hit in hits if hit[8] is _LOCAL]
    if not local:
        return [None] * len(hits)
    counted = shard.charge_here(local, at_us)
    if len(local) == len(hits):
        return [*counted]
    outcomes = iter(counted)
    return [next(outcomes, None) if hit[8] is _LOCAL else None for hit in hits]


def expire_batch(batch: Batch, shard: Shard, read_us: int) -> None:
    """Ends the requests without an answer; the shard finds out if its server is to blame.

    All replies that had come by `read_us` have been read.
    """
    late: list[int] = []
    unwanted: list[int] = []
    for index in [at for at in range(len(batch.requests)) if not batch.has_answer(at)]:
        wanted = index < batch.sent or batch.wanted(index)
        (late if wanted else unwanted).append(index)
    if unwanted:
        batch.dropped(unwanted)
    if late:
        # Either the server was too slow, or this process had too much to do.
        blamed = shard.server.late(read_us, batch.urgency.patience_us(shard.server.timeout_us))
        batch.failed(late, "timeout" if blamed else "overloaded")
        shard.server.missed(read_us)
