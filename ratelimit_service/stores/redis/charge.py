"""What a request comes to whose counters lie in several shards: all of its hits count, or none.

Hits of one request that share a shard are settled by its script. Between shards they are
charged in parallel, each shard's as a request of its own; where the request is denied all the
same, what was counted is given back by its receipt. Others may be denied by a charge that is
then given back, nobody is admitted by one. What must not live here: connections and topology.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Final

from ratelimit_service.algorithms import denies
from ratelimit_service.model import FailurePolicy, Hit, Mode, Outcome, Receipt
from ratelimit_service.observer import Counters
from ratelimit_service.stores import Outcomes, Wanted
from ratelimit_service.stores.redis.batch import Background
from ratelimit_service.stores.redis.shard import Shard

__all__ = ["Charge", "Find", "Home"]

Home = tuple[Shard, int]
"""Where a counter lies: its shard, and which of the shard's hits one script call may settle."""

Find = Callable[[Hit], Home]
"""The home of a hit's counter; the same object for all that one script call may settle."""

GivenBack = Callable[[Sequence[bytes]], None]
"""Hears of counters in which hits were given back, once that is done."""

_PENDING: Final[Outcomes] = ()
_LOCAL: Final = FailurePolicy.LOCAL


class Charge:
    """The requests of one call of `charge`, and what is known of their outcomes."""

    __slots__ = (
        "batches",
        "counters",
        "deadline_us",
        "done",
        "given_back",
        "hurried",
        "missing",
        "outcomes",
        "over",
        "requests",
        "spreads",
        "wanted",
    )

    def __init__(
        self,
        requests: Sequence[Sequence[Hit]],
        done: Callable[[list[Outcomes]], None],
        wanted: Wanted,
        deadline_us: int,
        counters: Counters,
        given_back: GivenBack,
        *,
        hurried: bool,
    ) -> None:
        """`hurried`: the caller waits for less time than a server is given to answer."""
        self.requests = requests
        self.given_back = given_back
        self.hurried = hurried
        self.done = done
        self.wanted = wanted
        self.deadline_us = deadline_us
        self.counters = counters
        self.outcomes: list[Outcomes] = [_PENDING] * len(requests)
        self.missing = len(requests)
        self.over = False
        """Whether `done` was called: nobody waits any more."""
        self.batches: list[ShardBatch] = []
        self.spreads: list[CrossShardRequest] = []

    def start(self, find: Find) -> None:
        """Hands every shard its batch."""
        self._divide(find)
        for batch in list(self.batches):
            batch.shard.charge(batch)

    def give_up(self, find: Find, reason: str) -> None:
        """Ends the charge before it began: its caller has no time left."""
        if any(hit[8] is _LOCAL for hits in self.requests for hit in hits):
            self._divide(find)
            for batch in list(self.batches):
                batch.failed(range(len(batch.requests)), reason)
        else:
            self.counters.store_errors[reason] += sum(map(len, self.requests))
            self.abandon()

    def _divide(self, find: Find) -> None:
        batches: dict[Shard, ShardBatch] = {}
        for index, hits in enumerate(self.requests):
            homes = [find(hit) for hit in hits]
            home = homes[0]
            if homes.count(home) < len(homes):
                self._spread(index, hits, homes, batches)
                continue
            batch = batches.get(home[0]) or self._batch(home[0], batches)
            batch.requests.append(hits)
            batch.indexes.append(index)
            batch.pieces.append(None)

    def start_whole(self, shard: Shard) -> None:
        """As `start`, where everything lies in one shard."""
        batch = ShardBatch(self, shard, self.requests, _whole(len(self.requests)), [])
        self.batches.append(batch)
        shard.charge(batch)

    def settled(self, count: int) -> None:
        """Notes that so many requests have their outcomes; with the last the charge is done."""
        self.missing -= count
        if not self.missing and not self.over:
            self.over = True
            # Parts know their charge: it lets go of them, since nobody looks for cycles.
            self.batches.clear()
            self.spreads.clear()
            self.done(self.outcomes)

    def abandon(self) -> None:
        """Ends the charge whatever state it is in: nothing of it has an outcome."""
        if not self.over:
            self.outcomes = [[None] * len(hits) for hits in self.requests]
            self.settled(self.missing)

    def expire(self, read_us: int) -> None:
        """Ends the charge: what has no outcome yet gets none.

        All replies that had come by `read_us` have been read.
        """
        for batch in list(self.batches):
            batch.expire(read_us)
        for spread in list(self.spreads):
            spread.finish()

    def without(
        self, hits: Sequence[Hit], reason: str, shard: Shard, at_us: int
    ) -> list[Outcome | None]:
        """The outcomes of hits that their shard has given none for.

        Those whose policy is `local` are counted in this process, at that time.
        """
        self.counters.store_errors[reason] += len(hits)
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
        spread = CrossShardRequest(self, index, hits)
        self.spreads.append(spread)
        if len(homes) == 2:
            ats_of = {homes[0]: [0], homes[1]: [1]}
        else:
            ats_of = {}
            for at, home in enumerate(homes):
                ats_of.setdefault(home, []).append(at)
        spread.missing = len(ats_of)
        plain = True
        for hit in hits:
            if hit[7] or hit[3] is _QUOTA:
                plain = False
        for home, ats in ats_of.items():
            batch = batches.get(home[0]) or self._batch(home[0], batches)
            batch.requests.append([hits[at] for at in ats] if plain else _piece(hits, ats))
            batch.indexes.append(index)
            batch.pieces.append((spread, ats))


