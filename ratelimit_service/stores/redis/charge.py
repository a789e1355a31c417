"""The requests of one call of `charge`: what goes to which shard, and when all is settled.

Hits of one request that have the same home are settled there by one script call; a request
whose hits have several homes is a `CrossShardRequest`.
What must not live here: connections, and which home a counter has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Final

from ratelimit_service.model import FailurePolicy, Hit, Mode, Outcome
from ratelimit_service.observer import Stats
from ratelimit_service.stores import DROPPED, Done, Outcomes, Settled, Verdict, Wanted, judge
from ratelimit_service.stores.redis.cross_shard import (
    ABSENT,
    PENDING,
    CrossShardRequest,
    piece_of,
)
from ratelimit_service.stores.redis.give_back import GivenBack, give_back_here, give_back_late
from ratelimit_service.stores.redis.shard import Shard

__all__ = ["Charge", "FindAll", "Home"]

Home = tuple[Shard, int]
"""Where a counter lies: its shard, and a number. One script call may settle hits of one home."""

FindAll = Callable[[Sequence[Hit]], list[Home]]
"""The home of each hit's counter; the same object for all that one script call may settle."""

_PENDING: Final = PENDING
_LOCAL: Final = FailurePolicy.LOCAL
_WITHIN: Final = Verdict.WITHIN


