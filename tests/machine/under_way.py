"""Many calls under way at once, while servers and connections fail: what may come of them.

Nobody knows in which order they are counted. If nothing fails, and each request is settled in one
place, there must be some order in which the model gives the same answers. Else the answers and the
counters must keep within bounds: what is told as counted is counted, what nobody was told of may
be, and nothing else. Bounds are the documents' too, and nothing of the service is used for them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

from ratelimit_service.model import Hit, Outcome
from tests.machine.answers import Answer, Asked
from tests.machine.counting import Counter
from tests.machine.meaning import Identity, Meant
from tests.machine.model import Model
from tests.machine.terms import Terms
from tests.machine.world import Told

MANY = 100_000
"""More hits than any walk counts."""


class Call(NamedTuple):
    """A call that was under way together with others, and what it has come to."""

    descriptors: Sequence[Asked]
    hits: int
    told: Told
    outcomes: Sequence[Outcome | None]
    """Of each hit; None where no store has answered."""

    @property
    def known(self) -> bool:
        """Whether a store has counted all of it."""
        return all(each is not None and not each.local for each in self.outcomes) and (
            len(self.outcomes) == len(self.told.hits)
        )

    @property
    def passes(self) -> bool:
        return not (self.told.answer.over or self.told.answer.failed)


class Part(NamedTuple):
    """What one call asks of one counter, and what it was told."""

    terms: Terms
    hit: Hit
    asked: int
    refund: bool
    outcome: Outcome | None
    surely: bool
    """Whether what was told as counted is what stays counted."""
    passing: bool
    """Whether the whole call was."""


def parts_of(model: Model, calls: Sequence[Call], *, in_order: bool) -> dict[Identity, list[Part]]:
    """What calls ask of each counter."""
    found: dict[Identity, list[Part]] = {}
    for call in calls:
        meant = model.meanings(call.descriptors, call.hits)
        outcomes = iter(call.outcomes or [None] * len(call.told.hits))
        for name, terms, hits, one, hit in _limits(meant, call.told.hits):
            outcome = next(outcomes)
            # A denied place in a queue stays taken if another came behind it.
            stays = in_order or call.passes or not terms.max_wait_us
            surely = outcome is not None and not outcome.local and (stays or one.refund)
            found.setdefault(name, []).append(
                Part(terms, hit, hits, one.refund, outcome, surely, call.passes)
            )
    return found


def _limits(
    meant: Sequence[Meant], hits: Sequence[Hit]
) -> Iterator[tuple[Identity, Terms, int, Meant, Hit]]:
    its = iter(hits)
    for one in meant:
        for name, terms, asked in zip(one.counters, one.terms, one.hits, strict=True):
            yield name, terms, asked, one, next(its)


class Bounds:
    """What calls that were under way together may have made of one counter."""

    def __init__(
        self,
        counter: Counter | None,
        now: int,
        parts: Sequence[Part],
        *,
        in_order: bool,
        lossy: bool,
    ) -> None:
        """`in_order`: requests are settled in one place, so no other sees what is given back.

        `lossy`: connections were lost, with what was on its way to be given back.
        """
        self._parts = parts
        # Callers may give back hits that a denied call is about to give back.
        mixed = not in_order and not all(part.passing for part in parts)
        self._before = used(counter, parts[0].terms, now)
        limits = [part.terms for part in parts]
        # "If `burst` is lowered below what is used, at most `requests_per_unit` of the excess
        # counts": then who asks without a burst, to see all, finds more.
        limits.append(replace(limits[0], burst=MANY, max_wait_us=0))
        self.clear = all(used(counter, terms, now) == self._before for terms in limits)
        """Whether all limits find the same in the counter, and who asks what is counted, too."""
        self._takes = sum(_most_of(part) for part in parts if not part.refund)
        self._gives = sum(part.asked for part in parts if part.refund)
        self.least = self.most = self._before
        for part in parts:
            charged = part.outcome.charged if part.outcome else 0
            if part.refund:
                surely = part.surely and not mixed
                self.least -= charged if surely else part.asked
                self.most -= charged if surely and not part.terms.weighs else 0
            elif part.surely:
                self.least += charged
                self.most += part.asked if lossy else charged
            else:
                self.most += _most_of(part)
        self.least = max(self.least, Fraction(0))

    def faults(self, after: int) -> list[str]:
        """What is wrong, if so many hits are counted now."""
        found = []
        if not self.least.__ceil__() <= after <= self.most.__ceil__():
            found.append(f"{after} are counted, of {self.least} to {self.most}")
        passing = [
            part
            for part in self._parts
            if part.outcome and not (part.refund or part.outcome.over or part.outcome.local)
        ]
        if passing:
            hard = max(part.terms.hard for part in passing)
            admitted = sum(part.outcome.charged for part in passing if part.outcome)
            if admitted > max(Fraction(0), hard - self._before) + self._gives:
                found.append(f"{admitted} are admitted beside {self._before}")
        found += [fault for part in self._parts for fault in self._faults_of(part)]
        return found

    def _faults_of(self, part: Part) -> Iterator[str]:
        outcome, hard = part.outcome, part.terms.hard
        if outcome is None or outcome.local or part.refund:
            return
        if outcome.over:
            if self._before + self._takes <= hard:
                yield f"denied, though all fit: {part.asked} of {hard}"
            return
        most = hard - self._before - outcome.charged + self._gives
        least = hard - self._before - self._takes
        if not max(0, least.__floor__()) <= outcome.remaining <= max(0, most.__floor__()):
            yield f"{outcome.remaining} remain, of {least} to {most}"


def _most_of(part: Part) -> int:
    """How many hits it may count at most.

    What a process has counted alone is told later, and may have been counted before.
    """
    alone = part.outcome is not None and part.outcome.local
    return 2 * part.asked if alone else part.asked


def used(counter: Counter | None, terms: Terms, now: int) -> Fraction:
    """What counts in a counter by a limit."""
    if counter is None:
        return Fraction(0)
    its = counter.copy()
    its.terms = terms
    its.look(now)
    return Fraction(its.used(terms, now))


def in_some_order(model: Model, now: int, calls: Sequence[Call]) -> Model | None:
    """The model after an order in which it gives the same answers; None if there is none."""
    vain: set[tuple[frozenset[int], str]] = set()

    def after(model: Model, left: frozenset[int]) -> Model | None:
        if not left:
            return model
        known = left, repr([(name, vars(each)) for name, each in model.counters.items()])
        if known in vain:
            return None
        for place in left:
            call = calls[place]
            tried = _copy(model)
            expected = tried.decide(now, call.descriptors, call.hits, call.told.lease)
            if _same(call.told.answer, expected, tried.delay_us):
                found = after(tried, left - {place})
                if found is not None:
                    return found
        vain.add(known)
        return None

    return after(_copy(model), frozenset(range(len(calls))))


def _copy(model: Model) -> Model:
    copied = copy.copy(model)
    copied.counters = {name: counter.copy() for name, counter in model.counters.items()}
    return copied


def _same(got: Answer, expected: Answer, delay_us: int) -> bool:
    """Whether an answer is the model's; who stands in a queue is not looked at."""
    if delay_us % 1_000 == 1 and expected.delay_ms and got.delay_ms == expected.delay_ms - 1:
        expected = expected._replace(delay_ms=got.delay_ms)
    return got == expected._replace(queue=got.queue)
