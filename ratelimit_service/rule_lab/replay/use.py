"""How one rule was used: what was asked of it, by whom, and how much of its limits that took.

What must not live here: what follows from it (`report`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from ratelimit_service.algorithms import ALGORITHMS, capacity_of, sliding_window, spec_of
from ratelimit_service.algorithms.fixed_window import passing
from ratelimit_service.containers.sketches import TopNames
from ratelimit_service.limiter import CompiledRule
from ratelimit_service.model import CounterSpec, Hit, Limit, Outcome, State
from ratelimit_service.rule_lab.replay.sketches import CallerSample
from ratelimit_service.rule_lab.replay.timeline import Timeline
from ratelimit_service.rules.tree import Rule

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

    def __init__(self, limit: Limit, spec: CounterSpec, *, in_turn: bool) -> None:
        self.limit = limit
        self.spec = spec
        self.demand = None if in_turn else _demand(limit)
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
    of them later hangs on what they admit. So it does where limits pay in turn, which have none. A
    pool is filled by other rules, too. A bucket without a rate has no burst.
    """
    algorithm = ALGORITHMS[limit.algorithm]
    if algorithm.leases or limit.max_wait_us or limit.pool:
        return None
    if algorithm.refills and not limit.requests_per_unit:
        return None
    most = min(algorithm.most, max(1, capacity_of(limit)) * _MOST_DEMAND)
    if algorithm.refills:
        return spec_of(limit._replace(burst=most, soft_ppm=0))
    return spec_of(limit._replace(requests_per_unit=most, soft_ppm=0))


class Caller:
    """One caller of a rule: who has a counter of its own there."""

    __slots__ = ("denied", "followed", "peaks", "states", "waiting")

    def __init__(self, limits: int) -> None:
        self.followed = True
        """Whether it is still in the sample."""
        self.waiting = False
        """Whether it came and was not followed yet."""
        self.denied = 0
        self.peaks = [0] * limits
        """The most that it asked of each limit at a time, by the limit's demand."""
        self.states: list[State | None] = [None] * limits


class RuleUse:
    """One rule. Requests are counted, not hits, where nothing else is said."""

    __slots__ = (
        "admitted_over",
        "brief",
        "callers",
        "changed",
        "changed_callers",
        "declared",
        "denied",
        "deniers",
        "held_back",
        "hits",
        "least",
        "limits",
        "refunds",
        "requests",
        "rule",
        "timeline",
    )

    def __init__(
        self,
        rule: CompiledRule,
        declared: Rule | None,
        sample: int = SAMPLE,
        names: int = TOP_NAMES,
    ) -> None:
        """`declared` is the rule as its file has it, None for limits that callers bring."""
        self.rule = rule
        self.declared = declared
        self.brief = False
        """Whether nothing is asked for but its denials, and who changes side by it."""
        self.limits = [
            LimitUse(each.limit, each.spec, in_turn=rule.in_turn) for each in rule.limits
        ]
        self.requests = self.hits = self.refunds = 0
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
        self.least = self.limits[0].spec.limit + 1 if self.limits else 0
        """The least that remained of a rule's only limit."""

    def new_caller(self, key_hash: int) -> Caller:
        """A caller that the sample wants, and has not yet."""
        caller = Caller(len(self.limits))
        gone = self.callers.put(key_hash, caller)
        if gone is not None:
            gone.followed = False
        return caller

    def follow(self, caller: Caller, hits: Sequence[Hit], times: Sequence[int]) -> None:
        """Follows what a caller in the sample asks at some times, whatever comes of it."""
        for index, hit in enumerate(hits):
            spec = self.limits[index].demand
            if spec is None:
                continue
            if spec.adds and hit.addend and not hit.refund:
                self._follow_windows(caller, index, hit.addend, times, spec)
                continue
            if spec.paired and hit.addend and not hit.refund:
                self._follow_pairs(caller, index, hit.addend, times, spec)
                continue
            for at_us in times:
                self._follow_one(caller, index, hit, at_us, spec)

    def _follow_windows(
        self, caller: Caller, index: int, addend: int, times: Sequence[int], spec: CounterSpec
    ) -> None:
        """The same where all that comes in a window of the clock just adds up."""
        state, start = caller.states[index], 0
        number = state if isinstance(state, int) else -1
        peak, limit, window_us = caller.peaks[index], spec.limit, spec.window_us
        while start < len(times):
            at_us = times[start]
            end = len(times)
            if times[-1] // window_us != at_us // window_us:
                end = bisect_left(times, (at_us // window_us + 1) * window_us, start)
            counted, remaining, _ = passing(number, at_us, addend * (end - start), limit, window_us)
            if remaining < 0:
                peak = limit  # so much is asked that it does not matter how much more
            else:
                number = counted
                peak = max(peak, limit - remaining)
            start = end
        caller.states[index], caller.peaks[index] = number, peak

    def _follow_pairs(
        self, caller: Caller, index: int, addend: int, times: Sequence[int], spec: CounterSpec
    ) -> None:
        """The same where two counts are all there is (`CounterSpec.paired`)."""
        number, before, count = sliding_window.unpacked(caller.states[index])
        least = spec.limit - caller.peaks[index]
        for at_us in times:
            counts = sliding_window.passing(number, before, count, at_us, addend, spec)
            remaining = counts[3]
            if remaining < 0:
                least = 0  # so much is asked that it does not matter how much more
            else:
                number, before, count, _, _ = counts
                least = min(least, remaining)
        if number >= 0:
            caller.states[index] = sliding_window.packed(number, before, count)
        caller.peaks[index] = spec.limit - least

    def _follow_one(
        self, caller: Caller, index: int, hit: Hit, at_us: int, spec: CounterSpec
    ) -> None:
        states, peaks, algorithm = caller.states, caller.peaks, spec.algorithm
        if hit.refund:
            gone = algorithm.refund(states[index], at_us, hit.addend, spec, b"", None)
            states[index] = gone.state
            return
        passed, state, remaining, *_ = algorithm.charge(
            states[index], at_us, hit.addend, spec, False, b""
        )
        if passed:
            states[index] = state
            used = spec.limit - remaining
        else:
            used = spec.limit
        if used > peaks[index]:  # noqa: PLR1730 -- a call of max costs as much as the rest
            peaks[index] = used

    def reach(self, used: int, limit: LimitUse, name: str, at_us: int) -> None:
        """Notes that so much of a limit was never used before."""
        limit.peak, limit.peak_name, limit.peak_us = used, name, at_us
        self.least = limit.spec.limit - used

    def within(
        self, name: str, addend: int, outcomes: Sequence[Outcome], start: int, at_us: int
    ) -> None:
        """A request of which no hit was over; this rule's outcomes begin at `start`."""
        self.requests += 1
        self.hits += addend
        self.timeline.add(at_us)
        for limit in self.limits:
            used = limit.spec.limit - outcomes[start].remaining
            start += 1
            if used > limit.peak:
                self.reach(used, limit, name, at_us)

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
        self.requests += 1
        self.hits += addend
        denies = enforced and not passes
        over = False
        for limit, outcome in zip(self.limits, outcomes, strict=False):
            if outcome is None or not (outcome.over or passes):
                continue  # it is not counted
            if outcome.over:
                over = True
                limit.denied += denies
            used = limit.spec.limit - outcome.remaining
            if used > limit.peak:
                self.reach(used, limit, name, at_us)
        self.timeline.add(at_us, int(over))
        if over:
            self.deniers.add(name)
        if over and denies:
            self.denied += 1
        elif over:
            self.admitted_over += 1
        elif not passes:
            self.held_back += 1
        return over