class Charge:
    """The requests of one call of `charge`, and those of their results that are known."""

    __slots__ = (
        "batches",
        "cross_shard",
        "deadline_us",
        "done",
        "finished",
        "given_back",
        "impatient",
        "missing",
        "rank",
        "requests",
        "settled",
        "stats",
        "wanted",
    )

    def __init__(
        self,
        requests: Sequence[Sequence[Hit]],
        done: Done,
        wanted: Wanted,
        deadline_us: int,
        stats: Stats,
        given_back: GivenBack,
        rank: int,
        *,
        impatient: bool,
    ) -> None:
        """`impatient`: the caller waits for less time than the server may take to answer."""
        self.requests = requests
        self.given_back = given_back
        self.rank = rank
        self.impatient = impatient
        self.done = done
        self.wanted = wanted
        self.deadline_us = deadline_us
        self.stats = stats
        self.settled: list[Settled] = [_PENDING] * len(requests)
        self.missing = len(requests)
        self.finished = False
        """Whether `done` was called: nobody waits any more."""
        self.batches: list[ShardBatch] = []
        self.cross_shard: list[CrossShardRequest] = []

    def start(self, find_all: FindAll) -> None:
        """Hands every shard its batch."""
        self._divide(find_all)
        for batch in list(self.batches):
            batch.shard.charge(batch)

    def give_up(self, find_all: FindAll, reason: str) -> None:
        """Ends the charge before it began: its caller has no time left."""
        if any(hit[8] is _LOCAL for hits in self.requests for hit in hits):
            self._divide(find_all)
            for batch in list(self.batches):
                batch.failed(range(len(batch.requests)), reason)
        else:
            self.stats.store_errors[reason] += sum(map(len, self.requests))
            self.abandon()

    def _divide(self, find_all: FindAll) -> None:
        batches: dict[Shard, ShardBatch] = {}
        # One call for all: a call for each hit takes longer than to look its home up.
        found, start = find_all([hit for hits in self.requests for hit in hits]), 0
        for index, hits in enumerate(self.requests):
            stop = start + len(hits)
            homes = found[start:stop]
            home, start = found[start], stop
            if homes.count(home) < len(homes):
                self._spread(index, hits, homes, batches)
                continue
            batch = batches.get(home[0]) or self._batch(home[0], batches)
            batch.requests.append(hits)
            batch.indexes.append(index)
            batch.pieces.append(None)

    def start_whole(self, shard: Shard) -> None:
        """Does what `start` does, when everything lies in one shard."""
        batch = ShardBatch(self, shard, self.requests, _whole(len(self.requests)), [])
        self.batches.append(batch)
        shard.charge(batch)

    def settle(self, index: int, settled: Settled) -> None:
        """Takes the result of one request."""
        self.settled[index] = settled
        self.less(1)

    def less(self, count: int) -> None:
        """Notes that so many more requests are settled; with the last the charge is done."""
        self.missing -= count
        if not self.missing and not self.finished:
            self.finished = True
            # Batches refer to their charge. It drops them, or they would be a cycle, which
            # nobody collects.
            self.batches.clear()
            self.cross_shard.clear()
            self.done(self.settled)

    def abandon(self) -> None:
        """Ends the charge in any state: none of its hits gets an outcome."""
        if not self.finished:
            self.settled = [judge(hits, [None] * len(hits)) for hits in self.requests]
            self.less(self.missing)

    def expire(self, read_us: int) -> None:
        """Ends the charge: hits without an outcome get none any more.

        All replies that had come by `read_us` have been read.
        """
        for batch in list(self.batches):
            batch.expire(read_us)
        for request in list(self.cross_shard):
            request.finish()

    def without(
        self, hits: Sequence[Hit], reason: str, shard: Shard, at_us: int
    ) -> list[Outcome | None]:
        """The outcomes of hits for which their shard has given none.

        Hits whose policy is `local` are counted in this process, at the time `at_us`.
        """
        self.stats.store_errors[reason] += len(hits)
        found: list[Outcome | None] = [None] * len(hits)
        ats = [at for at, hit in enumerate(hits) if hit[8] is _LOCAL]
        if ats:
            for at, outcome in zip(
                ats, shard.charge_here([hits[at] for at in ats], at_us), strict=True
            ):
                found[at] = outcome
        return found

    def _batch(self, shard: Shard, batches: dict[Shard, ShardBatch]) -> ShardBatch:
        batch = batches[shard] = ShardBatch(self, shard, [], [], [])
        self.batches.append(batch)
        return batch

    def _spread(
        self,
        index: int,
        hits: Sequence[Hit],
        homes: Sequence[Home],
        batches: dict[Shard, ShardBatch],
    ) -> None:
        """Divides a request between the homes of its counters."""
        request = CrossShardRequest(index, hits, self.settle, self.given_back, self.stats)
        self.cross_shard.append(request)
        plain = True
        for hit in hits:
            if hit[7] or hit[3] is _QUOTA:
                plain = False
        if plain and len(homes) == 2:
            request.missing = 2
            for at, (shard, _) in enumerate(homes):
                batch = batches.get(shard) or self._batch(shard, batches)
                batch.requests.append([hits[at]])
                batch.indexes.append(index)
                batch.pieces.append((request, _FIRST_TWO[at]))
            return
        ats_of: dict[Home, list[int]] = {}
        for at, home in enumerate(homes):
            ats_of.setdefault(home, []).append(at)
        request.missing = len(ats_of)
        for home, ats in ats_of.items():
            batch = batches.get(home[0]) or self._batch(home[0], batches)
            batch.requests.append([hits[at] for at in ats] if plain else piece_of(hits, ats))
            batch.indexes.append(index)
            batch.pieces.append((request, ats))


_QUOTA: Final = Mode.QUOTA
_FIRST_TWO: Final = [[0], [1]]
"""The indexes of the hits of each piece, if there are two hits. Nobody changes them."""


