"""Asks recorded requests of rules, one after the other, and notes what comes of each.

The limiter and the memory store are those that serve; only the clock is the log's. What must not
live here: what is kept of a rule (`use`), and what it says to people (`report`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from operator import lt
from typing import Final

from ratelimit_service.limiter import CompiledRule, Plan, PlanTemplate, unasked
from ratelimit_service.limiter.compiled import Kind
from ratelimit_service.model import (
    MINUTE_US,
    Code,
    Descriptor,
    Entry,
    Hit,
    Mode,
    Request,
    outcome_of,
)
from ratelimit_service.replay.recorded import Recorded
from ratelimit_service.replay.sketches import CallerSample, place_of
from ratelimit_service.replay.timeline import Timeline
from ratelimit_service.replay.use import SAMPLE, TOP_NAMES, RuleUse
from ratelimit_service.rules.match import match
from ratelimit_service.rules.paths import path_text
from ratelimit_service.rules.texts import limit_text
from ratelimit_service.rules.tree import Snapshot
from ratelimit_service.settings import Settings
from ratelimit_service.simulation.world import World
from ratelimit_service.sketches import TopNames
from ratelimit_service.stores import Settled, Verdict
from ratelimit_service.stores.memory import UNSETTLED

__all__ = ["MAX_COUNTERS", "Replay", "SideChanges", "Trace"]

MAX_COUNTERS: Final = 1_000_000
"""So many counters are held at a time, as `serve` holds by default."""

_MOST_PREPARED: Final = 1 << 16
_MOST_KIN: Final = 1 << 12
_MOST_DOMAINS: Final = 1_000
_MOST_NAME: Final = 200
"""Characters that are shown of a caller."""

_WITHIN: Final = Verdict.WITHIN


class _Met:
    """One descriptor of a request, and the use of the rule that it meets."""

    __slots__ = ("addend", "caller", "enforced", "hits", "name", "refund", "start", "use")

    def __init__(self, use: RuleUse, planned: Plan, start: int, name: str, key: bytes) -> None:
        self.use = use
        self.addend = planned.addend
        self.hits = planned.hits
        self.refund = planned.refund
        self.start = start
        self.enforced = not planned.hits or planned.hits[0].mode is not Mode.SHADOW
        self.name = name
        self.caller = use.caller(place_of(key), name)
        """Who is looked at; None if it is not in the sample, or no more."""

    def follow(self, at_us: int) -> None:
        """Follows the caller, as long as it is in the sample."""
        caller = self.caller
        if caller is not None and caller.followed:
            self.use.follow(caller, self.hits, at_us)
        else:
            self.caller = None


class _Prepared:
    """A request with its plans, which is asked as often as it comes."""

    __slots__ = ("alone", "hits", "leasing", "met", "plans", "request", "unmatched")

    def __init__(
        self,
        request: Request,
        plans: Sequence[Plan],
        hits: Sequence[Hit],
        met: Sequence[_Met],
        unmatched: bool,
    ) -> None:
        self.request = request
        self.plans = plans
        self.hits = hits
        self.met = met
        self.unmatched = unmatched
        self.leasing = sum([planned.rule.leasing for planned in plans]) > 0
        self.alone: _Met | None = None
        """What it meets, if that is one hit and nothing else."""
        if len(hits) == len(met) == len(plans) == 1 and not self.leasing and not met[0].refund:
            self.alone = met[0] if len(met[0].use.limits) == 1 else None


class _Kin:
    """All requests that differ only in the value of their only descriptor's last entry."""

    __slots__ = ("template", "use")

    def __init__(self, template: PlanTemplate, use: RuleUse) -> None:
        self.template = template
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
        self._world = World(snapshot, settings, max_counters)
        self.uses: dict[tuple[str, str], RuleUse] = {}
        """By domain and path of the rule."""
        self._prepared: dict[int, _Prepared] = {}
        """By the identities of requests: readers of logs make equal ones one object."""
        self._most_prepared = most_prepared
        self._kin: dict[_Shape, _Kin | bool] = {}
        """What requests of a shape have in common. False: it came once; True: they have nothing."""
        self._sample = sample
        self._names = names
        self._phase = 0
        self.denied = 0
        self.timeline = Timeline()
        self.unmatched: Counter[str] = Counter()
        """Requests in which a descriptor met no rule, by domain; there are only so many."""
        self.deciding: _Met | None = None
        """Of the last request the descriptor that denied it, if one did."""

    @property
    def lost(self) -> int:
        """How many counters that still counted had to make room for others."""
        return self._world.lost

    def ask(self, request: Request, at_us: int) -> bool:
        """Asks one request and notes what comes of it; tells whether it passes."""
        if self.snapshot.times is not None:
            self._renew(at_us)
        prepared = self._prepared.get(id(request))
        if prepared is None:
            prepared = self._prepare(request, at_us)
        passes = self._ask(prepared, at_us)
        self.timeline.add(at_us, int(not passes))
        return passes

    def ask_all(self, requests: Sequence[Request], times: Sequence[int]) -> dict[int, _Met | None]:
        """As `ask` for each of them, at its time; tells those that are denied, by their places.

        With each of these is the descriptor that denied it, if one did. Nearly every request is one
        hit: that has a short way here.
        """
        found, changing = self._prepared, self.snapshot.times is not None
        charge = self._world.charge_alone
        denied: dict[int, _Met | None] = {}
        for place, request in enumerate(requests):
            at_us = times[place]
            if changing:
                self._renew(at_us)
            prepared = found.get(id(request))
            if prepared is None:
                prepared = self._prepare_kin(request, at_us) or self._prepare(request, at_us)
            met = prepared.alone
            remaining = UNSETTLED if met is None else charge(prepared.hits[0], at_us)
            if met is None or remaining == UNSETTLED:
                if not self._ask(prepared, at_us):
                    denied[place] = self.deciding
                continue
            if met.caller is not None:
                met.follow(at_us)
            if remaining >= 0:
                met.use.within_alone(met.name, met.addend, remaining, at_us)
                continue
            outcome = outcome_of((True, -1 - remaining, 0, 0, False))
            passes = not met.enforced
            met.use.settled(
                met.name, met.addend, (outcome,), at_us, passes=passes, enforced=met.enforced
            )
            if met.caller is not None:
                met.caller.denied += 1
            if not passes:
                self.denied += 1
                denied[place] = met
        self.timeline.add_all(times, list(denied))
        return denied

    def _renew(self, at_us: int) -> None:
        """Forgets all plans when other rules hold."""
        phase = self._world.phase(at_us)
        if phase != self._phase:
            self._phase = phase
            self._prepared.clear()
            self._kin.clear()

    def _ask(self, prepared: _Prepared, at_us: int) -> bool:
        hits = prepared.hits
        if hits:
            if prepared.leasing:
                hits, _ = self._world.leased(prepared.plans)
            settled = self._world.charge(hits, at_us)
        else:
            settled = unasked(prepared.plans)
        outcomes, verdict = settled.outcomes, settled.verdict
        for met in prepared.met:
            if met.caller is not None:
                met.follow(at_us)
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

    def _settled(self, prepared: _Prepared, settled: Settled, at_us: int) -> bool:
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

    def _prepare(self, request: Request, at_us: int) -> _Prepared:
        """Plans a request; it is remembered, as long as there are not too many."""
        asked = _without_leases(request)
        plans = self._world.plan(asked, at_us)
        met: list[_Met] = []
        hits: list[Hit] = []
        unmatched = False
        for descriptor, planned in zip(asked.descriptors, plans, strict=True):
            if planned.rule.kind is Kind.NO_RULE:
                unmatched = True
                continue
            start = len(hits)
            hits += planned.hits
            name = self._name(request.domain, descriptor, at_us)
            key = planned.hits[0].key if planned.hits else name.encode("utf-8", "replace")
            met.append(_Met(self._use(request.domain, planned.rule), planned, start, name, key))
        return self._keep(_Prepared(request, plans, hits, met, unmatched))

    def _keep(self, prepared: _Prepared) -> _Prepared:
        if len(self._prepared) >= self._most_prepared:
            self._prepared.clear()
        self._prepared[id(prepared.request)] = prepared
        return prepared

    def _prepare_kin(self, request: Request, at_us: int) -> _Prepared | None:
        """As `_prepare`, by what was found out for requests that only have another last value."""
        if len(request.descriptors) != 1:
            return None
        entries, limit, addend, refund = request.descriptors[0]
        if addend is None:
            addend = request.hits_addend or 1
        if limit is not None or refund or not addend or not entries:
            return None
        key, value = entries[-1]
        shape = request.domain, entries[:-1], key, addend
        kin = self._kin.get(shape)
        if kin is None:
            if len(self._kin) >= _MOST_KIN:
                self._kin.clear()
            self._kin[shape] = False
            return None
        if kin is False:
            template = self._world.template(request.domain, entries, addend, at_us)
            if template is not None:
                use = self._use(request.domain, template.rule)
                kin = _Kin(template, use)
            self._kin[shape] = kin or True
        if not isinstance(kin, _Kin) or not value.isascii():
            return None
        planned = kin.template.plan(value.encode())
        name = _short(path_text(entries))
        met = _Met(kin.use, planned, 0, name, planned.hits[0].key)
        return self._keep(_Prepared(request, (planned,), planned.hits, (met,), False))

    def _use(self, domain: str, rule: CompiledRule) -> RuleUse:
        """The use of a rule. Limits that callers bring are one rule, of the limit seen first."""
        key = domain, rule.declared.path if rule.declared else ""
        if rule.declared is not None and len(rule.limits) != len(rule.declared.limits):
            held = "; ".join(limit_text(each.limit) for each in rule.limits)
            key = domain, f"{rule.declared.path} ({held or 'outside its times'})"
        use = self.uses.get(key)
        if use is None:
            use = self.uses[key] = RuleUse(rule, self._sample, self._names)
        return use

    def _name(self, domain_name: str, descriptor: Descriptor, at_us: int) -> str:
        """The caller as people know it: what its counter counts."""
        domain = self.snapshot.domains.get(domain_name)
        entries: Sequence[tuple[str, str]] = descriptor.entries
        if domain is not None and descriptor.limit is None:
            minute = at_us // MINUTE_US
            entries = match(domain, descriptor.entries, minute).identity or entries
        return _short(path_text(entries))


