"""From a request and the rules to what is to be counted. No clock, no store, no wire."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from ratelimit_service.algorithms import ALGORITHMS
from ratelimit_service.errors import BadRequestError
from ratelimit_service.limiter.compiled import CompiledRule, Kind, Plan
from ratelimit_service.limiter.compiler import Compiler
from ratelimit_service.limiter.fast_path import has_template
from ratelimit_service.limiter.turns import in_turn, refund_to
from ratelimit_service.model import (
    CountDenied,
    Denied,
    Descriptor,
    Entry,
    FailurePolicy,
    Hit,
    Limit,
    Mode,
    Request,
    new_tuple,
)
from ratelimit_service.rules.match import Match, match, match_any_value
from ratelimit_service.rules.tree import REPLACES, Domain, MatchedNode, Snapshot
from ratelimit_service.settings import Settings
from ratelimit_service.stores import Settled, Verdict
from ratelimit_service.stores.keys import KeyStem

__all__ = [
    "LEASE_BYTES",
    "MAX_LIMITS",
    "Plan",
    "PlanTemplate",
    "Planner",
    "settle_without_hits",
    "too_many_limits",
]

MAX_LIMITS: Final = 256
"""On which one request is counted: as many as it may have descriptors. They are charged all or none
and answered in one go, while all others wait; so many take two to four milliseconds."""

_MOST_LOOKED: Final = 1_000
"""So many rules are known to have been asked with 0 hits."""


def too_many_limits() -> BadRequestError:
    """For a request that would be counted on more than `MAX_LIMITS`."""
    return BadRequestError(
        "too_many_limits",
        f"the descriptors meet more than {MAX_LIMITS} limits together, and that is the most that "
        "one request is counted on: send fewer descriptors, or give their rules fewer limits",
    )


def settle_without_hits(plans: Sequence[Plan]) -> Settled:
    """The result of a request that has nothing to charge. Only a failure policy can deny it."""
    for rule, _, _, _ in plans:
        if rule.kind is Kind.UNSERVED and rule.policy is FailurePolicy.ERROR:
            return Settled([], Verdict.FAILED)
        if rule.kind is Kind.UNSERVED and rule.policy is FailurePolicy.CLOSED:
            return Settled([], Verdict.DENIED)
    return Settled([], Verdict.ADMITTED)


class PlanTemplate:
    """The plan of all descriptors that differ only in the value of their last entry."""

    __slots__ = ("_addend", "_names", "_rest", "node", "rule")

    def __init__(
        self,
        rule: CompiledRule,
        node: MatchedNode,
        addend: int,
        names: KeyStem,
        rest: tuple[object, ...],
    ) -> None:
        """`rest` are a hit's fields behind its key."""
        self.rule = rule
        self.node = node
        self._addend = addend
        self._names = names
        self._rest = rest

    def key(self, value: bytes) -> bytes:
        """The key of the only hit with this value. Raises UnicodeDecodeError as `plan`."""
        return self._names.key(value)

    def plan(self, value: bytes) -> Plan:
        """The plan with this value. Raises UnicodeDecodeError if it is no UTF-8."""
        # mypyc would build a list first for (key, *rest).
        fields = (self._names.key(value),) + self._rest  # noqa: RUF005
        return new_tuple(Plan, (self.rule, self._addend, (new_tuple(Hit, fields),), self.node))


