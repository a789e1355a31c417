"""From a request and the rules to what is to be counted. No clock, no store, no wire."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import NamedTuple

from ratelimit_service.limiter.near import near_threshold
from ratelimit_service.model import Descriptor, Entry, FailurePolicy, Hit, Limit, Mode, Request
from ratelimit_service.observer import Tally
from ratelimit_service.rules.match import Match, match
from ratelimit_service.rules.tree import Domain, Rule, Snapshot
from ratelimit_service.settings import Settings
from ratelimit_service.stores.keys import CounterNames

__all__ = ["Kind", "Plan", "Planner", "Terms"]


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


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """What a rule, or having none, means for every descriptor that meets it.

    `mode` is what the rule says; a hit's mode is what it comes to in its request, where a
    passed quota or the global shadow mode can take its sting away. `near_limit` is the count
    above which hits are near the limit, `near_left` what is then left of it.
    """

    kind: Kind
    rule: Rule | None = None
    limit: Limit | None = None
    mode: Mode = Mode.ENFORCED
    policy: FailurePolicy = FailurePolicy.OPEN
    tally: Tally | None = None
    near_limit: int = 0
    near_left: int = 0
    algorithm: str = "fixed_window"
    window_us: int = 0
    hit_mode: Mode = Mode.ENFORCED
    count_denied: bool = False
    names: CounterNames | None = None
    encoded: bytes = b""
    """The limit as answers show it."""

    independent: bool = True
    """Whether they are the same in any other request, whatever stands beside the descriptor."""


class Plan(NamedTuple):
    """What one descriptor needs: its terms, the number of hits, and what is to be charged."""

    terms: Terms
    addend: int = 1
    hit: Hit | None = None


_NO_RULE = Terms(Kind.NO_RULE)


class Planner:
    """Plans requests. What follows from a rule alone is worked out once for each snapshot."""

    def __init__(self, settings: Settings, encode: Callable[[Limit], bytes]) -> None:
        """`encode` makes of a limit what does not change between two answers."""
        self._settings = settings
        self._encode = encode
        self._snapshot = 0
        self._terms: dict[Rule | Tally, Terms] = {}
        self._old: list[dict[Rule | Tally, Terms]] = []
        """Of snapshots before: let go of one by one, since all at once takes too long."""

    def plan(self, request: Request, snapshot: Snapshot) -> list[Plan]:
        """Plans every descriptor of a request, in order."""
        self._renew(snapshot)
        settings = self._settings
        domain = snapshot.domains.get(request.domain)
        if domain is None:
            terms = _NO_RULE
            if request.domain in snapshot.unserved:
                terms = Terms(Kind.UNSERVED, policy=settings.failure_policy)
            return [Plan(terms)] * len(request.descriptors)
        matches = [
            descriptor.limit or match(domain, descriptor.entries)
            for descriptor in request.descriptors
        ]
        replaced: set[str] = set()
        for found in matches:
            if isinstance(found, Match) and found.rule and found.rule.replaces:
                replaced |= found.rule.replaces
        plans = []
        for descriptor, found in zip(request.descriptors, matches, strict=True):
            addend = descriptor.hits_addend
            if addend is None:
                addend = request.hits_addend or 1
            if not isinstance(found, Match):
                terms = self._override(domain, found)
                refund = descriptor.is_negative_hits
                plans.append(_counted(terms, found, descriptor.entries, (), addend, refund))
            elif found.rule is None or (replaced and found.rule.name in replaced):
                plans.append(self._without(found, addend))
            else:
                plans.append(self._matched(descriptor, found, found.rule, addend))
        if settings.quota_mode or any(planned.terms.mode is Mode.QUOTA for planned in plans):
            return _with_quotas(plans, settings)
        return plans

    def plan_alone(
        self, domain: Domain, entries: Sequence[Entry], addend: int, snapshot: Snapshot
    ) -> Plan | None:
        """Plans a descriptor that has nothing but entries, without its request.

        None if what stands beside it may matter; `addend` is the request's, 0 if it has none.
        """
        self._renew(snapshot)
        rule, identity, shared, metric_value = match(domain, entries)
        if rule is None:
            return None if self._settings.quota_mode else Plan(_NO_RULE)
        terms = self._of_rule(rule, metric_value)
        if not terms.independent:
            return None
        if terms.limit is None:
            return Plan(terms, addend or 1)
        return _counted(terms, terms.limit, identity, shared, addend or 1)

    def _renew(self, snapshot: Snapshot) -> None:
        if snapshot.number != self._snapshot:
            self._snapshot = snapshot.number
            self._old.append(self._terms)
            self._terms = {}

    def _without(self, found: Match, addend: int) -> Plan:
        """Of a descriptor that meets no rule, or one that is replaced; unlimited ones are not."""
        if found.rule is not None and found.rule.limit is None:
            return Plan(self._of_rule(found.rule, found.metric_value), addend)
        return Plan(_NO_RULE)

    def _matched(self, descriptor: Descriptor, found: Match, rule: Rule, addend: int) -> Plan:
        terms = self._of_rule(rule, found.metric_value)
        if terms.limit is None:
            return Plan(terms, addend)
        refund = descriptor.is_negative_hits
        return _counted(terms, terms.limit, found.identity, found.shared, addend, refund)

    def _of_rule(self, rule: Rule, metric_value: str) -> Terms:
        # A rule has a bounded number of tallies, whatever its values.
        tally = rule.tallies.of(metric_value) if metric_value else None
        terms = self._terms.get(tally or rule)
        if terms is None:
            terms = self._terms[tally or rule] = self._new_terms(rule, tally or rule.tallies.of())
            self._let_go()
        return terms

    def _let_go(self) -> None:
        """Lets go of two old terms for each new one, so that they cannot pile up."""
        for _ in range(2):
            if self._old and not self._old[-1]:
                self._old.pop()
            if self._old and self._old[-1]:
                self._old[-1].popitem()

    def _new_terms(self, rule: Rule, tally: Tally) -> Terms:
        settings = self._settings
        if rule.limit is None:
            return Terms(Kind.UNLIMITED, rule, tally=tally, independent=self._independent(rule))
        mode = Mode.ENFORCED
        if rule.shadow_mode:
            mode = Mode.SHADOW
        elif rule.quota_mode or settings.quota_mode:
            mode = Mode.QUOTA
        policy = rule.failure_policy or settings.failure_policy
        if rule.shadow_mode:
            policy = FailurePolicy.OPEN
        return self._limited(rule.domain, rule.limit, tally, mode, policy, rule)

    def _override(self, domain: Domain, limit: Limit) -> Terms:
        """A limit that the caller brings: the tree is not asked, the counter is as a rule's."""
        settings = self._settings
        mode = Mode.QUOTA if settings.quota_mode else Mode.ENFORCED
        tally = domain.overrides.of()
        return self._limited(domain.name, limit, tally, mode, settings.failure_policy, None)

    def _limited(
        self,
        domain: str,
        limit: Limit,
        tally: Tally,
        mode: Mode,
        policy: FailurePolicy,
        rule: Rule | None,
    ) -> Terms:
        settings = self._settings
        algorithm = rule.algorithm if rule else "fixed_window"
        near_limit = near_threshold(limit.requests_per_unit, settings.near_limit_ratio)
        count_denied = settings.quota_mode or settings.count_denied
        return Terms(
            Kind.COUNTED,
            rule,
            limit,
            mode,
            policy,
            tally,
            near_limit,
            limit.requests_per_unit - near_limit,
            algorithm,
            limit.window_us,
            Mode.SHADOW if settings.shadow_mode else mode,
            count_denied or (rule is not None and (rule.count_denied or rule.quota_mode)),
            CounterNames(domain, algorithm, limit.window_us),
            self._encode(limit),
            self._independent(rule),
        )

    def _independent(self, rule: Rule | None) -> bool:
        """Rules that replace others and quotas act on what they stand beside."""
        if self._settings.quota_mode:
            return False
        return rule is None or not (rule.replaces or rule.quota_mode)


