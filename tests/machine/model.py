"""The independent model: what a request comes to by the documents, and by nothing else.

Each rule stands beside the sentence of `docs/rules.md` that it comes from. Nothing of the
service is imported: requests are `Asked`, what they mean is `meaning`'s, and counting is
`counting`'s. It is long because one request meets all of these rules, in the order in which they
stand here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tests.machine import telling, verdicts
from tests.machine.answers import FAILED, Answer, Asked, Counted, Status, by_policy
from tests.machine.charging import Charging, Scratch, counts_always, give_back
from tests.machine.counting import Counter, Leases, counter_of
from tests.machine.meaning import (
    Alone,
    Away,
    Identity,
    Meant,
    Override,
    Rule,
    Settings,
    meanings,
)
from tests.machine.reserving import Wanted, hold, settle, too_large


class Model:
    """All counters, and the rules that hold now."""

    def __init__(self, domain: str, settings: Settings) -> None:
        self.domain = domain
        self.settings = settings
        self.rules: Sequence[Rule] = ()
        self.overrides: list[Override] = []
        """What operators have said."""
        self.counters: dict[Identity, Counter] = {}
        self.now = 0
        """The time that it is."""
        self.left_out: frozenset[Identity] = frozenset()
        """Grants that a process does not ask for, as it knows that nothing is left of them."""
        self.latest = 0
        """The latest time that any request came at."""
        self.last: list[Identity] = []
        """The counters of the last request, in the order of its hits."""
        self.delay_us = 0
        """The delay of the last request."""
        self.share = 1
        """Of how many processes each gets its part, where it counts alone."""

    def load(self, rules: Sequence[Rule]) -> None:
        """Rule: "Changes are picked up by themselves [...]. Counters and metrics go on"."""
        self.rules = rules

    def may_be(self, now: int) -> bool:
        """Whether the documents say what each counter does at a time that may be back."""
        return not any(counter.unclear(now, self.latest) for counter in self.counters.values())

    def decide(
        self,
        now: int,
        descriptors: Sequence[Asked],
        hits: int = 0,
        lease: str = "",
        *,
        alone: bool = False,
    ) -> Answer:
        """Settles one request; `lease` is the id that its leases get.

        `alone` it is counted without the store: then shadow rules pass, and count nowhere.
        """
        self.latest = max(self.latest, now)
        meant = self.meanings(descriptors, hits)
        self.last = [name for one in meant for name in one.names]
        for one in meant:
            if alone and one.shadow and one.terms:
                one.uncounted = True
                one.uncount()
        denied = self._settle(meant, now, lease)
        return self._answer(meant, denied)

    def decide_partly(
        self,
        now: int,
        descriptors: Sequence[Asked],
        hits: int,
        lease: str,
        missing: Sequence[Away | None],
        policy: str,
    ) -> Answer:
        """Settles one request of which some counters, by their places, are in no store.

        "its counters are decided by the failure policy, the others' are counted"; "Of several in
        one request `error` wins, then `closed`"; "Shadow rules and refunds always pass". `local`
        "counts in this process alone", on its part of the limit, all or nothing as ever.
        """
        self.latest = max(self.latest, now)
        meant = self.meanings(descriptors, hits)
        self.last = []
        places = iter(missing)
        for one in meant:
            away = [next(places) for _ in one.terms]
            one.missing = any(away)
            if policy == "local" and not one.shadow:
                _count_alone(one, away)
                self.last += one.counters
                continue
            self.last += one.counters
            there = [each is None for each in away]
            one.uncounted = one.uncounted or (bool(there) and not any(there))
            one.denied_without = one.missing and policy != "open" and not (one.refund or one.shadow)
            one.terms = [each for each, known in zip(one.terms, there, strict=True) if known]
            one.counters = [each for each, known in zip(one.counters, there, strict=True) if known]
            one.hits = [each for each, known in zip(one.hits, there, strict=True) if known]
            one.grants = [[] for _ in one.terms]
        denied = self._settle(meant, now, lease, policy)
        told = self._answer(meant, denied)
        if verdicts.fails(meant, policy):
            return FAILED._replace(counted=told.counted)
        statuses = [
            Status(one.denied_without or one.over_alone)
            if one.over_alone or (one.missing and not one.known_over)
            else each
            for one, each in zip(meant, told.statuses, strict=True)
        ]
        return told._replace(statuses=tuple(statuses))

    def drop(
        self,
        now: int,
        descriptors: Sequence[Asked],
        hits: int,
        missing: Sequence[Away | None],
        policy: str,
    ) -> None:
        """A request that is dropped before it is sent, of which some counters are in no store.

        It is "uncounted". What it gives back to counters that the process counts alone need not be
        sent, and is given back.
        """
        self.latest = max(self.latest, now)
        meant = self.meanings(descriptors, hits)
        places = iter(missing)
        for one in meant:
            away = [next(places) for _ in one.terms]
            if policy == "local" and not one.shadow:
                _count_alone(one, away)
        self.last = [name for one in meant for name in one.counters]
        for one in meant:
            alone = [
                at for at, name in enumerate(one.counters) if one.refund and isinstance(name, Alone)
            ]
            one.terms = [one.terms[at] for at in alone]
            one.counters = [one.counters[at] for at in alone]
            one.hits = [one.hits[at] for at in alone]
            one.grants = [[] for _ in one.terms]
        self._settle(meant, now, "", policy)

    def reserve(self, now: int, descriptors: Sequence[Asked], wanted: Wanted) -> tuple[bool, bool]:
        """Holds hits; without a time to live it only asks.

        Returns whether that is denied, and whether anything is held.
        """
        self.latest = max(self.latest, now)
        meant = self.meanings(descriptors, 0)
        self.last = [name for one in meant for name in one.counters]
        if any(one.banned for one in meant):
            return True, False  # "a ban: Reserve is denied"
        if wanted.ttl_us and too_large(meant, self.settings):
            self.last = []
            return True, False
        scratch = Scratch(self.counters, now)
        told = hold(meant, scratch, self.settings, wanted)
        scratch.put_away()
        return told

    def reserve_without(self, descriptors: Sequence[Asked], wanted: Wanted, policy: str) -> Answer:
        """Rule: "The failure policy answers, with an empty id", and nothing is held.

        Nobody could settle what a process holds alone, so `local` allows.
        """
        meant = self.meanings(descriptors, 0)
        too_much = wanted.ttl_us > 0 and too_large(meant, self.settings)
        if too_much or any(one.banned for one in meant):
            return FAILED._replace(over=True, failed=False)
        return self.without(descriptors, 0, "open" if policy == "local" else policy)

    def settle(self, now: int, descriptors: Sequence[Asked], hold_id: str) -> bool:
        """Counts what was used; returns whether anything was held. Rule: "a ban: Commit counts"."""
        self.latest = max(self.latest, now)
        overrides = [each for each in self.overrides if each.kind != "ban"]
        meant = meanings(
            descriptors, 0, self.rules, self.settings, self.share, (overrides, self.now)
        )
        self.last = [name for one in meant for name in one.counters]
        scratch = Scratch(self.counters, now)
        held = settle(meant, scratch, hold_id)
        scratch.put_away()
        return held

    def give_back(self, now: int, name: Identity, hits: int, lease: str) -> int:
        """Hits that were charged for nothing are given back, as a caller would."""
        counter = self.counters[name]
        return counter.give(counter.terms, now, hits, lease)

    def rates(self, descriptors: Sequence[Asked]) -> dict[Identity, set[int]]:
        """The rates, by their `requests_per_unit`, by which a request asks each of its counters."""
        found: dict[Identity, set[int]] = {}
        for one in self.meanings(descriptors, 0):
            for name, terms in zip(one.counters, one.terms, strict=True):
                found.setdefault(name, set()).add(terms.requests_per_unit)
        return found

    def rates_alone(self, process: int, shard: int) -> dict[Identity, set[int]]:
        """The same of what a process has counted for a shard that it had lost."""
        return {
            name.name: {counter.terms.requests_per_unit}
            for name, counter in self.counters.items()
            if isinstance(name, Alone) and name[:2] == (process, shard)
        }

    def take_alone(self, process: int, shard: int) -> dict[Identity, Counter]:
        """Takes out what a process has counted for a shard that it had lost."""
        found = {
            name: counter
            for name, counter in self.counters.items()
            if isinstance(name, Alone) and name[:2] == (process, shard)
        }
        for name in found:
            del self.counters[name]
        return {name.name: each for name, each in found.items() if isinstance(name, Alone)}

    def told(self, counters: Mapping[Identity, Counter], now: int, since: int) -> None:
        """Counts what a process has counted alone, "as far as it still counts".

        What is told again is told as it was `since` it was first told, as long as any of it counts.
        "Windows and logs may be above their limit then, buckets and leases are full."
        """
        for name, alone in counters.items():
            alone.look(now)
            if not alone.used(alone.terms, now):
                continue  # nothing is told, so the counter is not looked at
            terms = replace(alone.terms, share=1)
            if name not in self.counters:
                self.counters[name] = counter_of(terms)
            here = self.counters[name]
            here.terms = terms
            here.look(now)
            used = alone.used(alone.terms, since).__ceil__()
            if isinstance(alone, Leases):
                for entry in alone.counting(alone.terms, now):
                    if here.passes(terms, now, entry.hits):
                        here.take(terms, now, entry.hits, entry.lease)
            elif here.takes_only_what_fits:
                here.take(terms, now, min(used, here.remaining(terms, now)), "")
            else:
                here.take(terms, now, used, "")
            here.touched = False

    def without(self, descriptors: Sequence[Asked], hits: int, policy: str) -> Answer:
        """What a request comes to that no store counts: "`open` allows, `closed` denies"."""
        meant = self.meanings(descriptors, hits)
        self.last = [name for one in meant for name in one.names]
        if policy == "error" and any(one.terms and not (one.refund or one.shadow) for one in meant):
            # "`error` fails the call with UNAVAILABLE"
            return FAILED
        for one in meant:
            # "Shadow rules and refunds always pass."
            over = policy == "closed" and not (one.refund or one.shadow)
            one.results = [Counted(over, 0, 0, 0) for _ in one.terms]
        denied = verdicts.denied(meant, self.settings) and not self.settings.shadow_mode
        return by_policy(
            Answer(denied, tuple(map(telling.status, meant)), (), False, None, False, ())
        )

    def known_over(
        self, descriptors: Sequence[Asked], hits: int, results: Sequence[Counted]
    ) -> Answer:
        """A request that was denied by what is known of its counters, without asking the store.

        "Rules in shadow or quota mode, those with `count_denied`, and `concurrency` always ask."
        """
        meant = self.meanings(descriptors, hits)
        self.last = [name for one in meant for name in one.counters]
        found = iter(results)
        for one in meant:
            one.results = one.counted = [next(found) for _ in one.terms]
            # What meets no rule, or an unlimited or a replaced one, has nothing to ask.
            for terms in one.terms:
                assert not any((one.refund, one.shadow, one.quota, self.settings.shadow_mode))
                assert not counts_always(one, terms, self.settings), terms
                assert terms.algorithm != "concurrency", terms
        return self._answer(meant, denied=True)

    def named(self, descriptors: Sequence[Asked], at: int) -> str:
        """One of the counters of a request, for its reader."""
        meant = self.meanings(descriptors, 0)
        names = [name for one in meant for name in one.names]
        found = self.counters.get(names[at])
        return f"{names[at]}: {vars(found) if found else None}"

    def meanings(self, descriptors: Sequence[Asked], hits: int) -> list[Meant]:
        overrides = self.overrides, self.now
        meant = meanings(descriptors, hits, self.rules, self.settings, self.share, overrides)
        for one in meant:
            one.grants = [
                [grant for grant in grants if grant.name not in self.left_out]
                for grants in one.grants
            ]
        return meant

    def _settle(self, meant: Sequence[Meant], now: int, lease: str, policy: str = "") -> bool:
        """Counts a request; returns whether it is denied."""
        scratch = Scratch(self.counters, now)
        give_back(meant, scratch)
        committed = scratch.copies()
        charging = Charging(scratch, self.settings, lease)
        charged = [one for one in meant if not one.refund and one.terms]
        for one in charged:
            charging.charge(one)
        denied = verdicts.denied(meant, self.settings) and not self.settings.shadow_mode
        if denied or verdicts.fails(meant, policy):
            # "A denied request charges nothing, in any descriptor", unless the rule says
            # `count_denied`. No more does a call that fails.
            scratch.go_back(committed)
            charging.only_always(charged)
        scratch.put_away()
        return denied

    def _answer(self, meant: Sequence[Meant], denied: bool) -> Answer:
        self.delay_us = telling.delay_us(meant, denied=denied)
        queue = verdicts.queue_of(meant, self.settings) if denied else ""
        return telling.answer(meant, denied=denied, queue=queue)


def _count_alone(one: Meant, away: Sequence[Away | None]) -> None:
    """Has a process count by itself those limits of a descriptor whose shard it has lost."""
    for at, each in enumerate(away):
        if each is not None:
            one.counters[at] = Alone(each.process, each.shard, one.counters[at])
            one.terms[at] = replace(one.terms[at], share=each.share)