def _short(name: str) -> str:
    return name if len(name) <= _MOST_NAME else f"{name[:_MOST_NAME]}…"


def _without_leases(request: Request) -> Request:
    """A replay draws leases of its own, so who gives one back gives back its rule's oldest."""
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

    def note(self, met: _Met | None) -> None:
        """Notes a request by the descriptor that one of the two denied it for."""
        self.requests += 1
        if met is None:
            return
        self.names.add(met.name)
        met.use.changed.add(met.name)
        place = place_of(met.name.encode("utf-8", "replace"))
        for sample in (self.callers, met.use.changed_callers):
            if sample.wants(place) and sample.get(place) is None:
                sample.put(place, met.name)


class Replay:
    """Recorded requests through new rules and, to compare, through old ones."""

    def __init__(self, new: Trace, old: Trace | None = None) -> None:
        self.new = new
        self.old = old
        self.requests = 0
        self.late = 0
        """Requests that stood too far back in their log; they count as of the time reached."""
        self.first_us = 0
        self.last_us = 0
        self.recorded: Counter[Code] = Counter()
        """What the logs say was answered, where they do."""
        self.newly_denied = SideChanges()
        self.newly_allowed = SideChanges()

    def play(self, records: Sequence[Recorded]) -> None:
        """Asks the requests of a log, or of the next part of it."""
        if not records:
            return
        new, old = self.new, self.old
        stamps, requests, codes = zip(*records, strict=True)
        times = list(accumulate(stamps, max, initial=self.last_us))[1:]
        if not self.requests:
            self.first_us = times[0]
        self.late += sum(map(lt, stamps, times))
        self.last_us = times[-1]
        self.requests += len(records)
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
