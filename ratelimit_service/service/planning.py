"""From the bytes of a request to its plan, most of which is remembered from requests before.

What must not live here: what a descriptor needs (`limiter`), and how bytes are read (`wire`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from ratelimit_service import limiter, wire
from ratelimit_service.errors import BadRequestError
from ratelimit_service.limiter import OverriddenPlans, Plan, PlanTemplate
from ratelimit_service.model import Hit, Request
from ratelimit_service.model.refusal import Answer, Refusal
from ratelimit_service.observability.stats import Stats
from ratelimit_service.rules.matchers.effort import EffortSpentError
from ratelimit_service.rules.tree import Domain, Snapshot
from ratelimit_service.service.faults import Faults
from ratelimit_service.service.memo import Memo
from ratelimit_service.service.planned import PlannedRequest
from ratelimit_service.service.rare_log import RareLog
from ratelimit_service.settings import Settings
from ratelimit_service.stores import Settled, Verdict

__all__ = ["LATER", "Planning"]

_REQUESTS: Final = 1 << 14
_PARTS: Final = 1 << 16
_ODD_PARTS: Final = 1 << 14
_TEMPLATES: Final = 1 << 12
"""How many requests are remembered, how many of their parts, and how many beginnings that parts
share up to their last value. Together they take 50 MB at most."""

LATER: Final = b""
"""Stands for a request that is not planned yet. No answer is empty."""

_CHARGED: Final = Settled([], Verdict.DROPPED)
"""For a request with hits: only the store can say what becomes of it."""


class Planning:
    """Plans serialized requests. A request that cannot be planned is answered here."""

    def __init__(self, settings: Settings, stats: Stats, faults: Faults, rare_log: RareLog) -> None:
        self._settings = settings
        self._stats = stats
        self._faults = faults
        self._rare_log = rare_log
        self._planner = limiter.Planner(settings)
        self.compiler = self._planner.compiler
        self.requests = Memo[PlannedRequest](_REQUESTS)
        """Whole requests: who plans looks here first."""
        self._parts = Memo[Plan](_PARTS)
        """Of plain descriptors."""
        self._odd_parts = Memo[Plan](_ODD_PARTS)
        """Of others, such as long ones."""
        self._met_odd = False
        """Whether an odd part was planned since this was last looked at."""
        self.untouched: Callable[[wire.Split], int] | None = None
        """What `PlannedRequest.untouched` is of a request of plain descriptors, if there are any
        overrides."""
        self._templates = Memo[PlanTemplate](_TEMPLATES)
        self.leases = False
        """Whether any request has taken leases yet."""

    def ask(self, body: bytes, snapshot: Snapshot) -> PlannedRequest | Answer:
        """Plans a request that is not remembered as a whole; its parts may be.

        It is LATER if the effort of this turn is spent before.
        """
        try:
            split = wire.split_request(body)
            if split is not None:
                plans, remembered = self._plan_parts(split, snapshot)
                if plans:
                    planned = self._request_of(plans, None)
                    if self.untouched is not None:
                        planned.untouched = 0 if self._met_odd else self.untouched(split)
                        self._met_odd = False
                    if remembered:
                        self.requests.put(body, snapshot.number, planned)
                    return planned
            request = wire.decode_request(body)
            return self._plan_whole(request, split, snapshot)
        except BadRequestError as error:
            self._stats.refusals[error.reason] += 1
            return Refusal(error.code, str(error))
        except EffortSpentError:
            return LATER
        except Exception as error:
            return self._faults.request(error)

    def plans(self, request: Request, snapshot: Snapshot) -> Sequence[Plan]:
        """The plan of each descriptor, by the rules alone."""
        return self._planner.plan(request, snapshot)

    def planned(self, overridden: OverriddenPlans, request: Request) -> PlannedRequest:
        """What is asked of the store for a request whose plans overrides have changed."""
        plans = overridden.plans
        says, leasing = 0, False
        for plan in plans:
            says |= plan.rule.additions
            leasing = leasing or (plan.rule.leasing and not plan.refund)
        self.leases = self.leases or leasing
        told = request if self._planner.needs_request else None
        return PlannedRequest(plans, overridden.hits, None, says, told, leasing, overridden.settled)

    def _plan_whole(
        self, request: Request, split: wire.Split | None, snapshot: Snapshot
    ) -> PlannedRequest:
        """Plans what cannot be planned part by part; the parts may be remembered all the same.

        Every request with a refund is one.
        """
        if self._settings.no_refunds and any(each.is_negative_hits for each in request.descriptors):
            raise BadRequestError(
                "refund", "refunds (is_negative_hits) are not taken: this service has --no-refunds"
            )
        plans = self._planner.plan(request, snapshot)
        planned = self._request_of(plans, request if self._planner.needs_request else None)
        if request.domain not in snapshot.domains:
            if not snapshot.never_loaded(request.domain):
                self._stats.unknown_domains += len(request.descriptors)
                self._rare_log.unknown_domain(request.domain)
        elif split and not planned.request and all(each.rule.independent for each in plans):
            for part, plan in zip(split.parts, plans, strict=True):
                plain = wire.plain_entries(part, split.descriptor_at) is not None
                parts = self._parts if plain else self._odd_parts
                parts.put(part, snapshot.number, plan)
        return planned

    def _plan_parts(self, split: wire.Split, snapshot: Snapshot) -> tuple[list[Plan], bool]:
        """Plans each descriptor by itself. Returns no plans if one needs the whole request.

        Also tells whether all of them were remembered. Raises BadRequestError if they have too many
        limits.
        """
        plans, limits, remembered = [], 0, True
        for part in split.parts:
            plan = self._parts.get(part, snapshot.number)
            if plan is None:
                plan = self._plan_part(part, split, snapshot)
                if plan is not None:
                    remembered = False
                    self._parts.put(part, snapshot.number, plan)
                else:
                    plan = self._odd_parts.get(part, snapshot.number)
                    if plan is None:
                        return [], False
                    self._met_odd = True
            plans.append(plan)
            limits += len(plan.hits)
            if limits > limiter.MAX_LIMITS:
                raise limiter.too_many_limits()
        return plans, remembered

    def _plan_part(self, part: bytes, split: wire.Split, snapshot: Snapshot) -> Plan | None:
        """Plans a plain descriptor that is not remembered; all but its last value may be."""
        if part[split.descriptor_at + 1] & 0x80:
            return None  # it is long
        value_at = wire.last_value_at(part, split.descriptor_at)
        template = self._templates.get(part[:value_at], snapshot.number)
        if template is not None:
            try:
                return template.plan(part[value_at:])
            except UnicodeDecodeError:
                return None
        domain = self._domain(split, snapshot)
        entries = wire.plain_entries(part, split.descriptor_at)
        if domain is None or entries is None:
            return None
        if 0 < value_at < len(part):
            template = self._planner.template(domain, entries, split.addend, snapshot)
            if template is not None:
                self._templates.put(part[:value_at], snapshot.number, template)
        return self._planner.plan_alone(domain, entries, split.addend, snapshot)

    def _domain(self, split: wire.Split, snapshot: Snapshot) -> Domain | None:
        if self._planner.needs_request:
            return None
        try:
            return snapshot.domains.get(split.domain)
        except UnicodeDecodeError:
            return None

    def _request_of(self, plans: list[Plan], request: Request | None) -> PlannedRequest:
        hits: list[Hit] = []
        limits: list[wire.EncodedLimit] = []
        says, leasing = 0, False
        for plan in plans:
            rule, _, charged, _ = plan
            hits += charged
            says |= rule.additions
            if rule.fast_path and not charged[0].refund:
                limits.append(wire.encode_limit(rule.limits[0].limit))
            if rule.leasing and not charged[0].refund:
                leasing = self.leases = True
        settled = _CHARGED if hits else limiter.settle_without_hits(plans)
        usual = limits if len(limits) == len(plans) else None
        return PlannedRequest(plans, hits, usual, says, request, leasing, settled)
