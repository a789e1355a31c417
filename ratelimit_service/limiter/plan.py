"""From a request and the rules to what is to be counted. No clock, no store, no wire."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache, partial
from typing import Final, NamedTuple

from ratelimit_service.limiter.near import near_threshold
from ratelimit_service.model import (
    Descriptor,
    Entry,
    FailurePolicy,
    Hit,
    Limit,
    Measure,
    Mode,
    Request,
)
from ratelimit_service.observer import Tally
from ratelimit_service.rules.match import Match, match, match_any_value
from ratelimit_service.rules.tree import Domain, Rule, Snapshot
from ratelimit_service.settings import Settings
from ratelimit_service.stores.keys import CounterNames, KeyStem

__all__ = ["LEASE_BYTES", "Counted", "Kind", "Plan", "Planner", "Stem", "Terms"]


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


class Counted(NamedTuple):
    """What one limit of a rule means for every descriptor that meets it.

    `near_limit` is the count above which hits are near the limit, `near_left` what is then left
    of it, the soft part included.
    """

    limit: Limit
    measure: Measure
    count_denied: bool
    names: CounterNames
    soft: int
    near_limit: int
    near_left: int
    encoded: bytes
    """The limit as answers show it."""


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """What a rule, or having none, means for every descriptor that meets it.

    `mode` is what the rule says; a hit's mode is what it comes to in its request, where a
    passed quota or the global shadow mode can take its sting away.
    """

    kind: Kind
    rule: Rule | None = None
    limits: tuple[Counted, ...] = ()
    mode: Mode = Mode.ENFORCED
    policy: FailurePolicy = FailurePolicy.OPEN
    tally: Tally | None = None
    near_left: int = 0
    shown: bytes = b""
    """Of the only limit: what is left of it near to it, and how answers show it."""

    hit_mode: Mode = Mode.ENFORCED
    independent: bool = True
    """Whether they are the same in any other request, whatever stands beside the descriptor."""

    plain: bool = False
    """Whether an answer without anybody over says no more than what is left of a single limit.

    And the lease's id, where there is one.
    """

    leasing: bool = False
    """Whether hits take leases."""


class Plan(NamedTuple):
    """What one descriptor needs: its terms, the number of hits, and what is to be charged.

    One hit for each limit of its rule.
    """

    terms: Terms
    addend: int = 1
    hits: tuple[Hit, ...] = ()

    @property
    def refund(self) -> bool:
        """Whether the hits are given back."""
        return bool(self.hits) and self.hits[0].refund


class Stem:
    """What descriptors need that differ in the value of their last entry only."""

    __slots__ = ("_addend", "_names", "_rest", "_terms")

    def __init__(self, terms: Terms, addend: int, names: KeyStem, rest: tuple[object, ...]) -> None:
        """`rest` are a hit's fields behind its key."""
        self._terms = terms
        self._addend = addend
        self._names = names
        self._rest = rest

    def plan(self, value: bytes) -> Plan:
        """The plan of the one with this value. Raises UnicodeDecodeError if it is no UTF-8."""
        # A compiler would make a list of (key, *rest) first.
        fields = (self._names.key(value),) + self._rest  # noqa: RUF005
        return _plan((self._terms, self._addend, (_hit(fields),)))


