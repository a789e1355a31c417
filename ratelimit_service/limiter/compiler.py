"""What follows from a rule alone, worked out once for each rule and snapshot.

What must not live here: requests, outcomes, bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from ratelimit_service.algorithms import capacity_of, soft_of, spec_of
from ratelimit_service.limiter.additions import speaking, wanted
from ratelimit_service.limiter.compiled import CompiledLimit, CompiledRule, Kind
from ratelimit_service.limiter.near import near_threshold
from ratelimit_service.limiter.usual import is_usual, stands_alone
from ratelimit_service.model import CounterSpec, Denied, FailurePolicy, Limit, Mode, address_of
from ratelimit_service.observer import Tally
from ratelimit_service.rules.match import Match
from ratelimit_service.rules.tree import Domain, Rule, Snapshot
from ratelimit_service.settings import Settings
from ratelimit_service.stores.keys import CounterNames

__all__ = ["Compiler"]


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
        self._rules: dict[object, CompiledRule] = {}
        """By rule or tally; with `True` those of descriptors that are stray."""
        self._old: list[dict[object, CompiledRule]] = []
        """Compiled rules of earlier snapshots. To free them all at once would take too long."""

    def renew(self, snapshot: Snapshot) -> None:
        """Starts anew if this is another snapshot than the last."""
        if snapshot.number != self._snapshot:
            self._snapshot = snapshot.number
            self._minute = snapshot.minute
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

    def matched(self, domain: Domain, rule: Rule, found: Match) -> CompiledRule:
        """The rule that a descriptor meets."""
        compiled = self.rule(domain, rule, found.metric_value)
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
            self._rules[rule.tally, True] = compiled
        return compiled

    def unmatched(self, domain: Domain) -> CompiledRule:
        """For descriptors that no rule of the domain matches."""
        tally = domain.unmatched.of()
        compiled = self._rules.get(tally)
        if compiled is None:
            compiled = CompiledRule(Kind.NO_RULE, tally=tally, says=self.no_rule.says)
            self._rules[tally] = compiled
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

    def _let_go(self) -> None:
        """Lets go of two old rules for each new one, so that they cannot pile up."""
        for _ in range(2):
            if self._old and not self._old[-1]:
                self._old.pop()
            if self._old and self._old[-1]:
                self._old[-1].popitem()

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
        compiled = tuple(self._limit(domain, limit, always=bool(always)) for limit in limits)
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
        )

    def _says(self, rule: Rule | None, limits: Sequence[Limit]) -> int:
        return speaking(self.additions, self._settings, rule, limits)

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
