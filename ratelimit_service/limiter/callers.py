"""Who was over, near, or busy: for each rule the callers with the most hits, in bounded memory.

The hot path adds to it. Somebody takes what was added every few seconds, so all of this is of a
short stretch of time. Of such a stretch the first outcomes that are over or near are all looked at,
and the first requests. What comes beyond is a sample of requests, in which each stands for those
that were passed over: it costs too much to look at everything under load. Requests of the sample
are kept, and looked at many at a time. Alone each would take five times as long, since the code
for it is not in the processor's cache any more. What must not live here: what is made of it, and
for how long it is kept (`service.caller_history`).
"""

from __future__ import annotations

from collections.abc import Sequence
from random import random
from typing import Final, NamedTuple

from ratelimit_service.containers.sketches import TopNames
from ratelimit_service.limiter.compiled import Plan
from ratelimit_service.model import Limit, Outcome
from ratelimit_service.rules.tree import Rule
from ratelimit_service.stores.keys import is_digest

__all__ = [
    "MOST_CALLERS",
    "MOST_RULES",
    "CallerStanding",
    "RuleCallers",
    "SampledRequest",
    "TopCallers",
    "room_for",
]

MOST_CALLERS: Final = 32
"""The most callers of each kind that one rule has here. Where many rules are busy each has
fewer."""

MOST_RULES: Final = 512
"""Callers of so many rules are looked at at a time. Those of other rules are left out."""

_LEAST_CALLERS: Final = 4
_ROOM: Final = MOST_RULES * _LEAST_CALLERS
"""Callers of one kind, of all rules together. Where many rules are busy each has fewer."""

_MOST_NOTES: Final = 8
"""Notes are cleared out once there are so many times as many as callers of one kind. At most six
times as many are of callers that are still known."""

_MOST_BYTES: Final = 1 << 20
"""Bytes of requests that are kept for the names of callers."""

_EXACT: Final = 2_000
"""So many outcomes that are over or near, and so many requests, are all looked at. Then only a
sample is."""

_LARGE: Final = 8
"""A request counts once more for each so many descriptors."""

_SAMPLE: Final = 32
_SAMPLE_BYTES: Final = 1_024
"""So many requests of the sample are kept before they are looked at, and none that is longer."""

_GAP: Final = 128
"""The sample has one of so many requests, on average."""

_SPREAD: Final = 2 * _GAP - 1
"""The gap between two requests of the sample is a number below this, each equally likely. To draw
it by `randrange` would take five times as long."""


