"""Asks recorded requests of rules, one after the other, and notes what comes of each.

The limiter and the memory store are those that serve; only the clock is the log's. What must not
live here: what is kept of a rule (`use`), and how two sets of rules are compared (`play`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import Final

from ratelimit_service.limiter import CompiledRule, PlanTemplate, settle_without_hits
from ratelimit_service.limiter.compiled import Kind
from ratelimit_service.limiter.turns import is_soft_part
from ratelimit_service.model import (
    MINUTE_US,
    CountDenied,
    Descriptor,
    Entry,
    Hit,
    Request,
)
from ratelimit_service.rule_lab.replay.matched import Matched, PreparedRequest, alone_of
from ratelimit_service.rule_lab.replay.recorded import RecordedRequest
from ratelimit_service.rule_lab.replay.timeline import Timeline
from ratelimit_service.rule_lab.replay.use import SAMPLE, TOP_NAMES, Caller, RuleUse
from ratelimit_service.rule_lab.simulation.simulator import Simulator
from ratelimit_service.rules.match import match
from ratelimit_service.rules.texts import limit_text
from ratelimit_service.rules.tree import Rule, Snapshot
from ratelimit_service.settings import Settings
from ratelimit_service.stores import Settled, Verdict

__all__ = ["MAX_COUNTERS", "Trace"]

MAX_COUNTERS: Final = 1_000_000
"""So many counters are held at a time, as `serve` holds by default."""

_MOST_PREPARED: Final = 1 << 16
_MOST_BYTES: Final = 1 << 25
"""Of all requests that are remembered with their plans."""

_MOST_TEMPLATES: Final = 1 << 12
_MOST_TEMPLATE_BYTES: Final = 4_096
"""Of a request that may be of a kind."""

_MOST_DOMAINS: Final = 1_000
_WITHIN: Final = Verdict.WITHIN


class _TemplateUse:
    """All requests that differ only in the value of their only descriptor's last entry."""

    __slots__ = ("planned", "template", "use")

    def __init__(self, template: PlanTemplate, use: RuleUse) -> None:
        self.template = template
        self.planned = template.plan(b"")
        """The plan of one of them."""
        self.use = use


_Shape = tuple[str, tuple[Entry, ...], str, int]
"""A domain, a descriptor's entries without the last one, that one's key, and the addend."""