_NO_RULE: Final = Terms(Kind.NO_RULE)


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
            if snapshot.never_loaded(request.domain):
                terms = Terms(Kind.UNSERVED, policy=settings.failure_policy)
            return [Plan(terms)] * len(request.descriptors)
        matches = [
            descriptor.limit or _returned(domain, descriptor) or match(domain, descriptor.entries)
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
                plans.append(_counted(terms, descriptor.entries, (), addend, refund))
            elif found.rule is None or (replaced and replaced & found.rule.names):
                plans.append(self._without(domain, found, addend))
            else:
                plans.append(self._matched(domain, descriptor, found, found.rule, addend))
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
        terms = self._of_rule(domain, rule, metric_value)
        if not terms.independent:
            return None
        if not terms.limits:
            return Plan(terms, addend or 1)
        return _counted(terms, identity, shared, addend or 1)

    def stem(
        self, domain: Domain, entries: Sequence[Entry], addend: int, snapshot: Snapshot
    ) -> Stem | None:
        """As `plan_alone` for all values of the last entry; None if they are not all alike."""
        self._renew(snapshot)
        rule = match_any_value(domain, entries)
        terms = self._of_rule(domain, rule, "") if rule else _NO_RULE
        if not terms.independent or len(terms.limits) != 1:
            return None
        (counted,) = terms.limits
        addend = addend or 1
        rest = (
            counted.measure,
            addend,
            terms.hit_mode,
            counted.count_denied,
            False,
            b"",
            False,
            terms.policy,
            None,
        )
        return Stem(terms, addend, counted.names.stem(entries), rest)

    def _renew(self, snapshot: Snapshot) -> None:
        if snapshot.number != self._snapshot:
            self._snapshot = snapshot.number
            self._old.append(self._terms)
            self._terms = {}

    def _without(self, domain: Domain, found: Match, addend: int) -> Plan:
        """Of a descriptor that meets no rule, or one that is replaced; unlimited ones are not."""
        if found.rule is not None and found.rule.unlimited:
            return Plan(self._of_rule(domain, found.rule, found.metric_value), addend)
        return Plan(_NO_RULE)

    def _matched(
        self, domain: Domain, descriptor: Descriptor, found: Match, rule: Rule, addend: int
    ) -> Plan:
        terms = self._of_rule(domain, rule, found.metric_value)
        if not terms.limits:
            return Plan(terms, addend)
        refund = descriptor.is_negative_hits
        lease = b""
        if refund and len(found.identity) < len(descriptor.entries):
            lease = _lease(descriptor.entries[-1].value)
        return _counted(terms, found.identity, found.shared, addend, refund, lease)

    def _of_rule(self, domain: Domain, rule: Rule, metric_value: str) -> Terms:
        # A rule has a bounded number of tallies, whatever its values.
        tally = rule.tallies.of(metric_value) if metric_value else None
        terms = self._terms.get(tally or rule)
        if terms is None:
            terms = self._terms[tally or rule] = self._new_terms(
                domain, rule, tally or rule.tallies.of()
            )
            self._let_go()
        return terms

    def _let_go(self) -> None:
        """Lets go of two old terms for each new one, so that they cannot pile up."""
        for _ in range(2):
            if self._old and not self._old[-1]:
                self._old.pop()
            if self._old and self._old[-1]:
                self._old[-1].popitem()

    def _new_terms(self, domain: Domain, rule: Rule, tally: Tally) -> Terms:
        settings = self._settings
        if rule.unlimited:
            return Terms(Kind.UNLIMITED, rule, tally=tally, independent=self._independent(rule))
        mode = Mode.ENFORCED
        if rule.shadow_mode:
            mode = Mode.SHADOW
        elif rule.quota_mode or settings.quota_mode:
            mode = Mode.QUOTA
        policy = rule.failure_policy or settings.failure_policy
        if rule.shadow_mode:
            policy = FailurePolicy.OPEN
        return self._limited(domain, rule.limits, tally, mode, policy, rule)

    def _override(self, domain: Domain, limit: Limit) -> Terms:
        """A limit that the caller brings: the tree is not asked, the counter is as a rule's."""
        settings = self._settings
        mode = Mode.QUOTA if settings.quota_mode else Mode.ENFORCED
        tally = domain.overrides.of()
        return self._limited(domain, (limit,), tally, mode, settings.failure_policy, None)

    def _limited(
        self,
        domain: Domain,
        limits: Iterable[Limit],
        tally: Tally,
        mode: Mode,
        policy: FailurePolicy,
        rule: Rule | None,
    ) -> Terms:
        settings = self._settings
        always = settings.quota_mode or settings.count_denied or (rule and rule.quota_mode)
        counted = tuple(self._counted(domain, limit, always=bool(always)) for limit in limits)
        return Terms(
            Kind.COUNTED,
            rule,
            counted,
            mode,
            policy,
            tally,
            counted[0].near_left,
            counted[0].encoded,
            Mode.SHADOW if settings.shadow_mode else mode,
            self._independent(rule),
            len(counted) == 1 and _plain(counted[0].limit),
            any(each.limit.algorithm == "concurrency" for each in counted),
        )

    def _counted(self, domain: Domain, limit: Limit, *, always: bool) -> Counted:
        measure = _measure(limit)
        near_limit = near_threshold(limit.capacity, self._settings.near_limit_ratio)
        # A lease that no answer hands out would only be in the way.
        count_denied = (always or limit.count_denied) and limit.algorithm != "concurrency"
        names = CounterNames(domain.name, measure, domain.shard_by)
        near_left = measure.limit - near_limit
        encoded = self._encode(limit)
        return Counted(
            limit, measure, count_denied, names, limit.soft, near_limit, near_left, encoded
        )

    def _independent(self, rule: Rule | None) -> bool:
        """Rules that replace others and quotas act on what they stand beside."""
        if self._settings.quota_mode:
            return False
        return rule is None or not (rule.replaces or rule.quota_mode)


@lru_cache(maxsize=4096)
def _measure(limit: Limit) -> Measure:
    """One for all counters of equal limits: callers bring limits of their own."""
    return limit.measure


def _plain(limit: Limit) -> bool:
    return not (limit.soft or limit.max_wait_us)


def _returned(domain: Domain, descriptor: Descriptor) -> Match | None:
    """The rule whose lease a descriptor gives back: its last entry names it, and is not matched."""
    entries = descriptor.entries
    if not descriptor.is_negative_hits or len(entries) < 2 or entries[-1].key != LEASE:
        return None
    found = match(domain, entries[:-1])
    if found.rule is None or all(limit.algorithm != "concurrency" for limit in found.rule.limits):
        return None
    return found


def _lease(text: str) -> bytes:
    """An id as the last one in a header's value, which callers may have put others into."""
    try:
        lease = bytes.fromhex(text.rpartition(",")[2].strip())
    except ValueError:
        return _UNKNOWN_LEASE
    return lease if len(lease) == LEASE_BYTES else _UNKNOWN_LEASE


LEASE: Final = "lease"
"""The key of the entry that names a lease to be given back."""

LEASE_BYTES: Final = 8
_UNKNOWN_LEASE: Final = b"\0" * LEASE_BYTES


def _counted(
    terms: Terms,
    identity: Sequence[tuple[str, str]],
    shared: Collection[int],
    addend: int,
    refund: bool = False,
    lease: bytes = b"",
) -> Plan:
    if len(terms.limits) == 1:
        _, measure, count_denied, names, _, _, _, _ = terms.limits[0]
        key = names.key(identity, shared)
        hit = (
            key,
            measure,
            addend,
            terms.hit_mode,
            count_denied,
            refund,
            lease,
            False,
            terms.policy,
            None,
        )
        return _plan((terms, addend, (_hit(hit),)))
    hits = []
    # A quota's limits count each by itself, also where it cannot deny.
    together = terms.mode is terms.hit_mode or terms.mode is not Mode.QUOTA
    for place, counted in enumerate(terms.limits):
        # Who gives back a lease gives back no hits of the other limits.
        given = addend if not lease or counted.measure.algorithm == "concurrency" else 0
        hits.append(
            Hit(
                counted.names.key(identity, shared),
                counted.measure,
                given,
                terms.hit_mode,
                counted.count_denied,
                refund,
                lease,
                joined=together and place > 0,
                policy=terms.policy,
            )
        )
    return Plan(terms, addend, tuple(hits))


_hit: Final = partial(tuple.__new__, Hit)
_plan: Final = partial(tuple.__new__, Plan)
"""From a tuple of the fields, at half the price of a call with as many arguments."""


def _with_quotas(plans: Sequence[Plan], settings: Settings) -> list[Plan]:
    """Takes the sting from the request's quotas where one is known to pass without counting.

    That is a quota in shadow mode and, under the global quota mode, a descriptor that no rule
    limits (envoyproxy/ratelimit counts both as passed). Their limits count each by itself still.
    """
    passed = any(
        (settings.quota_mode and planned.terms.kind is Kind.NO_RULE)
        or (
            planned.terms.mode is Mode.SHADOW
            and planned.terms.rule is not None
            and (settings.quota_mode or planned.terms.rule.quota_mode)
            and not planned.refund
        )
        for planned in plans
    )
    if not passed:
        return list(plans)
    return [
        planned._replace(
            hits=tuple(hit._replace(mode=Mode.SHADOW, joined=False) for hit in planned.hits)
        )
        if planned.terms.mode is Mode.QUOTA
        else planned
        for planned in plans
    ]
