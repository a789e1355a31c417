"""What follows from a rule alone, worked out once for each rule and snapshot.

What must not live here: requests, outcomes, bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from ratelimit_service.algorithms import capacity_of, soft_of, spec_of
from ratelimit_service.limiter.additions import speaking, wanted
from ratelimit_service.limiter.compiled import CompiledLimit, CompiledRule, Era, Kind
from ratelimit_service.limiter.near import near_threshold
from ratelimit_service.limiter.usual import is_usual, stands_alone
from ratelimit_service.model import CounterSpec, Denied, FailurePolicy, Limit, Mode, address_of
from ratelimit_service.observer import Tally
from ratelimit_service.rules.match import Match
from ratelimit_service.rules.tree import Domain, Node, Rule, Snapshot
from ratelimit_service.settings import Settings
from ratelimit_service.spread import Table, spread
from ratelimit_service.stores.keys import CounterNames

__all__ = ["Compiler"]

_MOST_LIMITS: Final = 1_000
"""So many that differ are shared; beyond that sharing begins anew."""


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
        self._rules: Table[object, CompiledRule] = {}
        """Those that do not stand at a rule's node, by tally; with `True` those of descriptors that
        are stray."""
        self._old: list[dict[object, CompiledRule]] = []
        """What was in such tables for earlier snapshots. To free it at once would take too long."""

    def renew(self, snapshot: Snapshot) -> None:
        """Starts anew if this is another snapshot than the last."""
        if snapshot.number != self._snapshot:
            self._snapshot = snapshot.number
            self._minute = snapshot.minute
            self._old += [self._rules] if isinstance(self._rules, dict) else self._rules.parts
            self._rules = {}
            self._limits = {}
            self._era = Era()

    def rule(self, domain: Domain, node: Node, metric_value: str = "") -> CompiledRule:
        """A node's rule; with a value it has a tally of its own, if the rule has room."""
        if not metric_value:
            compiled = node.compiled
            if isinstance(compiled, CompiledRule) and compiled.era is self._era:
                return compiled
        rule = node.rule
        assert rule is not None  # noqa: S101 -- whoever asks has met it
        # A rule has a bounded number of tallies, whatever its values.
        tally = rule.tallies.of(metric_value)
        if metric_value:
            known = self._rules.get(tally)
            if known is None:
                known = self._keep(tally, self._compile(domain, rule, tally))
            return known
        found = self._compile(domain, rule, tally)
        node.keep_compiled(found)
        return found

    def matched(self, domain: Domain, found: Match) -> CompiledRule:
        """The rule that a descriptor meets, which meets one."""
        assert found.node is not None  # noqa: S101 -- it has a rule
        compiled = self.rule(domain, found.node, found.metric_value)
        stray = found.stray
        if compiled.groups and not stray:
            last = len(found.identity) - 1
            stray = last not in found.shared and address_of(found.identity[last][1]) is None
        return self._stray(compiled) if stray else compiled

    def _stray(self, rule: CompiledRule) -> CompiledRule:
        """The same for descriptors with a value that should be an address: it is counted."""
        compiled = self._rules.get((rule.tally, True))
        if compiled is None:
            compiled = CompiledRule(
                rule.kind,
                rule.declared,
                rule.limits,
                rule.mode,
                rule.hit_mode,
                rule.policy,
                rule.tally,
                rule.near_remaining,
                rule.independent,
                False,
                rule.says,
                rule.leasing,
                rule.groups,
                True,
            )
            self._keep((rule.tally, True), compiled)
        return compiled

    def unmatched(self, domain: Domain) -> CompiledRule:
        """For descriptors that no rule of the domain matches."""
        tally = domain.unmatched.of()
        compiled = self._rules.get(tally)
        if compiled is None:
            compiled = CompiledRule(Kind.NO_RULE, tally=tally, says=self.no_rule.says)
            self._keep(tally, compiled)
        return compiled

    def override(self, domain: Domain, limit: Limit) -> CompiledRule:
        """A limit that the caller brings. No rule is looked up; its counter is like a rule's."""
        settings = self._settings
        mode = Mode.QUOTA if settings.quota_mode else Mode.ENFORCED
        tally = domain.overrides.of()
        return self._limited(domain, (limit,), tally, mode, settings.failure_policy, None)

    def unserved(self) -> CompiledRule:
        """Of descriptors in a domain whose rules never loaded."""
        says = self._says(None, ())
        return CompiledRule(Kind.UNSERVED, policy=self._settings.failure_policy, says=says)

    def _keep(self, key: object, compiled: CompiledRule) -> CompiledRule:
        """Keeps one, and lets go of two old ones, so that these cannot pile up."""
        self._rules[key] = compiled
        self._rules = spread(self._rules)
        for _ in range(2):
            if self._old and not self._old[-1]:
                self._old.pop()
            if self._old and self._old[-1]:
                self._old[-1].popitem()
        return compiled

    def _compile(self, domain: Domain, rule: Rule, tally: Tally) -> CompiledRule:
        settings = self._settings
        limits = [
            limit
            for limit in rule.limits
            if limit.schedule is None or limit.schedule.holds(self._minute)
        ]
        if not limits:
            return CompiledRule(
                Kind.UNLIMITED,
                rule,
                tally=tally,
                independent=self._independent(rule),
                says=self._says(rule, ()),
                era=self._era,
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
        return self._limited(domain, limits, tally, mode, policy, rule)

    def _limited(
        self,
        domain: Domain,
        limits: Sequence[Limit],
        tally: Tally,
        mode: Mode,
        policy: FailurePolicy,
        rule: Rule | None,
    ) -> CompiledRule:
        settings = self._settings
        always = settings.quota_mode or settings.count_denied or (rule and rule.quota_mode)
        compiled = self._compiled_limits(domain, tuple(limits), always=bool(always))
        return CompiledRule(
            Kind.COUNTED,
            rule,
            compiled,
            mode,
            Mode.SHADOW if settings.shadow_mode else mode,
            policy,
            tally,
            compiled[0].near_remaining,
            self._independent(rule),
            not settings.shadow_mode and is_usual(rule, limits),
            self._says(rule, limits),
            any(each.spec.algorithm.leases for each in compiled),
            any(limit.grouping is not None for limit in limits),
            era=self._era,
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
            if len(self._limits) >= _MOST_LIMITS:  # callers bring limits of their own
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


@lru_cache(maxsize=4096)
def _spec(limit: Limit) -> CounterSpec:
    """One for all counters of equal limits: callers bring limits of their own."""
    return spec_of(limit)