class Trace:
    """What one set of rules makes of recorded requests."""

    def __init__(
        self,
        snapshot: Snapshot,
        settings: Settings,
        max_counters: int = MAX_COUNTERS,
        most_prepared: int = _MOST_PREPARED,
        sample: int = SAMPLE,
        names: int = TOP_NAMES,
    ) -> None:
        """`sample` callers of each rule are looked at one by one; `names` of the top are held."""
        self.snapshot = snapshot
        self._simulator = Simulator(snapshot, settings, max_counters)
        self._counts_reported = settings.denied_counted is CountDenied.REPORTED
        self.uses: dict[tuple[str, str], RuleUse] = {}
        """By domain and path of the rule."""
        self.compared_with: Trace | None = None
        """Where two sets of rules are compared, the other one, which is asked first. Each keeps
        plans of its own. The report tells of rules that both have by the other one's numbers. So of
        such a rule only its denials are noted here."""
        self._prepared: list[RecordedRequest] = []
        """Requests that have a plan: a `Matched` if they are one hit and nothing else."""
        self._waiting: list[Matched] = []
        """Of callers that came since all were followed."""
        self._most_prepared = most_prepared
        self._bytes = 0
        """Of the requests that are remembered."""
        self._templates: dict[_Shape, _TemplateUse | bool] = {}
        """What requests of a shape have in common. False: it came once; True: they have nothing."""
        self._sample = sample
        self._names = names
        self._phase = 0
        self.denied = 0
        self.timeline = Timeline()
        self.unmatched: Counter[str] = Counter()
        """Requests in which a descriptor met no rule, by domain; there are only so many."""
        self.deciding: Matched | None = None
        """Of the last request the descriptor that denied it, if one did."""

    @property
    def lost(self) -> int:
        """How many counters that still counted had to make room for others."""
        return self._simulator.lost

    def decide(self, recorded: RecordedRequest, at_us: int) -> bool:
        """Asks one request and notes what comes of it; tells whether it passes."""
        self._renew(at_us)
        passes = self._decide(self._prepared_for(recorded, at_us), at_us)
        self.timeline.add(at_us, int(not passes))
        self._follow_all()
        return passes

    def decide_all(
        self, requests: list[RecordedRequest], times: list[int]
    ) -> dict[int, Matched | None]:
        """As `decide` for each of them, at its time; tells those that are denied, by their indices.

        With each of these is the descriptor that denied it, if one did.
        """
        denied: dict[int, Matched | None] = {}
        if self.snapshot.times is None:
            self._decide_part(requests, times, 0, denied)
        else:
            start = 0
            while start < len(times):
                self._renew(times[start])
                next_us = (
                    times[start] // MINUTE_US + 1
                ) * MINUTE_US  # until then the same rules hold
                end = bisect_left(times, next_us, start)
                self._decide_part(requests[start:end], times[start:end], start, denied)
                start = end
        if self.compared_with is None:
            self.timeline.add_all(times, [times[index] for index in denied])
        self._follow_all()
        return denied

    def _decide_part(
        self,
        requests: list[RecordedRequest],
        times: list[int],
        start: int,
        denied: dict[int, Matched | None],
    ) -> None:
        """Asks requests while the same rules hold; adds those that are denied.

        Their indices count from `start`. Nearly every request is one hit, and noted by a fast path.
        """
        beside = self.compared_with is not None
        for index, recorded in enumerate(requests):
            at_us = times[index]
            remembered = recorded.compared_plan if beside else recorded.plan
            plan = remembered if isinstance(remembered, Matched) else self._plan(recorded, at_us)
            if isinstance(plan, Matched):
                if self._alone(plan, at_us):
                    denied[start + index] = plan
            elif not self._decide(plan, at_us):
                denied[start + index] = self.deciding

    def _alone(self, matched: Matched, at_us: int) -> bool:
        """Charges a request of one hit and notes what came of it; tells whether it is denied."""
        use, caller = matched.use, matched.caller
        remaining = self._simulator.charge_alone(matched.template_hits[0], matched.key, at_us)
        over = remaining < 0
        if use.brief:
            if not over or not matched.enforced:
                return False
            return self._deny(use)
        if caller is not None:
            if not matched.times:
                self._wait(matched, caller)
            matched.times.append(at_us)
        use.requests += 1
        use.hits += matched.addend
        denied = False
        if over:
            remaining = -1 - remaining
            denied = self._over(matched, use, at_us)
        else:
            use.timeline.add(at_us)
        if remaining < use.least:
            limit = use.limits[0]
            use.reach(limit.spec.limit - remaining, limit, matched.name, at_us)
        return denied

    def _over(self, matched: Matched, use: RuleUse, at_us: int) -> bool:
        """Notes that a request's only hit was over; tells whether that denies it."""
        use.timeline.add(at_us, 1)
        use.deniers.add(matched.name)
        if matched.caller is not None:
            matched.caller.denied += 1
        if not matched.enforced:
            use.admitted_over += 1
            return False
        return self._deny(use)

    def _deny(self, use: RuleUse) -> bool:
        use.limits[0].denied += 1
        use.denied += 1
        self.denied += 1
        return True

    def _wait(self, matched: Matched, caller: Caller) -> None:
        """Puts off following a caller until the requests of a block have been asked."""
        if caller.waiting:
            self._follow_all()  # it came with another request, by which it is followed first
        caller.waiting = True
        self._waiting.append(matched)

    def _follow_all(self) -> None:
        waiting = self._waiting
        self._waiting = []
        for matched in waiting:
            matched.follow()

    def _renew(self, at_us: int) -> None:
        """Forgets all plans when other rules hold."""
        phase = self._simulator.phase(at_us)
        if phase != self._phase:
            self._phase = phase
            self._forget()
            self._templates.clear()

    def _decide(self, prepared: PreparedRequest, at_us: int) -> bool:
        hits = prepared.hits
        if hits:
            if prepared.leasing:
                hits, _ = self._simulator.leased(prepared.plans)
            settled = self._simulator.charge(hits, at_us)
        else:
            settled = settle_without_hits(prepared.plans)
        outcomes, verdict = settled.outcomes, settled.verdict
        for matched in prepared.matched:
            if matched.caller is not None:
                self._wait(matched, matched.caller)
                matched.times.append(at_us)
            if matched.refund:
                matched.use.refunds += 1
            elif verdict is _WITHIN:
                # The verdict says that every hit has an outcome.
                matched.use.within(matched.name, matched.addend, outcomes, matched.start, at_us)  # type: ignore[arg-type]
        if prepared.unmatched:
            self._note_unmatched(prepared.request.domain)
        if verdict is _WITHIN:
            return True
        return self._settled(prepared, settled, at_us)

    def _settled(self, prepared: PreparedRequest, settled: Settled, at_us: int) -> bool:
        passes = settled.verdict.passes
        self.deciding = None
        for matched in prepared.matched:
            if matched.refund:
                continue
            end = matched.start + len(matched.hits)
            over = matched.use.settled(
                matched.name,
                matched.addend,
                settled.outcomes[matched.start : end],
                at_us,
                passes=passes,
                enforced=matched.enforced,
            )
            if over and matched.caller is not None:
                matched.caller.denied += 1
            if matched.start <= settled.by < end:
                self.deciding = matched
        if not passes:
            self.denied += 1
        return passes

    def _note_unmatched(self, domain: str) -> None:
        if domain in self.unmatched or len(self.unmatched) < _MOST_DOMAINS:
            self.unmatched[domain] += 1

    def _plan(self, recorded: RecordedRequest, at_us: int) -> Matched | PreparedRequest:
        """What a request meets, to be remembered; a `Matched` if that is one hit and no more."""
        remembered = recorded.compared_plan if self.compared_with else recorded.plan
        if isinstance(remembered, PreparedRequest):
            return remembered
        matched = (
            self._from_template(recorded.request, at_us)
            if recorded.size <= _MOST_TEMPLATE_BYTES
            else None
        )
        if matched is not None:
            self._remember(recorded, matched)
            return matched
        prepared = self._prepare(recorded.request, at_us)
        plan = alone_of(prepared) or prepared
        self._remember(recorded, plan)
        return plan

    def _prepared_for(self, recorded: RecordedRequest, at_us: int) -> PreparedRequest:
        """The same, whatever it meets."""
        plan = recorded.compared_plan if self.compared_with else recorded.plan
        if isinstance(plan, PreparedRequest):
            return plan
        prepared = self._prepare(recorded.request, at_us)
        self._remember(recorded, prepared)
        return prepared

    def _prepare(self, request: Request, at_us: int) -> PreparedRequest:
        """Plans a request."""
        bare = _without_leases(request)
        plans = self._simulator.plan(bare, at_us)
        matched: list[Matched] = []
        hits: list[Hit] = []
        unmatched = False
        for descriptor, planned in zip(bare.descriptors, plans, strict=True):
            if planned.rule.kind is Kind.NO_RULE:
                unmatched = True
                continue
            start = len(hits)
            hits += planned.hits
            caller = self._caller(request.domain, descriptor, at_us)
            use = self._use(request.domain, planned.rule, planned.declared)
            matched.append(Matched(use, planned, start, caller))
        return PreparedRequest(request, plans, hits, matched, unmatched)

    def _remember(self, recorded: RecordedRequest, plan: Matched | PreparedRequest) -> None:
        """Keeps a plan with its request; if there are too many, all others are forgotten."""
        size = recorded.size
        many = len(self._prepared) >= self._most_prepared
        if many or self._bytes + size > _MOST_BYTES:
            self._forget()
        self._bytes += size
        self._prepared.append(recorded)
        if self.compared_with:
            recorded.compared_plan = plan
        else:
            recorded.plan = plan

    def _forget(self) -> None:
        for recorded in self._prepared:
            if self.compared_with:
                recorded.compared_plan = None
            else:
                recorded.plan = None
        self._prepared.clear()
        self._bytes = 0

    def _from_template(self, request: Request, at_us: int) -> Matched | None:
        """The same by what was found out for requests that only have another last value."""
        if len(request.descriptors) != 1:
            return None
        entries, limit, addend, refund = request.descriptors[0]
        if addend is None:
            addend = request.hits_addend or 1
        if limit is not None or refund or not addend or not entries:
            return None
        if self._counts_reported and request.descriptors[0].hits_addend is not None:
            return None  # those of a template bring no number of their own
        key, value = entries[-1]
        shape = request.domain, entries[:-1], key, addend
        common = self._templates.get(shape)
        if common is None:
            if len(self._templates) >= _MOST_TEMPLATES:
                self._templates.clear()
            self._templates[shape] = False
            return None
        if common is False:
            common = self._templates[shape] = (
                self._new_template(request.domain, entries, addend, at_us) or True
            )
        if not isinstance(common, _TemplateUse) or not value.isascii():
            return None
        return Matched(common.use, common.planned, 0, entries, common.template.key(value.encode()))

    def _new_template(
        self, domain: str, entries: Sequence[Entry], addend: int, at_us: int
    ) -> _TemplateUse | None:
        template = self._simulator.template(domain, entries, addend, at_us)
        if template is None or template.rule.limits[0].count_denied or template.rule.leasing:
            return None
        use = self._use(domain, template.rule, template.node.declared)
        return _TemplateUse(template, use) if len(use.limits) == 1 else None

    def _use(self, domain: str, rule: CompiledRule, declared: Rule | None) -> RuleUse:
        """The use of a rule. Limits that callers bring are one rule, of the limit seen first."""
        key = domain, declared.path if declared else ""
        limits = [each.limit for each in rule.limits if not is_soft_part(rule, each)]
        if declared is not None and len(limits) != len(declared.limits):
            held = "; ".join(map(limit_text, limits))
            key = domain, f"{declared.path} ({held or 'outside its times'})"
        use = self.uses.get(key)
        if use is None:
            use = self.uses[key] = RuleUse(rule, declared, self._sample, self._names)
            use.brief = self.compared_with is not None and key in self.compared_with.uses
        return use

    def _caller(
        self, domain_name: str, descriptor: Descriptor, at_us: int
    ) -> Sequence[tuple[str, str]]:
        """What its counter counts: the entries of a descriptor that name the caller."""
        domain = self.snapshot.domains.get(domain_name)
        if domain is not None and descriptor.limit is None:
            rule_match = match(domain, descriptor.entries, at_us // MINUTE_US)
            return rule_match.identity or descriptor.entries
        return descriptor.entries


def _without_leases(request: Request) -> Request:
    """The request without ids of leases: a replay draws its own, so the oldest is given back."""
    if not any(each.is_negative_hits for each in request.descriptors):
        return request
    return request._replace(
        descriptors=tuple(
            each._replace(entries=each.entries[:-1])
            if each.is_negative_hits and len(each.entries) > 1 and each.entries[-1].key == "lease"
            else each
            for each in request.descriptors
        )
    )