def room_for(rules: int) -> int:
    """How many callers of one kind each of so many rules may have."""
    return max(_LEAST_CALLERS, min(MOST_CALLERS, _ROOM // max(1, rules)))


class CallerStanding:
    """A limit, and how many hits of it remained when it was nearest; -1 if nobody knows."""

    __slots__ = ("capacity", "limit", "remaining")

    def __init__(self, limit: Limit, capacity: int, remaining: int) -> None:
        self.limit = limit
        self.capacity = capacity
        self.remaining = remaining


class SampledRequest(NamedTuple):
    """A request of the sample, which stands for so many (`weight`).

    Without `outcomes` nothing more is to be told of what was over or near in it.
    """

    body: bytes
    plans: Sequence[Plan]
    outcomes: Sequence[Outcome | None]
    weight: int


class RuleCallers:
    """The callers of one rule, by the keys of their counters of its first limit."""

    __slots__ = ("hits", "near", "notes", "over")

    def __init__(self, most: int) -> None:
        self.over: TopNames[bytes] = TopNames(most)
        self.near: TopNames[bytes] = TopNames(most)
        self.hits: TopNames[bytes] = TopNames(most)
        self.notes: dict[bytes, CallerStanding] = {}

    def forget(self) -> None:
        """Drops the notes of who is not among the most any more."""
        over, near, hits = self.over.counts, self.near.counts, self.hits.counts
        self.notes = {
            key: standing
            for key, standing in self.notes.items()
            if key in over or key in near or key in hits
        }


class TopCallers:
    """The callers of all rules of this process, since they were last taken."""

    def __init__(self) -> None:
        self.rules: dict[Rule, RuleCallers] = {}
        self.left_out = 0
        """Hits that were not looked at, since there was no room for their rules."""
        self.outcomes = _EXACT
        """While this is above 0, or while the sample has every request, each outcome that is over
        or near is told when it is tallied. Later only outcomes of requests in the sample are."""
        self.until = 0
        """How many requests are still passed over. Each request lowers it by one; the request that
        takes it below 0 goes into the sample."""
        self.weight = 1
        """How many requests the next one of the sample stands for."""
        self.sample: list[SampledRequest] = []
        """Requests of the sample that nobody has looked at yet (`tally_sample`)."""
        self.unnamed: set[bytes] = set()
        """Keys of the batch at hand that do not tell what they count, since they are digests."""
        self.bodies: dict[bytes, tuple[bytes, int]] = {}
        """For such keys a request that charges them, and the place of its descriptor."""
        self._bytes = 0
        self._requests = _EXACT
        """So many are still to be looked at one by one."""
        self._most = MOST_CALLERS

    def clear(self) -> None:
        """Begins another stretch of time, with nobody in it."""
        self.rules, self.bodies, self.left_out = {}, {}, 0
        self._bytes, self._most = 0, MOST_CALLERS
        self.outcomes = self._requests = _EXACT

    def over(self, planned: Plan, limit: Limit, capacity: int, hits: int) -> None:
        """Adds hits that were over their limit."""
        self.outcomes -= 1
        callers = self._of(planned.declared, hits)
        if callers is not None:
            key = planned.hits[0][0]
            callers.over.add(key, hits)
            standing = callers.notes.get(key)
            if standing is None or standing.remaining:
                self._note(callers, key, CallerStanding(limit, capacity, 0))

    def near(self, planned: Plan, limit: Limit, capacity: int, hits: int, remaining: int) -> None:
        """Adds hits that passed, but were near their limit."""
        self.outcomes -= 1
        callers = self._of(planned.declared, hits)
        if callers is not None:
            key = planned.hits[0][0]
            callers.near.add(key, hits)
            standing = callers.notes.get(key)
            if standing is None or standing.limit is not limit:
                self._note(callers, key, CallerStanding(limit, capacity, remaining))
            elif remaining < standing.remaining or standing.remaining < 0:
                standing.remaining = remaining

    def keep(self, body: bytes, plans: Sequence[Plan], outcomes: Sequence[Outcome | None]) -> bool:
        """Keeps a request of the sample; says whether those that are kept are to be looked at.

        It has no `outcomes` if each that was over or near has been told already.
        """
        self.sample.append(SampledRequest(body, plans, outcomes, self.weight))
        return len(self.sample) >= _SAMPLE or len(body) > _SAMPLE_BYTES

    def busy(self, plans: Sequence[Plan], weight: int) -> None:
        """Adds all hits of a request that stands for so many."""
        for rule, addend, charged, node in plans:
            if addend and charged and not charged[0].refund:
                hits = addend * weight
                callers = self._of(node.declared, hits)
                if callers is not None:
                    key = charged[0].key
                    callers.hits.add(key, hits)
                    if key not in callers.notes:
                        limit = rule.limits[0]
                        self._note(callers, key, CallerStanding(limit.limit, limit.spec.limit, -1))

    def step(self, descriptors: int) -> int:
        """How far the next request of the sample is, after one with so many descriptors."""
        if self._requests > 0:
            self._requests -= 1 + descriptors // _LARGE
            self.weight = 1
            return 1
        self.weight = _GAP
        return 1 + int(random() * _SPREAD)  # noqa: S311 -- no secret

    def name(self, body: bytes, plans: Sequence[Plan]) -> None:
        """Hears of a request that may charge counters which are still `unnamed`."""
        for index, planned in enumerate(plans):
            if planned.hits and planned.hits[0].key in self.unnamed:
                key = planned.hits[0].key
                self.unnamed.discard(key)
                if self._bytes + len(body) <= _MOST_BYTES:
                    self._bytes += len(body)
                    self.bodies[key] = body, index

    def _note(self, callers: RuleCallers, key: bytes, standing: CallerStanding) -> None:
        """Notes how a caller stands, as near to its limit as it ever was."""
        notes = callers.notes
        if key not in notes and is_digest(key) and key not in self.bodies:
            self.unnamed.add(key)
        before = notes.get(key)
        if before is None or before.remaining < 0 or 0 <= standing.remaining < before.remaining:
            notes[key] = standing
        if len(notes) > _MOST_NOTES * callers.over.most:
            callers.forget()

    def _of(self, rule: Rule | None, hits: int) -> RuleCallers | None:
        """The callers of a rule; None if there is no room for it.

        A limit that a caller brings is no rule's.
        """
        if rule is None:
            return None
        callers = self.rules.get(rule)
        if callers is None:
            rules = len(self.rules)
            if rules >= MOST_RULES:
                self.left_out += hits
                return None
            most = room_for(rules + 1)
            if most < self._most:
                self._most = most
                for others in self.rules.values():
                    others.over.most = others.near.most = others.hits.most = most
            callers = self.rules[rule] = RuleCallers(most)
        return callers
