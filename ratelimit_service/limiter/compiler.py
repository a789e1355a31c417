"""What follows from a rule alone, worked out once for each rule and snapshot.

What must not live here: requests, outcomes, bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from ratelimit_service.algorithms import (
    can_reserve,
    capacity_of,
    soft_of,
    spec_of,
    with_reservations,
)
from ratelimit_service.containers.spread import Table, spread
from ratelimit_service.limiter.additions import applicable, enabled
from ratelimit_service.limiter.compiled import CompiledLimit, CompiledRule, Era, Kind, Plan
from ratelimit_service.limiter.fast_path import stands_alone, takes_fast_path
from ratelimit_service.limiter.near import near_threshold
from ratelimit_service.limiter.turns import payers
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

__all__ = ["Compiler", "shared_spec"]

_MOST_SHARED: Final = 1_000
"""So many different limits and rules are kept to be shared; then all of them are forgotten."""


class Compiler:
    """Compiles the rules of a snapshot when they are first met."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.additions = enabled(settings)
        """What answers may say beside their statuses."""
        self.no_rule = CompiledRule(Kind.NO_RULE, additions=self._additions(None, ()))
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
        self._nodes: Table[Tally, MatchedNode] = {}
        """Those that are in no level, by where they tally."""
        self._old_nodes: list[dict[Tally, MatchedNode]] = []
        """What was in such tables for earlier snapshots. To free it at once would take too long."""

    def renew(self, snapshot: Snapshot) -> None:
        """Forgets what it has compiled, if this is another snapshot than the last."""
        if snapshot.number != self._snapshot:
            self._snapshot = snapshot.number
            self._minute = snapshot.minute
            self._old_nodes += [self._nodes] if isinstance(self._nodes, dict) else self._nodes.parts
            self._nodes = {}
            self._rules = {}
            self._limits = {}
            self._era = Era()

    def rule(self, domain: Domain, node: MatchedNode, metric_value: str = "") -> CompiledRule:
        """The rule of a node that has one. It is tallied there, unless by values."""
        compiled = node.compiled
        if isinstance(compiled, CompiledRule) and compiled.era is self._era:
            return compiled
        rule = node.declared
        assert rule is not None  # noqa: S101 -- whoever asks has met it
        compiled = self._compile(domain, rule)
        node.compiled = compiled
        if not metric_value:
            node.tally = rule.tallies.of()
        return compiled

    def by_value(self, node: MatchedNode, metric_value: str) -> MatchedNode:
        """What is met where a rule tallies by values. It has a bounded number of tallies."""
        rule = node.declared
        assert rule is not None  # noqa: S101 -- as above
        return self._tallied(rule.tallies.of(metric_value), node.node)

    def matched(self, domain: Domain, rule_match: Match) -> tuple[CompiledRule, MatchedNode]:
        """The rule that a descriptor meets, which meets one, and where it is tallied."""
        node, identity, shared, metric_value, stray = rule_match
        assert node is not None  # noqa: S101 -- it has a rule
        compiled = self.rule(domain, node, metric_value)
        if compiled.groups and not stray:
            last = len(identity) - 1
            stray = last not in shared and address_of(identity[last][1]) is None
        if stray:
            compiled = self._shared(_unusual(compiled, stray=True))
        return compiled, self.by_value(node, metric_value) if metric_value else node

    def unmatched(self, domain: Domain) -> Plan:
        """For descriptors that no rule of the domain matches."""
        return Plan(self.no_rule, node=self._tallied(domain.unmatched.of()))

    def override(self, domain: Domain, limit: Limit) -> tuple[CompiledRule, MatchedNode]:
        """A limit that the caller brings. No rule is looked up; its counter is like a rule's."""
        settings = self._settings
        mode = Mode.QUOTA if settings.quota_mode else Mode.ENFORCED
        compiled = self._limited(domain, (limit,), mode, settings.failure_policy, None)
        return compiled, self._tallied(domain.overrides.of())

    def uncounted_if_denied(self, rule: CompiledRule) -> CompiledRule:
        """The same for reports that do not count if they are denied."""
        return self._shared(_unusual(rule, uncounted_if_denied=True))

    def unserved(self) -> CompiledRule:
        """Of descriptors in a domain whose rules never loaded."""
        additions = self._additions(None, ())
        return CompiledRule(
            Kind.UNSERVED, policy=self._settings.failure_policy, additions=additions
        )

    def _tallied(self, tally: Tally, node: Node | None = None) -> MatchedNode:
        """What is met, of no level, where hits are tallied here. Few rules have such."""
        matched = self._nodes.get(tally)
        if matched is None:
            matched = self._nodes[tally] = MatchedNode(node, tally)
            self._nodes = spread(self._nodes)
            for _ in range(2):  # two old ones go, so that these cannot pile up
                if self._old_nodes and not self._old_nodes[-1]:
                    self._old_nodes.pop()
                if self._old_nodes and self._old_nodes[-1]:
                    self._old_nodes[-1].popitem()
        return matched

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
        if settings.reservations and (not rule.in_turn or all(map(can_reserve, limits))):
            limits = [with_reservations(limit) for limit in limits]
        if not limits:
            return self._shared(
                CompiledRule(
                    Kind.UNLIMITED,
                    independent=self._independent(rule),
                    additions=self._additions(rule, ()),
                    era=self._era,
                )
            )
        self.enqueues = self.enqueues or rule.enqueue
        mode = Mode.ENFORCED
        if rule.shadow_mode:
            mode = Mode.SHADOW
        elif (rule.quota_mode or settings.quota_mode) and not rule.in_turn:
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
        in_turn = rule is not None and rule.in_turn
        always = not in_turn and (
            settings.quota_mode
            or settings.denied_counted is CountDenied.ALL
            or (rule and rule.quota_mode)
        )
        if in_turn:
            limits = payers(limits)
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
                not settings.shadow_mode and takes_fast_path(rule, limits),
                self._additions(rule, limits),
                any(each.spec.algorithm.leases for each in compiled),
                any(limit.grouping is not None for limit in limits),
                era=self._era,
                in_turn=in_turn,
            )
        )

    def _additions(self, rule: Rule | None, limits: Sequence[Limit]) -> int:
        return applicable(self.additions, self._settings, rule, limits)

    def _compiled_limits(
        self, domain: Domain, limits: tuple[Limit, ...], *, always: bool
    ) -> tuple[CompiledLimit, ...]:
        """One for all rules of a domain with equal limits: they stay in the processor's caches."""
        key = domain.name, limits, always
        compiled = self._limits.get(key)
        if compiled is None:
            compiled = tuple(self._limit(domain, limit, always=always) for limit in limits)
            if len(self._limits) >= _MOST_SHARED:  # callers bring limits of their own
                self._limits = {}
            self._limits[key] = compiled
        return compiled

    def _limit(self, domain: Domain, limit: Limit, *, always: bool) -> CompiledLimit:
        spec = shared_spec(limit)
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


def _unusual(
    rule: CompiledRule, *, stray: bool = False, uncounted_if_denied: bool = False
) -> CompiledRule:
    """The same for descriptors of which more is to be told: it takes the slow paths."""
    return CompiledRule(
        rule.kind,
        rule.limits,
        rule.mode,
        rule.hit_mode,
        rule.policy,
        rule.near_remaining,
        rule.independent,
        False,
        rule.additions,
        rule.leasing,
        rule.groups,
        rule.stray or stray,
        era=rule.era,
        uncounted_if_denied=uncounted_if_denied,
        in_turn=rule.in_turn,
    )


@lru_cache(maxsize=4096)
def shared_spec(limit: Limit) -> CounterSpec:
    """One for all counters of equal limits, since stores remember specs by identity."""
    return spec_of(limit)
