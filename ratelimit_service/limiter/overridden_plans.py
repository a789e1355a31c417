"""What overrides make of the plans of a request. Pure: no clock, no store.

A plan that overrides have touched has a compiled rule of its own, which is never usual, so it
takes the slow paths. Grants have counters of their own beside the limits', and their hits stand
before those of the limits; how they are charged is `algorithms.settle`'s. What must not live here:
which overrides a descriptor meets.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from ratelimit_service.algorithms import ALGORITHMS, capacity_of, soft_of
from ratelimit_service.limiter.additions.registry import BAN_ADDITIONS
from ratelimit_service.limiter.compiled import CompiledLimit, CompiledRule, Kind, Plan
from ratelimit_service.limiter.compiler import shared_spec
from ratelimit_service.limiter.near import near_threshold
from ratelimit_service.limiter.overrides import Ruling, ruling_of
from ratelimit_service.limiter.plan import settle_without_hits
from ratelimit_service.limiter.turns import in_turn
from ratelimit_service.model import (
    NEVER_US,
    SECOND_US,
    WHOLE_PPM,
    Anchor,
    Calendar,
    CounterSpec,
    Hit,
    Limit,
    Mode,
    Override,
    Unit,
)
from ratelimit_service.settings import Settings
from ratelimit_service.stores import Settled, Verdict
from ratelimit_service.stores.keys import grant_key

__all__ = ["OverriddenPlans", "apply_overrides", "grant_end"]

_BANNED: Final = Settled([], Verdict.DENIED)


class OverriddenPlans(NamedTuple):
    """The plans of a request whose descriptors meet overrides.

    `hits` are those of all plans, each behind those on the grants of its limit; if there are any
    the request is `granted`. A `banned` request is denied whatever its hits come to, which are
    refunds. All this holds before `until_us`. `settled` is what the request comes to if it has no
    hits. `bans_end_us` is when the last of its bans ends, None if one has no end, or there is none.
    """

    plans: list[Plan]
    hits: Sequence[Hit]
    granted: bool
    banned: bool
    until_us: int
    settled: Settled
    bans_end_us: int | None


class _Grant(NamedTuple):
    """A grant of one limit, and how its counter counts."""

    id: str
    spec: CounterSpec

    def hit(self, hit: Hit) -> Hit:
        """What is charged on it in the stead of a limit's hit: on a counter beside the limit's."""
        key = grant_key(hit.key, self.id)
        return Hit(key, self.spec, hit.addend, Mode.GRANT, joined=hit.joined, policy=hit.policy)


class _OverriddenPlan(NamedTuple):
    """One plan, with the grants of each of its hits."""

    plan: Plan
    grants: Sequence[Sequence[_Grant]]
    until_us: int


def apply_overrides(
    plans: Sequence[Plan], meetings: Sequence[Sequence[Override]], now_us: int, settings: Settings
) -> OverriddenPlans:
    """Applies to each plan the overrides that its descriptor meets now, in their order."""
    known_changes: dict[tuple[int, ...], _OverriddenPlan] = {}
    overridden: list[_OverriddenPlan] = []
    for planned, meeting in zip(plans, meetings, strict=True):
        if not meeting:
            overridden.append(_untouched(planned))
            continue
        key = (id(planned.rule), *map(id, meeting))
        known = None if planned.refund else known_changes.get(key)
        one = (
            _overridden(planned, meeting, now_us, settings)
            if known is None
            else _as_before(planned, known)
        )
        whole = len(one.plan.hits) == len(planned.hits) > 0 and not planned.rule.in_turn
        if known is None and whole and not planned.refund:
            known_changes[key] = one  # in a request of hundreds of descriptors many are alike
        overridden.append(one)
    banned = not settings.shadow_mode and any(
        one.plan.rule.kind is Kind.BANNED for one in overridden
    )
    if banned:
        overridden = [_beside_ban(one) for one in overridden]
    elif any(_passes_quota(one) for one in overridden):
        overridden = [_without_quota(one) for one in overridden]
    applied = [one.plan for one in overridden]
    hits = [
        each
        for planned, all_grants, _ in overridden
        for hit, grants in zip(planned.hits, all_grants, strict=True)
        for each in (*[grant.hit(hit) for grant in grants], hit)
    ]
    return OverriddenPlans(
        applied,
        hits,
        any(any(one.grants) for one in overridden),
        banned,
        min([one.until_us for one in overridden], default=NEVER_US),
        _BANNED if banned else settle_without_hits(applied),
        _bans_end(applied) if banned else None,
    )


def _bans_end(plans: Sequence[Plan]) -> int | None:
    """When the last of these bans ends; None if one of them does not."""
    ends = [
        override.until_us
        for planned in plans
        if planned.rule.kind is Kind.BANNED
        for override in planned.rule.overrides
    ]
    known = [end for end in ends if end is not None]
    return max(known) if len(known) == len(ends) else None


def _untouched(planned: Plan) -> _OverriddenPlan:
    return _OverriddenPlan(planned, [()] * len(planned.hits), NEVER_US)


def _as_before(planned: Plan, known: _OverriddenPlan) -> _OverriddenPlan:
    """What the same overrides make of another descriptor of the same rule: other numbers."""
    rule = known.plan.rule
    hits = [
        hit._replace(spec=changed.spec)
        for hit, changed in zip(planned.hits, known.plan.hits, strict=True)
    ]
    plan = Plan(rule, planned.addend, tuple(hits), planned.node)
    return _OverriddenPlan(plan, known.grants, known.until_us)


def _overridden(
    planned: Plan, meeting: Sequence[Override], now_us: int, settings: Settings
) -> _OverriddenPlan:
    rule = planned.rule
    until_us = min(
        [override.until_us for override in meeting if override.until_us is not None] or [NEVER_US]
    )
    whole = ruling_of(meeting)
    rulings = [ruling_of(meeting, limit.limit.name) for limit in rule.limits] or [whole]
    ban = next((ruling for ruling in rulings if ruling.ban is not None), None)
    if ban is not None and not planned.refund:
        banned = _rule(rule, Kind.BANNED, (), ban.applied)
        return _OverriddenPlan(Plan(banned, planned.addend, (), planned.node), (), until_us)
    limits: list[CompiledLimit] = []
    hits: list[Hit] = []
    grants: list[Sequence[_Grant]] = []
    applied: list[Override] = []
    spent: list[Override] = []
    for compiled, hit, unfiltered in zip(rule.limits, planned.hits, rulings, strict=False):
        given = [
            (override, end_us)
            for override in unfiltered.grants
            if override not in spent and now_us < (end_us := grant_end(compiled.limit, override))
        ]
        ruling = unfiltered._replace(grants=tuple([override for override, _ in given]))
        applied += [override for override in ruling.applied if override not in applied]
        if ruling.exempt is not None:
            if planned.refund:  # what was never counted is not given back, but leases are
                limits.append(compiled)
                hits.append(hit if hit.spec.algorithm.leases else hit._replace(addend=0))
                grants.append(())
            continue
        if rule.in_turn:  # one grant is not given once for each of these limits
            spent += ruling.grants
        until_us = min([until_us, *[end_us for _, end_us in given]])
        leased = compiled.spec.algorithm.leases
        more = sum([override.number for override, _ in given]) if leased else 0
        changed = _changed(compiled, ruling, more, settings)
        limits.append(changed)
        own = hit._replace(spec=changed.spec, joined=hit.joined and bool(hits))
        hits.append(own)
        grants.append(
            ()
            if leased or planned.refund
            else [_grant(compiled, override, end_us) for override, end_us in given]
        )
    if rule.in_turn and not planned.refund:
        limits, hits = _with_grants(limits, hits, grants)
        hits = [*in_turn(hits, rule.hit_mode, planned.addend)]
        grants = [()] * len(hits)
    if not rule.limits and whole.exempt is not None:
        applied.append(whole.exempt)
    kind = rule.kind
    if not limits and (kind is Kind.COUNTED or (kind is Kind.UNSERVED and whole.exempt)):
        kind = Kind.UNLIMITED
    changed_rule = _rule(rule, kind, tuple(limits), tuple(applied))
    return _OverriddenPlan(
        Plan(changed_rule, planned.addend, tuple(hits), planned.node), grants, until_us
    )


def _with_grants(
    limits: Sequence[CompiledLimit], hits: Sequence[Hit], grants: Sequence[Sequence[_Grant]]
) -> tuple[list[CompiledLimit], list[Hit]]:
    """Limits that pay in turn, and their hits. A grant is asked before the limit that it is of."""
    all_limits: list[CompiledLimit] = []
    all_hits: list[Hit] = []
    for compiled, hit, granted in zip(limits, hits, grants, strict=True):
        for each in granted:
            all_hits.append(each.hit(hit))
            spec = each.spec
            all_limits.append(
                compiled._replace(spec=spec, soft=0, near_limit=spec.limit, near_remaining=0)
            )
        all_limits.append(compiled)
        all_hits.append(hit)
    return all_limits, all_hits


def _rule(
    rule: CompiledRule, kind: Kind, limits: tuple[CompiledLimit, ...], applied: tuple[Override, ...]
) -> CompiledRule:
    """The rule as overrides leave it; it takes the slow paths."""
    return CompiledRule(
        kind,
        limits,
        rule.mode,
        rule.hit_mode,
        rule.policy,
        limits[0].near_remaining if limits else 0,
        rule.independent,
        False,
        rule.additions | BAN_ADDITIONS if kind is Kind.BANNED else rule.additions,
        any(each.spec.algorithm.leases for each in limits),
        rule.groups,
        rule.stray,
        applied,
        in_turn=rule.in_turn and bool(limits),
    )


def _changed(
    compiled: CompiledLimit, ruling: Ruling, more: int, settings: Settings
) -> CompiledLimit:
    """The limit with another number, on the same counter; as it is if no override has one.

    What an override takes is charged hit by hit, whatever is leased.
    """
    old = compiled.limit
    if ruling.limit is None and not more:
        if not (ruling.grants and compiled.spec.advances):
            return compiled
        # The store decides whether a grant is needed.
        return compiled._replace(spec=_plain(compiled.spec))
    algorithm = ALGORITHMS[old.algorithm]
    number, reserved = old.requests_per_unit, old.reserved
    if ruling.limit is not None:
        # As in the rule, the same part of it is left to the others of a pool.
        whole = number if algorithm.refills else number + reserved
        number = ruling.limit.number
        reserved = -(-reserved * number // max(1, whole))
        if not algorithm.refills:  # of a bucket it is a part of the burst
            number -= reserved
    most = algorithm.most * WHOLE_PPM // (WHOLE_PPM + old.soft_ppm)
    number = min(number + more, most)
    burst = old.burst
    if burst is not None:  # a bucket grows and shrinks with its rate
        burst = min(most, -(-burst * number // max(1, old.requests_per_unit)))
    limit = old._replace(requests_per_unit=number, burst=burst, advances=False)
    if old.pool:  # its counter holds what all of its limits have counted
        others = capacity_of(old) + old.reserved - capacity_of(limit)
        limit = limit._replace(reserved=max(reserved, others))
    spec = shared_spec(limit)
    near_limit = near_threshold(capacity_of(limit), settings.near_limit_ratio)
    return compiled._replace(
        limit=limit,
        spec=spec,
        soft=soft_of(limit),
        near_limit=near_limit,
        near_remaining=spec.limit - near_limit,
    )


@lru_cache(4096)
def _plain(spec: CounterSpec) -> CounterSpec:
    """The same, of which nothing is given ahead."""
    form = spec.form._replace(advances=False)
    return CounterSpec(spec.algorithm, spec.limit, spec.window_us, spec.rate, spec.reserved, form)


def grant_end(limit: Limit, grant: Override) -> int:
    """When a grant's hits are gone for this limit: with the window in which it was made.

    Where windows have no common beginning that is a window's length after it was made.
    """
    made_us = grant.made_us
    if isinstance(limit.anchor, Calendar):
        _, _, end_us, _ = limit.anchor.periods(made_us).at(made_us)
    elif limit.anchor is Anchor.CLOCK and ALGORITHMS[limit.algorithm].adds:
        end_us = (made_us // limit.window_us + 1) * limit.window_us
    else:
        end_us = made_us + limit.window_us
    return end_us if grant.until_us is None else min(end_us, grant.until_us)


def _grant(compiled: CompiledLimit, grant: Override, end_us: int) -> _Grant:
    """A grant of a limit.

    Its window is as long as the grant, and begins with the first hit: so it outlasts the grant.
    """
    seconds = -(-(end_us - grant.made_us) // SECOND_US)
    if compiled.spec.window_us != SECOND_US:  # those of a second may have a store of their own
        seconds = max(2, seconds)
    return _Grant(grant.id, _grant_spec(grant.number, seconds))


@lru_cache(maxsize=4096)
def _grant_spec(number: int, seconds: int) -> CounterSpec:
    return shared_spec(Limit(number, Unit.SECOND, seconds, anchor=Anchor.FIRST_HIT))


def _beside_ban(overridden: _OverriddenPlan) -> _OverriddenPlan:
    """A descriptor of a banned request: nothing of it is counted, but refunds are given back."""
    planned, _, until_us = overridden
    if planned.rule.kind is Kind.BANNED or planned.refund:
        return overridden
    rule = _rule(planned.rule, Kind.NO_RULE, (), planned.rule.overrides)
    return _OverriddenPlan(Plan(rule, planned.addend, (), planned.node), (), until_us)


def _passes_quota(overridden: _OverriddenPlan) -> bool:
    """Whether a quota passes without being counted by its own limits."""
    planned, _, _ = overridden
    return (
        planned.rule.mode is Mode.QUOTA
        and planned.rule.kind is Kind.UNLIMITED
        and not planned.refund
    )


def _without_quota(overridden: _OverriddenPlan) -> _OverriddenPlan:
    """With one quota that passes, the others of a request cannot deny."""
    planned = overridden.plan
    if planned.rule.mode is not Mode.QUOTA:
        return overridden
    hits = tuple(hit._replace(mode=Mode.SHADOW, joined=False) for hit in planned.hits)
    return overridden._replace(plan=planned._replace(hits=hits))
