"""What follows from a rule alone, worked out once for each rule and snapshot.

What must not live here: requests, outcomes, bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache
from typing import Final, NamedTuple

from ratelimit_service.algorithms import capacity_of, measure_of, soft_of
from ratelimit_service.limiter.near import near_threshold
from ratelimit_service.model import Denied, FailurePolicy, Limit, Measure, Mode
from ratelimit_service.observer import Tally
from ratelimit_service.rules.tree import Domain, Rule, Snapshot
from ratelimit_service.settings import Settings
from ratelimit_service.stores.keys import CounterNames

__all__ = ["NO_RULE", "CompiledLimit", "CompiledRule", "Compiler", "Kind"]


class Kind(Enum):
    """How a descriptor is to be answered."""

    NO_RULE = auto()
    """No rule matches, or another rule of the request replaces it: allowed."""
    UNLIMITED = auto()
    """An unlimited rule matches: allowed, and tallied."""
    COUNTED = auto()
    """A limit applies: the store's outcome decides."""
    UNSERVED = auto()
    """The domain's rules never loaded: the failure policy decides."""


class CompiledLimit(NamedTuple):
    """What one limit of a rule means for every descriptor that meets it.

    Hits are near the limit when the count is above `near_limit`; then less than `near_left` of
    it remains, the soft part included.
    """

    limit: Limit
    measure: Measure
    count_denied: bool
    names: CounterNames
    soft: int
    near_limit: int
    near_left: int


@dataclass(frozen=True, slots=True, eq=False)
class CompiledRule:
    """What a rule, or having none, means for every descriptor that meets it.

    `mode` is what the rule says. `hit_mode` is the mode of its hits, which the global shadow mode
    makes a shadow's.
    """

    kind: Kind
    declared: Rule | None = None
    """The rule as its file has it. None for a limit that a caller brings, and without a rule."""
    limits: tuple[CompiledLimit, ...] = ()
    mode: Mode = Mode.ENFORCED
    hit_mode: Mode = Mode.ENFORCED
    policy: FailurePolicy = FailurePolicy.OPEN
    tally: Tally | None = None
    near_left: int = 0
    """That of the first limit."""
    independent: bool = True
    """Whether the plan of a descriptor is the same whatever stands beside it in its request."""
    plain: bool = False
    """Whether an answer without anybody over says no more than what is left of a single limit.

    And the lease's id, where there is one.
    """
    leasing: bool = False
    """Whether hits take leases."""


NO_RULE: Final = CompiledRule(Kind.NO_RULE)


class Compiler:
    """Compiles the rules of a snapshot when they are first met."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._snapshot = 0
        self._rules: dict[Rule | Tally, CompiledRule] = {}
        self._old: list[dict[Rule | Tally, CompiledRule]] = []
        """Of earlier snapshots. They are let go of one by one, since all at once takes too long."""

    def renew(self, snapshot: Snapshot) -> None:
        """Starts anew if this is another snapshot than the last."""
        if snapshot.number != self._snapshot:
            self._snapshot = snapshot.number
            self._old.append(self._rules)
            self._rules = {}

    def rule(self, domain: Domain, rule: Rule, metric_value: str = "") -> CompiledRule:
        """A rule of the tree; with a value it has a tally of its own, if the rule has room."""
        # A rule has a bounded number of tallies, whatever its values.
        tally = rule.tallies.of(metric_value) if metric_value else None
        compiled = self._rules.get(tally or rule)
        if compiled is None:
            compiled = self._compile(domain, rule, tally or rule.tallies.of())
            self._rules[tally or rule] = compiled
            self._let_go()
        return compiled

    def override(self, domain: Domain, limit: Limit) -> CompiledRule:
        """A limit that the caller brings: the tree is not asked, the counter is as a rule's."""
        settings = self._settings
        mode = Mode.QUOTA if settings.quota_mode else Mode.ENFORCED
        tally = domain.overrides.of()
        return self._limited(domain, (limit,), tally, mode, settings.failure_policy, None)

    def _let_go(self) -> None:
        """Lets go of two old rules for each new one, so that they cannot pile up."""
        for _ in range(2):
            if self._old and not self._old[-1]:
                self._old.pop()
            if self._old and self._old[-1]:
                self._old[-1].popitem()

    def _compile(self, domain: Domain, rule: Rule, tally: Tally) -> CompiledRule:
        settings = self._settings
        if rule.unlimited:
            independent = self._independent(rule)
            return CompiledRule(Kind.UNLIMITED, rule, tally=tally, independent=independent)
        mode = Mode.ENFORCED
        if rule.shadow_mode:
            mode = Mode.SHADOW
        elif rule.quota_mode or settings.quota_mode:
            mode = Mode.QUOTA
        policy = rule.failure_policy or settings.failure_policy
        if rule.shadow_mode:
            policy = FailurePolicy.OPEN
        return self._limited(domain, rule.limits, tally, mode, policy, rule)

    def _limited(
        self,
        domain: Domain,
        limits: Iterable[Limit],
        tally: Tally,
        mode: Mode,
        policy: FailurePolicy,
        rule: Rule | None,
    ) -> CompiledRule:
        settings = self._settings
        always = settings.quota_mode or settings.count_denied or (rule and rule.quota_mode)
        compiled = tuple(self._limit(domain, limit, always=bool(always)) for limit in limits)
        return CompiledRule(
            Kind.COUNTED,
            rule,
            compiled,
            mode,
            Mode.SHADOW if settings.shadow_mode else mode,
            policy,
            tally,
            compiled[0].near_left,
            self._independent(rule),
            len(compiled) == 1 and _plain(compiled[0].limit),
            any(each.measure.algorithm.leases for each in compiled),
        )

    def _limit(self, domain: Domain, limit: Limit, *, always: bool) -> CompiledLimit:
        measure = _measure(limit)
        near_limit = near_threshold(capacity_of(limit), self._settings.near_limit_ratio)
        denied = measure.algorithm.denied
        count_denied = denied is Denied.ALWAYS_COUNTED or (
            (always or limit.count_denied) and denied is not Denied.NOT_COUNTED
        )
        names = CounterNames(domain.name, measure, domain.shard_by)
        near_left = measure.limit - near_limit
        return CompiledLimit(
            limit, measure, count_denied, names, soft_of(limit), near_limit, near_left
        )

    def _independent(self, rule: Rule | None) -> bool:
        """Rules that replace others and quotas act on what they stand beside."""
        if self._settings.quota_mode:
            return False
        return rule is None or not (rule.replaces or rule.quota_mode)


@lru_cache(maxsize=4096)
def _measure(limit: Limit) -> Measure:
    """One for all counters of equal limits: callers bring limits of their own."""
    return measure_of(limit)


def _plain(limit: Limit) -> bool:
    return not (soft_of(limit) or limit.max_wait_us)