class ShardBatch:
    """What of a charge goes to one shard: whole requests, and pieces of cross-shard ones."""

    __slots__ = (
        "charge",
        "deadline_us",
        "indexes",
        "pieces",
        "rank",
        "requests",
        "sent",
        "settled",
        "shard",
        "wanted",
    )

    def __init__(
        self,
        charge: Charge,
        shard: Shard,
        requests: Sequence[Sequence[Hit]],
        indexes: list[int],
        pieces: list[tuple[CrossShardRequest, list[int]] | None],
    ) -> None:
        """`indexes` say which requests of the charge these are.

        `pieces` has an entry for each request: None for a whole one; for a piece the request that
        it belongs to and the indexes of its hits there. It is empty if all requests are whole.
        """
        self.charge = charge
        self.shard = shard
        self.deadline_us = charge.deadline_us
        self.rank = charge.rank
        self.requests = list(requests)
        self.indexes = indexes
        self.pieces = pieces
        self.wanted = charge.wanted
        self.sent = 0

    @property
    def finished(self) -> bool:
        return self.charge.finished

    def dropped(self, indexes: Sequence[int]) -> None:
        for index in indexes:
            piece = self._piece(index)
            if piece:
                request, ats = piece
                request.drop(ats)
            else:
                self.charge.settle(self.indexes[index], DROPPED)

    def answered(
        self, indexes: Sequence[int], found: Iterator[Outcomes], at_us: int, within: bool
    ) -> None:
        charge, of, pieces, requests = self.charge, self.indexes, self.pieces, self.requests
        if charge.finished:
            for index in indexes:
                self._answered_late(index, next(found), at_us)
            return
        settled, count = charge.settled, 0
        for index in indexes:
            piece = pieces[index] if pieces else None
            if piece is None:
                outcomes = next(found)
                settled[of[index]] = (
                    Settled(outcomes, _WITHIN) if within else judge(requests[index], outcomes)
                )
                count += 1
            else:
                request, ats = piece
                if request.answered(self.shard, ats, next(found), at_us, within=within):
                    settled[request.index] = request.settled
                    count += 1
        if count:
            charge.less(count)

    def _answered_late(self, index: int, found: Outcomes, at_us: int) -> None:
        """Takes an answer that nobody waits for any more."""
        piece = self._piece(index)
        if piece:
            request, ats = piece
            request.answered(self.shard, ats, found, at_us)
        else:
            hits, settled = self.requests[index], self.charge.settled[self.indexes[index]]
            told, denied = settled.outcomes, not settled.verdict.passes
            heard = self.charge.given_back
            give_back_late(heard, self.shard, hits, told, found, at_us, denied=denied)

    def failed(self, indexes: Sequence[int], reason: str) -> None:
        charge, count, at_us = self.charge, 0, self.shard.now_us()
        for index in indexes:
            hits, piece = self.requests[index], self._piece(index)
            if piece:
                request, ats = piece
                if request.outcomes[ats[0]] is ABSENT:
                    found = charge.without(hits, reason, self.shard, at_us)
                    request.answered(self.shard, ats, found, at_us)
            elif charge.settled[self.indexes[index]] is _PENDING:
                found = charge.without(hits, reason, self.shard, at_us)
                settled = judge(hits, found)
                if found.count(None) < len(found) and not settled.verdict.passes:
                    give_back_here(self.shard, hits, found, at_us)
                charge.settled[self.indexes[index]] = settled
                count += 1
        if count:
            charge.less(count)

    def expire(self, read_us: int) -> None:
        """Ends the requests without an answer; the shard finds out if its server is to blame."""
        unanswered = [index for index in range(len(self.requests)) if not self._has_answer(index)]
        late: list[int] = []
        unwanted: list[int] = []
        for index in unanswered:
            wanted = index < self.sent or self.wanted(self.indexes[index])
            (late if wanted else unwanted).append(index)
        self.dropped(unwanted)
        if late:
            # Either the server was too slow, or this process had too much to do.
            impatient = self.charge.impatient and late[0] < self.sent
            self.failed(late, "timeout" if impatient or self.shard.late(read_us) else "overloaded")
            self.shard.missed(read_us)

    def _piece(self, index: int) -> tuple[CrossShardRequest, list[int]] | None:
        return self.pieces[index] if self.pieces else None

    def _has_answer(self, index: int) -> bool:
        piece = self._piece(index)
        if piece:
            request, ats = piece
            return request.outcomes[ats[0]] is not ABSENT
        return self.charge.settled[self.indexes[index]] is not _PENDING


@lru_cache(maxsize=1024)
def _whole(count: int) -> list[int]:
    """The indexes of all requests of a charge; nobody changes them."""
    return list(range(count))
