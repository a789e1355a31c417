"""How one rule was used: what was asked of it, by whom, and how much of its limits that took.

What must not live here: what follows from it (`report`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ratelimit_service.algorithms import ALGORITHMS, capacity_of, spec_of
from ratelimit_service.limiter import CompiledRule
from ratelimit_service.model import CounterSpec, Hit, Limit, Outcome, State
from ratelimit_service.replay.sketches import CallerSample
from ratelimit_service.replay.timeline import Timeline
from ratelimit_service.sketches import TopNames

__all__ = ["SAMPLE", "TOP_NAMES", "Caller", "LimitUse", "RuleUse"]

SAMPLE: Final = 4_096
"""So many callers of a rule are looked at one by one: all of them, or a random part."""

TOP_NAMES: Final = 1_000
"""So many names are held to find the most frequent ones."""

_MOST_DEMAND: Final = 100
"""Demand is followed up to so many times the limit."""


class LimitUse:
    """One limit of a rule. `peak` is the most that was used of it, in hits, when and by whom."""

    __slots__ = ("demand", "denied", "limit", "peak", "peak_name", "peak_us", "spec")

    def __init__(self, limit: Limit, spec: CounterSpec) -> None:
        self.limit = limit
        self.spec = spec
        self.demand = _demand(limit)
        """Counts as the limit does, but admits far more. None where that would say nothing."""
        self.denied = 0
        """Requests that it was over for, and that were denied."""
        self.peak = -1
        self.peak_name = ""
        self.peak_us = 0


def _demand(limit: Limit) -> CounterSpec | None:
    """What counts all that is asked, in the same windows or leaking at the same rate.

    A limit denies a caller at some time exactly if it asks more than the limit at some time by
    this count, because nothing is denied before. Leases and queues are different: what is asked
    of them later hangs on what they admit.
    """
    algorithm = ALGORITHMS[limit.algorithm]
    if algorithm.leases or limit.max_wait_us:
        return None
    most = min(algorithm.most, max(1, capacity_of(limit)) * _MOST_DEMAND)
    if algorithm.refills:
        return spec_of(limit._replace(burst=most, soft_ppm=0))
    return spec_of(limit._replace(requests_per_unit=most, soft_ppm=0))


class Caller:
    """One caller of a rule: who has a counter of its own there."""

    __slots__ = ("asked", "denied", "followed", "name", "peaks", "states")

    def __init__(self, name: str, limits: int) -> None:
        self.name = name
        self.followed = True
        """Whether it is still in the sample."""
        self.asked = 0
        self.denied = 0
        self.peaks = [0] * limits
        """The most that it asked of each limit at a time, by the limit's demand."""
        self.states: list[State | None] = [None] * limits


class RuleUse:
    """One rule. Requests are counted, not hits, where nothing else is said."""

    __slots__ = (
        "admitted_over",
        "asked",
        "callers",
        "changed",
        "changed_callers",
        "denied",
        "deniers",
        "held_back",
        "hits",
        "limits",
        "refunds",
        "rule",
        "timeline",
    )

    def __init__(self, rule: CompiledRule, sample: int = SAMPLE, names: int = TOP_NAMES) -> None:
        self.rule = rule
        self.limits = [LimitUse(each.limit, each.spec) for each in rule.limits]
        self.asked = self.hits = self.refunds = 0
        self.denied = 0
        """It was over, and the request was denied."""
        self.admitted_over = 0
        """It was over, but let the request through: a shadow, or a quota among others."""
        self.held_back = 0
        """It had room, but another rule denied the request."""
        self.callers = CallerSample[Caller](sample)
        self.deniers = TopNames[str](names)
        """Who was denied or, by a shadow, would have been."""
        self.timeline = Timeline()
        self.changed = TopNames[str](names)
        """Who changes side where this rule decides."""
        self.changed_callers = CallerSample[str](sample)

    def caller(self, place: int, name: str) -> Caller | None:
        """The caller with this place among all, if it is in the sample."""
        callers = self.callers
        if not callers.wants(place):
            return None
        caller = callers.get(place)
        if caller is None:
            caller = Caller(name, len(self.limits))
            gone = callers.put(place, caller)
            if gone is not None:
                gone.followed = False
        return caller

    def follow(self, caller: Caller, hits: Sequence[Hit], at_us: int) -> None:
        """Follows what a caller in the sample asks, whatever comes of it."""
        states, peaks = caller.states, caller.peaks
        for place, hit in enumerate(hits):
            spec = self.limits[place].demand
            if spec is None:
                continue
            algorithm = spec.algorithm
            if hit.refund:
                gone = algorithm.refund(states[place], at_us, hit.addend, spec, b"", None)
                states[place] = gone.state
                continue
            passed, state, remaining, *_ = algorithm.charge(
                states[place], at_us, hit.addend, spec, False, b""
            )
            if passed:
                states[place] = state
                used = spec.limit - remaining
            else:
                used = spec.limit
            if used > peaks[place]:  # noqa: PLR1730 -- a call of max costs as much as the rest
                peaks[place] = used

    def within_alone(self, name: str, addend: int, remaining: int, at_us: int) -> None:
        """As `within`, of a rule with one limit, by what remains of it."""
        self.asked += 1
        self.hits += addend
        self.timeline.add(at_us)
        limit = self.limits[0]
        used = limit.spec.limit - remaining
        if used > limit.peak:
            limit.peak, limit.peak_name, limit.peak_us = used, name, at_us

    def within(
        self, name: str, addend: int, outcomes: Sequence[Outcome], start: int, at_us: int
    ) -> None:
        """A request of which no hit was over; this rule's outcomes begin at `start`."""
        self.asked += 1
        self.hits += addend
        self.timeline.add(at_us)
        for limit in self.limits:
            used = limit.spec.limit - outcomes[start].remaining
            start += 1
            if used > limit.peak:
                limit.peak, limit.peak_name, limit.peak_us = used, name, at_us

    def settled(
        self,
        name: str,
        addend: int,
        outcomes: Sequence[Outcome | None],
        at_us: int,
        *,
        passes: bool,
        enforced: bool,
    ) -> bool:
        """As `within`, of any request; tells whether this rule was over."""
        self.asked += 1
        self.hits += addend
        over = False
        for limit, outcome in zip(self.limits, outcomes, strict=False):
            if outcome is None:
                continue
            if outcome.over:
                over = True
                if enforced and not passes:
                    limit.denied += 1
            elif not passes:
                continue  # it is not counted
            used = limit.spec.limit - outcome.remaining
            if used > limit.peak:
                limit.peak, limit.peak_name, limit.peak_us = used, name, at_us
        denied = over and enforced and not passes
        self.timeline.add(at_us, int(over))
        if over:
            self.deniers.add(name)
        if denied:
            self.denied += 1
        elif over:
            self.admitted_over += 1
        elif not passes:
            self.held_back += 1
        return over