class Planner:
    """Plans requests."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._counts_reported = settings.denied_counted is CountDenied.REPORTED
        """Whether hits of descriptors that bring their own number count whoever denies."""
        self._looked: set[tuple[str, str]] = set()
        """Domains and paths of rules that were asked with 0 hits."""
        self.compiler = Compiler(settings)
        self.needs_request = any(each.needs_request for each in self.compiler.additions)
        """Whether answers need the request as it was."""

    def plan(self, request: Request, snapshot: Snapshot) -> list[Plan]:
        """Plans every descriptor of a request, in order.

        Raises BadRequestError if they have more limits than `MAX_LIMITS`.
        """
        self.compiler.renew(snapshot)
        settings = self._settings
        domain = snapshot.domains.get(request.domain)
        if domain is None:
            nothing = self.compiler.no_rule
            if snapshot.never_loaded(request.domain):
                nothing = self.compiler.unserved()
            return [Plan(nothing)] * len(request.descriptors)
        minute = snapshot.minute
        matches = [
            descriptor.limit
            or _returned(domain, descriptor, minute)
            or match(domain, descriptor.entries, minute)
            for descriptor in request.descriptors
        ]
        replaced = self._replaced(domain, matches)
        plans: list[Plan] = []
        limits = 0
        for descriptor, rule_match in zip(request.descriptors, matches, strict=True):
            addend = descriptor.hits_addend
            if addend is None:
                addend = request.hits_addend or 1
            if not isinstance(rule_match, Match):
                brought, node = self.compiler.override(domain, rule_match)
                returned = b"" if descriptor.is_negative_hits else None
                planned = _counted(brought, node, descriptor.entries, (), addend, returned)
                plans.append(self._reported(planned, descriptor))
            elif rule_match.node is None or (replaced and _is_replaced(rule_match, replaced)):
                plans.append(self._without(domain, rule_match, addend))
            else:
                plans.append(self._matched(domain, descriptor, rule_match, addend))
            limits += len(plans[-1].hits)
            if limits > MAX_LIMITS:
                raise too_many_limits()
        if settings.quota_mode or any(planned.rule.mode is Mode.QUOTA for planned in plans):
            return _with_quotas(plans, settings)
        return plans

    def plan_alone(
        self, domain: Domain, entries: Sequence[Entry], addend: int, snapshot: Snapshot
    ) -> Plan | None:
        """Plans a descriptor that has nothing but entries, without its request.

        None if what stands beside it may matter; `addend` is the request's, 0 if it has none.
        """
        self.compiler.renew(snapshot)
        rule_match = match(domain, entries, snapshot.minute)
        if rule_match[0] is None:
            return None if self._settings.quota_mode else self.compiler.unmatched(domain)
        rule, node = self.compiler.matched(domain, rule_match)
        if not rule.independent:
            return None
        if not rule.limits:
            return Plan(rule, addend or 1, (), node)
        _, identity, shared, _, _ = rule_match
        return _counted(rule, node, identity, shared, addend or 1)

    def template(
        self, domain: Domain, entries: Sequence[Entry], addend: int, snapshot: Snapshot
    ) -> PlanTemplate | None:
        """As `plan_alone` for all values of the last entry; None if they are not all alike."""
        self.compiler.renew(snapshot)
        node = match_any_value(domain, entries, snapshot.minute)
        if node is None:
            return None
        rule = self.compiler.rule(domain, node)
        if not rule.independent or not has_template([each.limit for each in rule.limits]):
            return None
        (limit,) = rule.limits
        addend = addend or 1
        rest = (
            limit.spec,
            addend,
            rule.hit_mode,
            limit.count_denied,
            False,
            b"",
            False,
            rule.policy,
            None,
        )
        return PlanTemplate(rule, node, addend, limit.names.stem(entries), rest)

    def _replaced(self, domain: Domain, matches: Sequence[Match | Limit]) -> Collection[str]:
        """The names of rules that are replaced by others which the request meets."""
        replaced: set[str] = set()
        looked_at: set[MatchedNode] = set()
        for rule_match in matches:
            if not isinstance(rule_match, Match) or rule_match.node is None:
                continue
            if not rule_match.node.flags & REPLACES or rule_match.node in looked_at:
                continue  # as nearly always
            rule = rule_match.node.declared
            assert rule is not None  # noqa: S101 -- its node says that it replaces others
            # While none of its limits holds, a rule replaces no other.
            if rule.unlimited or self.compiler.matched(domain, rule_match)[0].limits:
                replaced |= rule.replaces
                looked_at.add(rule_match.node)
        return replaced

    def _without(self, domain: Domain, rule_match: Match, addend: int) -> Plan:
        """The plan of a descriptor whose rule is missing or replaced. Unlimited rules stay."""
        if rule_match.rule is not None and rule_match.rule.unlimited:
            rule, node = self.compiler.matched(domain, rule_match)
            return Plan(rule, addend, (), node)
        if rule_match.rule is None:
            return self.compiler.unmatched(domain)
        return Plan(self.compiler.no_rule)

    def _matched(
        self, domain: Domain, descriptor: Descriptor, rule_match: Match, addend: int
    ) -> Plan:
        compiled, node = self.compiler.matched(domain, rule_match)
        if not compiled.limits:
            return Plan(compiled, addend, (), node)
        _, identity, shared, _, _ = rule_match
        returned, paid = None, None
        if descriptor.is_negative_hits:
            returned = b""
            if len(identity) < len(descriptor.entries):
                named = descriptor.entries[-1]
                if named.key == PAID:
                    paid = named.value.rpartition(",")[2].strip()  # of several the last one counts
                else:
                    returned = _lease(named.value)
        planned = _counted(compiled, node, identity, shared, addend, returned)
        if compiled.in_turn and returned == b"":
            planned = planned._replace(hits=refund_to(paid, compiled.limits, planned.hits))
        return self._reported(planned, descriptor)

    def _reported(self, planned: Plan, descriptor: Descriptor) -> Plan:
        """The plan of hits that count whoever denies, if that is so of those that are reported."""
        if descriptor.hits_addend is None or planned.refund or planned.rule.in_turn:
            return planned
        declared = planned.declared
        path = (declared.domain, declared.path) if declared is not None else None
        if not descriptor.hits_addend:
            if path is not None and len(self._looked) < _MOST_LOOKED:
                self._looked.add(path)
            return planned
        if self._counts_reported:
            hits = [
                hit._replace(count_denied=hit.spec.algorithm.denied is not Denied.NOT_COUNTED)
                for hit in planned.hits
            ]
            planned = planned._replace(hits=tuple(hits))
        if path not in self._looked or all(_counts_if_denied(hit) for hit in planned.hits):
            return planned
        return planned._replace(rule=self.compiler.uncounted_if_denied(planned.rule))


def _counts_if_denied(hit: Hit) -> bool:
    """Whether a hit counts, though it is denied."""
    return hit.count_denied and hit.spec.algorithm.denied >= Denied.COUNTED


def _is_replaced(rule_match: Match, replaced: Collection[str]) -> bool:
    """Whether the rule that a descriptor meets has one of these names."""
    return rule_match.rule is not None and not rule_match.rule.names.isdisjoint(replaced)


def _returned(domain: Domain, descriptor: Descriptor, minute: int) -> Match | None:
    """The rule to which hits are given back, if the last entry says which: it is not matched.

    It names a lease, or of limits that pay in turn the one that paid.
    """
    entries = descriptor.entries
    if not descriptor.is_negative_hits or len(entries) < 2 or entries[-1].key not in _NAMING:
        return None
    rule_match = match(domain, entries[:-1], minute)
    rule = rule_match.rule
    if rule is None:
        return None
    if entries[-1].key == PAID:
        return rule_match if rule.in_turn else None
    leases = any(ALGORITHMS[limit.algorithm].leases for limit in rule.limits)
    return rule_match if leases else None


def _lease(text: str) -> bytes:
    """The lease's id. A header may have come with several of them: the last one counts."""
    try:
        lease = bytes.fromhex(text.rpartition(",")[2].strip())
    except ValueError:
        return _UNKNOWN_LEASE
    return lease if len(lease) == LEASE_BYTES else _UNKNOWN_LEASE


