"""Asks recorded requests of rules, one after the other, and notes what comes of each.

The limiter and the memory store are those that serve; only the clock is the log's. What must not
live here: what is kept of a rule (`use`), and what it says to people (`report`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from operator import lt
from typing import Final

from ratelimit_service.containers.sketches import TopNames
from ratelimit_service.limiter import CompiledRule, PlanTemplate, settle_without_hits
from ratelimit_service.limiter.compiled import Kind
from ratelimit_service.model import (
    MINUTE_US,
    Code,
    CountDenied,
    Descriptor,
    Entry,
    Hit,
    Request,
)
from ratelimit_service.rule_lab.replay.met import Met, Prepared, alone_of
from ratelimit_service.rule_lab.replay.recorded import Block, RecordedRequest
from ratelimit_service.rule_lab.replay.sketches import CallerSample
from ratelimit_service.rule_lab.replay.timeline import Timeline
from ratelimit_service.rule_lab.replay.use import SAMPLE, TOP_NAMES, Caller, RuleUse
from ratelimit_service.rule_lab.simulation.simulator import Simulator
from ratelimit_service.rules.match import match
from ratelimit_service.rules.texts import limit_text
from ratelimit_service.rules.tree import Rule, Snapshot
from ratelimit_service.settings import Settings
from ratelimit_service.stores import Settled, Verdict

__all__ = ["MAX_COUNTERS", "Replay", "SideChanges", "Trace"]

MAX_COUNTERS: Final = 1_000_000
"""So many counters are held at a time, as `serve` holds by default."""

_MOST_PREPARED: Final = 1 << 16
_MOST_BYTES: Final = 1 << 25
"""Of all requests that are remembered with their plans."""

_MOST_KIN: Final = 1 << 12
_MOST_KIN_BYTES: Final = 4_096
"""Of a request that may be of a kind."""

_MOST_DOMAINS: Final = 1_000
_WITHIN: Final = Verdict.WITHIN


class _Kin:
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
    """What one set of rules makes of the requests: each is `ask`ed."""

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
        self.beside: Trace | None = None
        """Where two sets of rules are compared, the other one, which is asked first. Each keeps
        plans of its own. The report tells of rules that both have by the other one's numbers. So of
        such a rule only its denials are noted here."""
        self._prepared: list[RecordedRequest] = []
        """Requests that have a plan: a `Met` if they are one hit and nothing else."""
        self._waiting: list[Met] = []
        """Of callers that came since all were followed."""
        self._most_prepared = most_prepared
        self._bytes = 0
        """Of the requests that are remembered."""
        self._kin: dict[_Shape, _Kin | bool] = {}
        """What requests of a shape have in common. False: it came once; True: they have nothing."""
        self._sample = sample
        self._names = names
        self._phase = 0
        self.denied = 0
        self.timeline = Timeline()
        self.unmatched: Counter[str] = Counter()
        """Requests in which a descriptor met no rule, by domain; there are only so many."""
        self.deciding: Met | None = None
        """Of the last request the descriptor that denied it, if one did."""

    @property
    def lost(self) -> int:
        """How many counters that still counted had to make room for others."""
        return self._simulator.lost

    def ask(self, asked: RecordedRequest, at_us: int) -> bool:
        """Asks one request and notes what comes of it; tells whether it passes."""
        self._renew(at_us)
        passes = self._ask(self._prepared_for(asked, at_us), at_us)
        self.timeline.add(at_us, int(not passes))
        self._follow_all()
        return passes

    def ask_all(self, requests: list[RecordedRequest], times: list[int]) -> dict[int, Met | None]:
        """As `ask` for each of them, at its time; tells those that are denied, by their places.

        With each of these is the descriptor that denied it, if one did.
        """
        denied: dict[int, Met | None] = {}
        if self.snapshot.times is None:
            self._ask_part(requests, times, 0, denied)
        else:
            start = 0
            while start < len(times):
                self._renew(times[start])
                next_us = (
                    times[start] // MINUTE_US + 1
                ) * MINUTE_US  # until then the same rules hold
                end = bisect_left(times, next_us, start)
                self._ask_part(requests[start:end], times[start:end], start, denied)
                start = end
        if self.beside is None:
            self.timeline.add_all(times, [times[place] for place in denied])
        self._follow_all()
        return denied

    def _ask_part(
        self,
        requests: list[RecordedRequest],
        times: list[int],
        start: int,
        denied: dict[int, Met | None],
    ) -> None:
        """Asks requests while the same rules hold; adds those that are denied.

        Their places count from `start`. Nearly every request is one hit, and noted by a fast path.
        """
        beside = self.beside is not None
        for place, asked in enumerate(requests):
            at_us = times[place]
            remembered = asked.beside if beside else asked.plan
            plan = remembered if isinstance(remembered, Met) else self._plan(asked, at_us)
            if isinstance(plan, Met):
                if self._alone(plan, at_us):
                    denied[start + place] = plan
            elif not self._ask(plan, at_us):
                denied[start + place] = self.deciding

    def _alone(self, met: Met, at_us: int) -> bool:
        """Charges a request of one hit and notes what came of it; tells whether it is denied."""
        use, caller = met.use, met.caller
        remaining = self._simulator.charge_alone(met.kin[0], met.key, at_us)
        over = remaining < 0
        if use.brief:
            if not over or not met.enforced:
                return False
            return self._deny(use)
        if caller is not None:
            if not met.times:
                self._wait(met, caller)
            met.times.append(at_us)
        use.asked += 1
        use.hits += met.addend
        denied = False
        if over:
            remaining = -1 - remaining
            denied = self._over(met, use, at_us)
        else:
            use.timeline.add(at_us)
        if remaining < use.least:
            use.reach(remaining, met.name, at_us)
        return denied

    def _over(self, met: Met, use: RuleUse, at_us: int) -> bool:
        """Notes that a request's only hit was over; tells whether that denies it."""
        use.timeline.add(at_us, 1)
        use.deniers.add(met.name)
        if met.caller is not None:
            met.caller.denied += 1
        if not met.enforced:
            use.admitted_over += 1
            return False
        return self._deny(use)

    def _deny(self, use: RuleUse) -> bool:
        use.limits[0].denied += 1
        use.denied += 1
        self.denied += 1
        return True

    def _wait(self, met: Met, caller: Caller) -> None:
        """Puts off following a caller until the requests of a block have been asked."""
        if caller.waiting:
            self._follow_all()  # it came with another request, by which it is followed first
        caller.waiting = True
        self._waiting.append(met)

    def _follow_all(self) -> None:
        waiting = self._waiting
        self._waiting = []
        for met in waiting:
            met.follow()

    def _renew(self, at_us: int) -> None:
        """Forgets all plans when other rules hold."""
        phase = self._simulator.phase(at_us)
        if phase != self._phase:
            self._phase = phase
            self._forget()
            self._kin.clear()

    def _ask(self, prepared: Prepared, at_us: int) -> bool:
        hits = prepared.hits
        if hits:
            if prepared.leasing:
                hits, _ = self._simulator.leased(prepared.plans)
            settled = self._simulator.charge(hits, at_us)
        else:
            settled = settle_without_hits(prepared.plans)
        outcomes, verdict = settled.outcomes, settled.verdict
        for met in prepared.met:
            if met.caller is not None:
                self._wait(met, met.caller)
                met.times.append(at_us)
            if met.refund:
                met.use.refunds += 1
            elif verdict is _WITHIN:
                # The verdict says that every hit has an outcome.
                met.use.within(met.name, met.addend, outcomes, met.start, at_us)  # type: ignore[arg-type]
        if prepared.unmatched:
            self._note_unmatched(prepared.request.domain)
        if verdict is _WITHIN:
            return True
        return self._settled(prepared, settled, at_us)

    def _settled(self, prepared: Prepared, settled: Settled, at_us: int) -> bool:
        passes = settled.verdict.passes
        self.deciding = None
        for met in prepared.met:
            if met.refund:
                continue
            end = met.start + len(met.hits)
            over = met.use.settled(
                met.name,
                met.addend,
                settled.outcomes[met.start : end],
                at_us,
                passes=passes,
                enforced=met.enforced,
            )
            if over and met.caller is not None:
                met.caller.denied += 1
            if met.start <= settled.by < end:
                self.deciding = met
        if not passes:
            self.denied += 1
        return passes

    def _note_unmatched(self, domain: str) -> None:
        if domain in self.unmatched or len(self.unmatched) < _MOST_DOMAINS:
            self.unmatched[domain] += 1

    def _plan(self, asked: RecordedRequest, at_us: int) -> Met | Prepared:
        """What a request meets: a `Met` if that is one hit and nothing else. It is remembered."""
        remembered = asked.beside if self.beside else asked.plan
        if isinstance(remembered, Prepared):
            return remembered
        met = self._of_kin(asked.request, at_us) if asked.size <= _MOST_KIN_BYTES else None
        if met is not None:
            self._remember(asked, met)
            return met
        prepared = self._prepare(asked.request, at_us)
        plan = alone_of(prepared) or prepared
        self._remember(asked, plan)
        return plan

    def _prepared_for(self, asked: RecordedRequest, at_us: int) -> Prepared:
        """The same, whatever it meets."""
        plan = asked.beside if self.beside else asked.plan
        if isinstance(plan, Prepared):
            return plan
        prepared = self._prepare(asked.request, at_us)
        self._remember(asked, prepared)
        return prepared

    def _prepare(self, request: Request, at_us: int) -> Prepared:
        """Plans a request."""
        bare = _without_leases(request)
        plans = self._simulator.plan(bare, at_us)
        met: list[Met] = []
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
            met.append(Met(use, planned, start, caller))
        return Prepared(request, plans, hits, met, unmatched)

    def _remember(self, asked: RecordedRequest, plan: Met | Prepared) -> None:
        """Keeps a plan with its request; if there are too many, all others are forgotten."""
        size = asked.size
        many = len(self._prepared) >= self._most_prepared
        if many or self._bytes + size > _MOST_BYTES:
            self._forget()
        self._bytes += size
        self._prepared.append(asked)
        if self.beside:
            asked.beside = plan
        else:
            asked.plan = plan

    def _forget(self) -> None:
        for asked in self._prepared:
            if self.beside:
                asked.beside = None
            else:
                asked.plan = None
        self._prepared.clear()
        self._bytes = 0

    def _of_kin(self, request: Request, at_us: int) -> Met | None:
        """The same by what was found out for requests that only have another last value."""
        if len(request.descriptors) != 1:
            return None
        entries, limit, addend, refund = request.descriptors[0]
        if addend is None:
            addend = request.hits_addend or 1
        if limit is not None or refund or not addend or not entries:
            return None
        if self._counts_reported and request.descriptors[0].hits_addend is not None:
            return None  # those of a kin bring no number of their own
        key, value = entries[-1]
        shape = request.domain, entries[:-1], key, addend
        kin = self._kin.get(shape)
        if kin is None:
            if len(self._kin) >= _MOST_KIN:
                self._kin.clear()
            self._kin[shape] = False
            return None
        if kin is False:
            kin = self._kin[shape] = self._new_kin(request.domain, entries, addend, at_us) or True
        if not isinstance(kin, _Kin) or not value.isascii():
            return None
        return Met(kin.use, kin.planned, 0, entries, kin.template.key(value.encode()))

    def _new_kin(
        self, domain: str, entries: Sequence[Entry], addend: int, at_us: int
    ) -> _Kin | None:
        template = self._simulator.template(domain, entries, addend, at_us)
        if template is None or template.rule.limits[0].count_denied or template.rule.leasing:
            return None
        use = self._use(domain, template.rule, template.matched.declared)
        return _Kin(template, use) if len(use.limits) == 1 else None

    def _use(self, domain: str, rule: CompiledRule, declared: Rule | None) -> RuleUse:
        """The use of a rule. Limits that callers bring are one rule, of the limit seen first."""
        key = domain, declared.path if declared else ""
        if declared is not None and len(rule.limits) != len(declared.limits):
            held = "; ".join(limit_text(each.limit) for each in rule.limits)
            key = domain, f"{declared.path} ({held or 'outside its times'})"
        use = self.uses.get(key)
        if use is None:
            use = self.uses[key] = RuleUse(rule, declared, self._sample, self._names)
            use.brief = self.beside is not None and key in self.beside.uses
        return use

    def _caller(
        self, domain_name: str, descriptor: Descriptor, at_us: int
    ) -> Sequence[tuple[str, str]]:
        """What its counter counts: the entries of a descriptor that name the caller."""
        domain = self.snapshot.domains.get(domain_name)
        if domain is not None and descriptor.limit is None:
            found = match(domain, descriptor.entries, at_us // MINUTE_US)
            return found.identity or descriptor.entries
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


class SideChanges:
    """Requests that one set of rules admits and the other denies."""

    def __init__(self) -> None:
        self.requests = 0
        self.names = TopNames[str](TOP_NAMES)
        self.callers = CallerSample[str](SAMPLE)

    def note(self, met: Met | None) -> None:
        """Notes a request by the descriptor that one of the two denied it for."""
        self.requests += 1
        if met is None:
            return
        self.names.add(met.name)
        met.use.changed.add(met.name)
        place = met.name_place
        for sample in (self.callers, met.use.changed_callers):
            if sample.wants(place) and sample.get(place) is None:
                sample.put(place, met.name)


class Replay:
    """Recorded requests through new rules and, to compare, through old ones."""

    def __init__(self, new: Trace, old: Trace | None = None) -> None:
        self.new = new
        self.old = old
        if old is not None:
            old.beside = new
        self.requests = 0
        self.late = 0
        """Requests that stood too far back in their log; they count as of the time reached."""
        self.first_us = 0
        self.last_us = 0
        self.recorded: Counter[Code] = Counter()
        """What the logs say was answered, where they do."""
        self.newly_denied = SideChanges()
        self.newly_allowed = SideChanges()

    def play(self, block: Block) -> None:
        """Asks the requests of a log, or of the next part of it."""
        stamps, requests, codes = block
        if not stamps:
            return
        new, old = self.new, self.old
        if not self.requests:
            self.first_us = stamps[0]
        times = stamps
        if stamps[0] < self.last_us or stamps != sorted(stamps):
            times = list(accumulate(stamps, max, initial=self.last_us))[1:]
            self.late += sum(map(lt, stamps, times))
        self.last_us = times[-1]
        self.requests += len(times)
        for code in Code:
            if came := codes.count(code):
                self.recorded[code] += came
        denied = new.ask_all(requests, times)
        if old is None:
            return
        before = old.ask_all(requests, times)
        for place in sorted(denied.keys() ^ before.keys()):
            if place in denied:
                self.newly_denied.note(denied[place])
            else:
                self.newly_allowed.note(before[place])
