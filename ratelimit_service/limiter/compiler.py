"""What follows from a rule alone, worked out once for each rule and snapshot.

What must not live here: requests, outcomes, bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from ratelimit_service.algorithms import capacity_of, soft_of, spec_of
from ratelimit_service.containers.spread import Table, spread
from ratelimit_service.limiter.additions import speaking, wanted
from ratelimit_service.limiter.compiled import CompiledLimit, CompiledRule, Era, Kind, Plan
from ratelimit_service.limiter.near import near_threshold
from ratelimit_service.limiter.usual import is_usual, stands_alone
from ratelimit_service.model import (
    CountDenied,
    CounterSpec,
    Denied,
    FailurePolicy,
    Limit,
    Mode,
    address_of,
)
from ratelimit_service.observability.stats import Tally
from ratelimit_service.rules.match import Match
from ratelimit_service.rules.tree import Domain, MatchedNode, Node, Rule, Snapshot
from ratelimit_service.settings import Settings
from ratelimit_service.stores.keys import CounterNames

__all__ = ["Compiler"]

_MOST_SHARED: Final = 1_000
"""So many different limits and rules are kept to be shared; then all of them are forgotten."""


class Compiler:
    """Compiles the rules of a snapshot when they are first met."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.additions = wanted(settings)
        """What answers may say beside their statuses."""
        self.no_rule = CompiledRule(Kind.NO_RULE, says=self._says(None, ()))
        """For descriptors of unknown domains, and those whose rule is replaced by another."""
        self.enqueues = False
        """Whether any rule that was met puts denied requests into a queue."""
        self._snapshot = 0
        self._minute = 0
        self._era = Era()
        """What tells the compiled rules of this snapshot, by this compiler, from all others."""
        self._limits: dict[object, tuple[CompiledLimit, ...]] = {}
        """By what they follow from, so that rules with equal limits share them."""
        self._rules: dict[CompiledRule, CompiledRule] = {}
        """One for all rules that come to the same: it stays in the processor's caches."""
        self._mets: Table[Tally, MatchedNode] = {}
        """Those that are in no level, by where they tally."""
        self._old: list[dict[Tally, MatchedNode]] = []
        """What was in such tables for earlier snapshots. To free it at once would take too long."""

    def renew(self, snapshot: Snapshot) -> None:
        """Forgets what it has compiled, if this is another snapshot than the last."""
        if snapshot.number != self._snapshot:
            self._snapshot = snapshot.number
            self._minute = snapshot.minute
            self._old += [self._mets] if isinstance(self._mets, dict) else self._mets.parts
            self._mets = {}
            self._rules = {}
            self._limits = {}
            self._era = Era()

    def rule(self, domain: Domain, met: MatchedNode, metric_value: str = "") -> CompiledRule:
        """The rule of a node that has one. It is tallied there, unless by values."""
        compiled = met.compiled
        if isinstance(compiled, CompiledRule) and compiled.era is self._era:
            return compiled
        rule = met.declared
        assert rule is not None  # noqa: S101 -- whoever asks has met it
        found = self._compile(domain, rule)
        met.compiled = found
        if not metric_value:
            met.tally = rule.tallies.of()
        return found

    def by_value(self, met: MatchedNode, metric_value: str) -> MatchedNode:
        """What is met where a rule tallies by values. It has a bounded number of tallies."""
        rule = met.declared
        assert rule is not None  # noqa: S101 -- as above
        return self._tallied(rule.tallies.of(metric_value), met.node)

    def matched(self, domain: Domain, found: Match) -> tuple[CompiledRule, MatchedNode]:
        """The rule that a descriptor meets, which meets one, and where it is tallied."""
        met, identity, shared, metric_value, stray = found
        assert met is not None  # noqa: S101 -- it has a rule
        compiled = self.rule(domain, met, metric_value)
        if compiled.groups and not stray:
            last = len(identity) - 1
            stray = last not in shared and address_of(identity[last][1]) is None
        if stray:
            compiled = self._shared(_stray(compiled))
        return compiled, self.by_value(met, metric_value) if metric_value else met

    def unmatched(self, domain: Domain) -> Plan:
        """For descriptors that no rule of the domain matches."""
        return Plan(self.no_rule, met=self._tallied(domain.unmatched.of()))

    def override(self, domain: Domain, limit: Limit) -> tuple[CompiledRule, MatchedNode]:
        """A limit that the caller brings. No rule is looked up; its counter is like a rule's."""
        settings = self._settings
        mode = Mode.QUOTA if settings.quota_mode else Mode.ENFORCED
        compiled = self._limited(domain, (limit,), mode, settings.failure_policy, None)
        return compiled, self._tallied(domain.overrides.of())

    def unkept(self, rule: CompiledRule) -> CompiledRule:
        """The same for reports that do not count if they are denied: it takes the long ways."""
        return self._shared(
            CompiledRule(
                rule.kind,
                rule.limits,
                rule.mode,
                rule.hit_mode,
                rule.policy,
                rule.near_remaining,
                rule.independent,
                False,
                rule.says,
                rule.leasing,
                rule.groups,
                rule.stray,
                era=rule.era,
                unkept=True,
            )
        )

    def unserved(self) -> CompiledRule:
        """Of descriptors in a domain whose rules never loaded."""
        says = self._says(None, ())
        return CompiledRule(Kind.UNSERVED, policy=self._settings.failure_policy, says=says)

    def _tallied(self, tally: Tally, node: Node | None = None) -> MatchedNode:
        """What is met, of no level, where hits are tallied here. Few rules have such."""
        met = self._mets.get(tally)
        if met is None:
            met = self._mets[tally] = MatchedNode(node, tally)
            self._mets = spread(self._mets)
            for _ in range(2):  # two old ones go, so that these cannot pile up
                if self._old and not self._old[-1]:
                    self._old.pop()
                if self._old and self._old[-1]:
                    self._old[-1].popitem()
        return met

    def _shared(self, compiled: CompiledRule) -> CompiledRule:
        """The one for all rules that come to this."""
        if len(self._rules) >= _MOST_SHARED:
            self._rules = {}
        return self._rules.setdefault(compiled, compiled)

    def _compile(self, domain: Domain, rule: Rule) -> CompiledRule:
        settings = self._settings
        limits = [
            limit
            for limit in rule.limits
            if limit.schedule is None or limit.schedule.holds(self._minute)
        ]
        if not limits:
            return self._shared(
                CompiledRule(
                    Kind.UNLIMITED,
                    independent=self._independent(rule),
                    says=self._says(rule, ()),
                    era=self._era,
                )
            )
        self.enqueues = self.enqueues or rule.enqueue
        mode = Mode.ENFORCED
        if rule.shadow_mode:
            mode = Mode.SHADOW
        elif rule.quota_mode or settings.quota_mode:
            mode = Mode.QUOTA
        policy = rule.failure_policy or settings.failure_policy
        if rule.shadow_mode:
            policy = FailurePolicy.OPEN
        return self._limited(domain, limits, mode, policy, rule)

    def _limited(
        self,
        domain: Domain,
        limits: Sequence[Limit],
        mode: Mode,
        policy: FailurePolicy,
        rule: Rule | None,
    ) -> CompiledRule:
        settings = self._settings
        always = (
            settings.quota_mode
            or settings.denied_counted is CountDenied.ALL
            or (rule and rule.quota_mode)
        )
        compiled = self._compiled_limits(domain, tuple(limits), always=bool(always))
        return self._shared(
            CompiledRule(
                Kind.COUNTED,
                compiled,
                mode,
                Mode.SHADOW if settings.shadow_mode else mode,
                policy,
                compiled[0].near_remaining,
                self._independent(rule),
                not settings.shadow_mode and is_usual(rule, limits),
                self._says(rule, limits),
                any(each.spec.algorithm.leases for each in compiled),
                any(limit.grouping is not None for limit in limits),
                era=self._era,
            )
        )

    def _says(self, rule: Rule | None, limits: Sequence[Limit]) -> int:
        return speaking(self.additions, self._settings, rule, limits)

    def _compiled_limits(
        self, domain: Domain, limits: tuple[Limit, ...], *, always: bool
    ) -> tuple[CompiledLimit, ...]:
        """One for all rules of a domain with equal limits: they stay in the processor's caches."""
        key = domain.name, limits, always
        found = self._limits.get(key)
        if found is None:
            found = tuple(self._limit(domain, limit, always=always) for limit in limits)
            if len(self._limits) >= _MOST_SHARED:  # callers bring limits of their own
                self._limits = {}
            self._limits[key] = found
        return found

    def _limit(self, domain: Domain, limit: Limit, *, always: bool) -> CompiledLimit:
        spec = _spec(limit)
        near_limit = near_threshold(capacity_of(limit), self._settings.near_limit_ratio)
        denied = spec.algorithm.denied
        count_denied = denied is Denied.ALWAYS_COUNTED or (
            (always or limit.count_denied) and denied is not Denied.NOT_COUNTED
        )
        names = CounterNames(domain.name, spec, domain.shard_by, limit)
        near_remaining = spec.limit - near_limit
        return CompiledLimit(
            limit, spec, count_denied, names, soft_of(limit), near_limit, near_remaining
        )

    def _independent(self, rule: Rule | None) -> bool:
        return not self._settings.quota_mode and (rule is None or stands_alone(rule))


def _stray(rule: CompiledRule) -> CompiledRule:
    """The same for descriptors with a value that should be an address: it is counted."""
    return CompiledRule(
        rule.kind,
        rule.limits,
        rule.mode,
        rule.hit_mode,
        rule.policy,
        rule.near_remaining,
        rule.independent,
        False,
        rule.says,
        rule.leasing,
        rule.groups,
        True,
    )


@lru_cache(maxsize=4096)
def _spec(limit: Limit) -> CounterSpec:
    """One for all counters of equal limits: callers bring limits of their own."""
    return spec_of(limit)