LEASE: Final = "lease"
"""The key of the entry that names a lease to be given back."""

PAID: Final = "paid"
"""The key of the entry that names the limit which has paid, and gets hits back."""

_NAMING: Final = (LEASE, PAID)

LEASE_BYTES: Final = 8
_UNKNOWN_LEASE: Final = b"\0" * LEASE_BYTES


def _counted(
    rule: CompiledRule,
    node: MatchedNode,
    identity: Sequence[tuple[str, str]],
    shared: Collection[int],
    addend: int,
    returned: bytes | None = None,
) -> Plan:
    """The plan of a descriptor that meets limits.

    `returned` is None unless it gives hits back; else it is the id of the lease, if there is one.
    """
    lease = returned or b""
    hits: tuple[Hit, ...] = ()
    joined = False
    for _, spec, count_denied, names, _, _, _ in rule.limits:
        given = addend
        if returned is not None:
            # A request that gives back a lease gives back no hits of the other limits.
            algorithm = spec.algorithm
            given = addend if algorithm.refunded and (not lease or algorithm.leases) else 0
        fields = (
            names.key(identity, shared),
            spec,
            given,
            rule.hit_mode,
            count_denied,
            returned is not None,
            lease,
            joined,
            rule.policy,
            None,
        )
        hits += (new_tuple(Hit, fields),)
        # Each limit of a quota counts by itself, even where the quota cannot deny.
        joined = rule.mode is rule.hit_mode or rule.mode is not Mode.QUOTA
    if rule.in_turn and returned is None:
        hits = in_turn(hits, rule.hit_mode, addend)
    return new_tuple(Plan, (rule, addend, hits, node))


def _with_quotas(plans: Sequence[Plan], settings: Settings) -> list[Plan]:
    """Makes the request's quotas shadows if one of them passes without being counted.

    Such a quota is one in shadow mode and, under the global quota mode, a descriptor that no rule
    limits (envoyproxy/ratelimit counts both as passed). Quotas deny only if all of them are over,
    so here none can. The limits of each still count by themselves.
    """
    passed = any(
        (settings.quota_mode and planned.rule.kind is Kind.NO_RULE)
        or (
            planned.rule.mode is Mode.SHADOW
            and planned.declared is not None
            and (settings.quota_mode or planned.declared.quota_mode)
            and not (planned.refund or planned.rule.in_turn)
        )
        for planned in plans
    )
    if not passed:
        return list(plans)
    return [
        planned._replace(
            hits=tuple(hit._replace(mode=Mode.SHADOW, joined=False) for hit in planned.hits)
        )
        if planned.rule.mode is Mode.QUOTA
        else planned
        for planned in plans
    ]