_QUOTA: Final = Mode.QUOTA


class ShardBatch:
    """What of a charge goes to one shard: whole requests, and pieces of those that are spread."""

    __slots__ = (
        "charge",
        "deadline_us",
        "indexes",
        "pieces",
        "requests",
        "sent",
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
        """`indexes` are, of each request, its index in the charge.

        `pieces` are, of each that is one, of what and which hits; empty if none is.
        """
        self.charge = charge
        self.shard = shard
        self.deadline_us = charge.deadline_us
        self.requests = list(requests)
        self.indexes = indexes
        self.pieces = pieces
        self.wanted = charge.wanted
        self.sent = 0

    @property
    def over(self) -> bool:
        return self.charge.over

    def dropped(self, indexes: Sequence[int]) -> None:
        for index in indexes:
            piece = self._piece(index)
            if piece:
                spread, ats = piece
                spread.drop(ats)
            else:
                self.charge.outcomes[self.indexes[index]] = []
                self.charge.settled(1)

    def answered(self, indexes: Sequence[int], found: Iterator[Outcomes], at_us: int) -> None:
        charge, of, pieces = self.charge, self.indexes, self.pieces
        if charge.over:
            for index in indexes:
                self._answered_late(index, next(found), at_us)
            return
        outcomes, count = charge.outcomes, 0
        for index in indexes:
            piece = pieces[index] if pieces else None
            if piece is None:
                outcomes[of[index]] = next(found)
                count += 1
            else:
                piece[0].answered(self.shard, piece[1], next(found), at_us)
        if count:
            charge.settled(count)

    def _answered_late(self, index: int, found: Outcomes, at_us: int) -> None:
        """Of what nobody waits for any more."""
        piece = self._piece(index)
        if piece:
            spread, ats = piece
            spread.answered(self.shard, ats, found, at_us)
        else:
            hits, final = self.requests[index], self.charge.outcomes[self.indexes[index]]
            _give_back_late(self.charge, self.shard, hits, final, found, at_us)

    def failed(self, indexes: Sequence[int], reason: str) -> None:
        charge, count, at_us = self.charge, 0, self.shard.now_us()
        for index in indexes:
            hits, piece = self.requests[index], self._piece(index)
            if piece:
                spread, ats = piece
                if spread.outcomes[ats[0]] is _ABSENT:
                    found = charge.without(hits, reason, self.shard, at_us)
                    spread.answered(self.shard, ats, found, at_us)
            elif charge.outcomes[self.indexes[index]] is _PENDING:
                found = charge.without(hits, reason, self.shard, at_us)
                if found.count(None) < len(found) and _denied(hits, found):
                    _give_back_here(self.shard, hits, found, at_us)
                charge.outcomes[self.indexes[index]] = found
                count += 1
        if count:
            charge.settled(count)

    def expire(self, read_us: int) -> None:
        """Ends what has no answer, and has the shard look whether that is its server's fault."""
        unanswered = [index for index in range(len(self.requests)) if not self._has_answer(index)]
        late: list[int] = []
        unwanted: list[int] = []
        for index in unanswered:
            wanted = index < self.sent or self.wanted(self.indexes[index])
            (late if wanted else unwanted).append(index)
        self.dropped(unwanted)
        if late:
            # Without the server's fault it is ours: there was more to do than time.
            hurried = self.charge.hurried and late[0] < self.sent
            self.failed(late, "timeout" if hurried or self.shard.late(read_us) else "overloaded")
            self.shard.missed(read_us)

    def _piece(self, index: int) -> tuple[CrossShardRequest, list[int]] | None:
        return self.pieces[index] if self.pieces else None

    def _has_answer(self, index: int) -> bool:
        piece = self._piece(index)
        if piece:
            spread, ats = piece
            return spread.outcomes[ats[0]] is not _ABSENT
        return self.charge.outcomes[self.indexes[index]] is not _PENDING


@lru_cache(maxsize=1024)
def _whole(count: int) -> list[int]:
    """The indexes of all requests of a charge; nobody changes them."""
    return list(range(count))


_ABSENT: Final = Outcome(False, 0, 0, -1)
"""Until there is an answer."""


class CrossShardRequest:
    """A request whose counters have several homes."""

    __slots__ = (
        "charge",
        "dropped",
        "given_back",
        "hits",
        "index",
        "missing",
        "outcomes",
        "over",
        "pieces",
    )

    def __init__(self, charge: Charge, index: int, hits: Sequence[Hit]) -> None:
        self.charge = charge
        self.index = index
        self.hits = hits
        self.outcomes: list[Outcome | None] = [_ABSENT] * len(hits)
        self.pieces: list[tuple[Shard, Sequence[int], int]] = []
        """Of each answer the shard, the indexes of its hits, and the shard's time."""
        self.missing = 0
        """How many pieces have no answer yet."""
        self.given_back = 0
        """How many give-backs are under way."""
        self.dropped = False
        """Whether a piece was not sent, since nobody wants the request any more."""
        self.over = False

    def drop(self, ats: Sequence[int]) -> None:
        """A piece was not sent, and will not be."""
        self.dropped = True
        for at in ats:
            self.outcomes[at] = None
        self._one_less()

    def answered(self, shard: Shard, ats: Sequence[int], found: Outcomes, at_us: int) -> None:
        """A piece has its outcomes; the last one settles the request."""
        outcomes = self.outcomes
        if outcomes[ats[0]] is not _ABSENT:  # it had none in time, and this is too late
            denied = self.dropped or _denied(self.hits, outcomes)
            late = [self.hits[at] for at in ats]
            final = [outcomes[at] for at in ats]
            _give_back_late(self.charge, shard, late, final, found, at_us, denied=denied)
            return
        if len(ats) == 1:
            outcomes[ats[0]] = found[0]
        else:
            for at, outcome in zip(ats, found, strict=True):
                outcomes[at] = outcome
        self.pieces.append((shard, ats, at_us))
        self._one_less()

    def _one_less(self) -> None:
        self.missing -= 1
        if not self.missing:
            self._settle()

    def _settle(self) -> None:
        """Every piece has its outcomes: gives back what is not to be counted."""
        if not self.dropped:
            for outcome in self.outcomes:
                if outcome is None or outcome[0]:
                    break
            else:  # as nearly always
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
        self.given_back = len(taken_back)
        for shard, ats, at_us, local in taken_back:
            self._take_back(shard, ats, at_us, local=local)
        if not self.given_back:
            self.finish()

    def _changed(self) -> set[int]:
        """The hits that were counted and are not to be, and those that saw others' hits.

        Of the latter another is on the same counter: what is left is what all of them leave.
        """
        hits, outcomes = self.hits, self.outcomes
        if self.dropped or _denied(hits, outcomes):
            over = [at for at, hit in enumerate(hits) if not hit.refund]
            keys = [hits[at].key for at in over]
        else:
            keys = []  # the limits of one descriptor have each a counter of its own
            # A descriptor in shadow mode counts in all of its limits or in none.
            over = [
                at
                for ats, is_over in _descriptors(hits, outcomes)
                if is_over and hits[ats[0]].mode is Mode.SHADOW
                for at in ats
            ]
        return {
            at
            for at in over
            if (found := outcomes[at])
            and (_undoable(hits[at], found) or (not found.over and keys.count(hits[at].key) > 1))
        }

    def _take_back(self, shard: Shard, ats: Sequence[int], at_us: int, *, local: bool) -> None:
        """Undoes what was counted of these hits, all in one home, and looks what is left."""
        undone, peeks = [], []
        for at in ats:
            hit, outcome = self.hits[at], self.outcomes[at]
            assert outcome is not None  # noqa: S101 -- it was counted
            peeks.append(_look(hit))
            if _undoable(hit, outcome):
                undone.append(_undo(hit, outcome, at_us))
                self.charge.counters.given_back += hit.addend
        count = len(undone)
        undone.reverse()  # in a queue only the last place can be given back
        if local:
            now_us = shard.now_us()
            self._undone(ats, shard.charge_here([*undone, *peeks], now_us)[count:])
            return
        shard.charge(Background([[*undone, *peeks]], partial(self._given_back, ats)))

    def _given_back(self, ats: Sequence[int], found: Outcomes | None) -> None:
        """The shard has given these hits back, and told what is left of them."""
        self.charge.given_back([self.hits[at].key for at in ats])
        self._undone(ats, found and found[-len(ats) :])

    def _undone(self, ats: Sequence[int], peeks: Outcomes | None) -> None:
        """What was charged is given back; `peeks` tell what is left now."""
        for at, peek in zip(ats, peeks or [None] * len(ats), strict=True):
            outcome = self.outcomes[at]
            assert outcome is not None  # noqa: S101 -- it has counted
            charged = 0 if _undoable(self.hits[at], outcome) else outcome.charged
            left = outcome.left + outcome.charged - charged
            outcome = outcome._replace(left=left, charged=charged)
            if peek is not None:
                outcome = outcome._replace(left=peek.left, reset_us=peek.reset_us)
            self.outcomes[at] = outcome
        self.given_back -= 1
        if not self.given_back:
            self.finish()

    def finish(self) -> None:
        """Answers; what is on its way to be given back counts as given back."""
        if self.over or self.missing:
            return
        self.over = True
        charge = self.charge
        charge.outcomes[self.index] = [] if self.dropped else self.outcomes
        charge.settled(1)


def _give_back_late(
    charge: Charge,
    shard: Shard,
    hits: Sequence[Hit],
    final: Outcomes,
    found: Outcomes,
    at_us: int,
    *,
    denied: bool | None = None,
) -> None:
    """Takes back what turns out to be counted after all, if that was denied, or counted here."""
    if denied is None:
        denied = _denied(hits, final)
    undone = [
        _undo(hit, outcome, at_us)
        for hit, told, outcome in zip(hits, final, found, strict=True)
        if outcome and _undoable(hit, outcome) and (denied or (told is not None and told.local))
    ]
    if undone:
        keys = [hit.key for hit in undone]
        shard.charge(Background([undone], partial(_given_back_late, charge.given_back, keys)))


def _given_back_late(given_back: GivenBack, keys: Sequence[bytes], _found: Outcomes | None) -> None:
    given_back(keys)


def _give_back_here(shard: Shard, hits: Sequence[Hit], found: Outcomes, at_us: int) -> None:
    """Takes back what this process alone has counted."""
    undone = [
        _undo(hit, outcome, at_us)
        for hit, outcome in zip(hits, found, strict=True)
        if outcome and _undoable(hit, outcome)
    ]
    if undone:
        shard.charge_here(undone, at_us)


def _undoable(hit: Hit, outcome: Outcome | None) -> bool:
    """Whether a hit was counted that is not counted if its request is denied."""
    return outcome is not None and outcome.charged > 0 and not (hit.refund or hit.count_denied)


def _undo(hit: Hit, outcome: Outcome, at_us: int) -> Hit:
    receipt = Receipt(at_us, at_us + outcome.reset_us)
    return hit._replace(refund=True, receipt=receipt, joined=False)


def _look(hit: Hit) -> Hit:
    """Asks what is left on a hit's counter, and when it is as new.

    That is a refund of nothing: a charge of nothing is told how long it waits for room if the
    counter is beyond its limit.
    """
    return hit._replace(addend=0, refund=True, count_denied=False, lease=b"", joined=False)


def _descriptors(hits: Sequence[Hit], outcomes: Outcomes) -> Iterable[tuple[Sequence[int], bool]]:
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


def _denied(hits: Sequence[Hit], outcomes: Outcomes) -> bool:
    return denies((hits[ats[0]].mode, over) for ats, over in _descriptors(hits, outcomes))


def _piece(hits: Sequence[Hit], ats: Sequence[int]) -> list[Hit]:
    """Some hits of a request as a request: what it cannot tell alone does not deny it."""
    quotas = {at for at, hit in enumerate(hits) if hit.mode is Mode.QUOTA and not hit.refund}
    if not quotas - set(ats):
        quotas = set()  # all of them are here, and deny as anywhere
    # What is joined to a hit that lies elsewhere begins a descriptor here.
    first, piece = 0, []
    leaders = [first := first if hit.joined else at for at, hit in enumerate(hits)]
    for number, at in enumerate(ats):
        if at in quotas:
            # Not joined: a quota's limits count each by itself, those of a shadow rule together.
            piece.append(hits[at]._replace(mode=Mode.SHADOW, joined=False))
        else:
            joined = number > 0 and leaders[at] == leaders[ats[number - 1]]
            piece.append(hits[at]._replace(joined=joined))
    return piece