def _counted(
    terms: Terms,
    limit: Limit,
    identity: Iterable[tuple[str, str]],
    shared: Collection[int],
    addend: int,
    refund: bool = False,
) -> Plan:
    assert terms.names is not None  # noqa: S101 -- as wherever there is a limit
    hit = (
        terms.names.key(identity, shared),
        limit.requests_per_unit,
        terms.window_us,
        addend,
        terms.algorithm,
        terms.hit_mode,
        terms.count_denied,
        refund,
    )
    return _plan((terms, addend, _hit(hit)))


_hit = partial(tuple.__new__, Hit)
_plan = partial(tuple.__new__, Plan)
"""From a tuple of the fields, at half the price of a call with as many arguments."""


def _with_quotas(plans: Sequence[Plan], settings: Settings) -> list[Plan]:
    """Takes the sting from the request's quotas where one is known to pass without counting.

    That is a quota in shadow mode and, under the global quota mode, a descriptor that no rule
    limits (envoyproxy/ratelimit counts both as passed).
    """
    passed = any(
        (settings.quota_mode and terms.kind is Kind.NO_RULE)
        or (
            terms.mode is Mode.SHADOW
            and terms.rule is not None
            and (settings.quota_mode or terms.rule.quota_mode)
        )
        for terms, _, _ in plans
    )
    if not passed:
        return list(plans)
    return [
        planned._replace(hit=planned.hit._replace(mode=Mode.SHADOW))
        if planned.hit and planned.terms.mode is Mode.QUOTA
        else planned
        for planned in plans
    ]
