"""From a request and the rules to what is to be counted. Pure: no clock, no store, no wire."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import NamedTuple

from ratelimit_service.model import Descriptor, FailurePolicy, Hit, Limit, Mode, Request
from ratelimit_service.observer import Tally
from ratelimit_service.rules.match import Match, match
from ratelimit_service.rules.tree import Domain, Rule, Snapshot
from ratelimit_service.settings import Settings
from ratelimit_service.stores.keys import counter_key

__all__ = ["Kind", "Plan", "independent", "plan"]


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


class Plan(NamedTuple):
    """What one descriptor needs.

    `mode` is what the rule says; `hit.mode` is what it comes to in this request, where a
    passed quota or the global shadow mode can take its sting away.
    """

    kind: Kind
    rule: Rule | None = None
    limit: Limit | None = None
    addend: int = 1
    mode: Mode = Mode.ENFORCED
    policy: FailurePolicy = FailurePolicy.OPEN
    tally: Tally | None = None
    hit: Hit | None = None

    def with_addend(self, addend: int) -> Plan:
        """The same for another number of hits."""
        hit = self.hit._replace(addend=addend) if self.hit else None
        return self._replace(addend=addend, hit=hit)


def independent(plans: Sequence[Plan]) -> bool:
    """Whether each plan would be the same in any other request.

    Rules that replace others and quotas act on what they stand beside.
    """
    return not any(
        planned.mode is Mode.QUOTA
        or (planned.rule and (planned.rule.replaces or planned.rule.quota_mode))
        for planned in plans
    )


def plan(request: Request, snapshot: Snapshot, settings: Settings) -> list[Plan]:
    """Plans every descriptor of a request, in order."""
    domain = snapshot.domains.get(request.domain)
    if domain is None:
        if request.domain in snapshot.unserved:
            unserved = Plan(Kind.UNSERVED, policy=settings.failure_policy)
            return [unserved] * len(request.descriptors)
        return [Plan(Kind.NO_RULE)] * len(request.descriptors)
    matches = [
        descriptor.limit or match(domain, descriptor.entries) for descriptor in request.descriptors
    ]
    replaced = {
        name
        for found in matches
        if isinstance(found, Match) and found.rule
        for name in found.rule.replaces
    }
    plans = []
    for descriptor, found in zip(request.descriptors, matches, strict=True):
        addend = descriptor.hits_addend
        if addend is None:
            addend = request.hits_addend or 1
        if isinstance(found, Match):
            plans.append(_matched(domain, descriptor, found, addend, replaced, settings))
        else:
            plans.append(_override(domain, descriptor, found, addend, settings))
    if settings.quota_mode or any(planned.mode is Mode.QUOTA for planned in plans):
        return _with_quotas(plans, settings)
    return plans


def _matched(
    domain: Domain,
    descriptor: Descriptor,
    found: Match,
    addend: int,
    replaced: set[str],
    settings: Settings,
) -> Plan:
    rule = found.rule
    if rule is None:
        return Plan(Kind.NO_RULE)
    if rule.limit is None:
        tally = rule.tallies.of(found.metric_value)
        return Plan(Kind.UNLIMITED, rule, addend=addend, tally=tally)
    if rule.name in replaced:
        return Plan(Kind.NO_RULE)
    mode = Mode.ENFORCED
    if rule.shadow_mode:
        mode = Mode.SHADOW
    elif rule.quota_mode or settings.quota_mode:
        mode = Mode.QUOTA
    return Plan(
        Kind.COUNTED,
        rule,
        rule.limit,
        addend,
        mode,
        FailurePolicy.OPEN if rule.shadow_mode else rule.failure_policy or settings.failure_policy,
        rule.tallies.of(found.metric_value),
        Hit(
            counter_key(domain.name, found.identity, rule.algorithm, rule.limit.window_us),
            rule.limit.requests_per_unit,
            rule.limit.window_us,
            addend,
            rule.algorithm,
            Mode.SHADOW if settings.shadow_mode else mode,
            rule.count_denied or rule.quota_mode or settings.quota_mode or settings.count_denied,
            descriptor.is_negative_hits,
        ),
    )


def _override(
    domain: Domain, descriptor: Descriptor, limit: Limit, addend: int, settings: Settings
) -> Plan:
    """A limit that the caller brings: the tree is not asked, the counter is as a rule's."""
    mode = Mode.QUOTA if settings.quota_mode else Mode.ENFORCED
    identity = [(key, value, False) for key, value in descriptor.entries]
    return Plan(
        Kind.COUNTED,
        None,
        limit,
        addend,
        mode,
        settings.failure_policy,
        domain.overrides.of(),
        Hit(
            counter_key(domain.name, identity, "fixed_window", limit.window_us),
            limit.requests_per_unit,
            limit.window_us,
            addend,
            "fixed_window",
            Mode.SHADOW if settings.shadow_mode else mode,
            settings.quota_mode or settings.count_denied,
            descriptor.is_negative_hits,
        ),
    )


def _with_quotas(plans: Sequence[Plan], settings: Settings) -> list[Plan]:
    """Takes the sting from the request's quotas where one is known to pass without counting.

    That is a quota in shadow mode and, under the global quota mode, a descriptor that no rule
    limits (envoyproxy/ratelimit counts both as passed).
    """
    passed = any(
        (settings.quota_mode and planned.kind is Kind.NO_RULE)
        or (
            planned.mode is Mode.SHADOW
            and planned.rule is not None
            and (settings.quota_mode or planned.rule.quota_mode)
        )
        for planned in plans
    )
    if not passed:
        return list(plans)
    return [
        planned._replace(hit=planned.hit._replace(mode=Mode.SHADOW))
        if planned.hit and planned.mode is Mode.QUOTA
        else planned
        for planned in plans
    ]
