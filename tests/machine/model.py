"""The independent model: what a request comes to by the documents, and by nothing else.

Each rule stands beside the sentence of `docs/rules.md` that it comes from. Nothing of the
service is imported: requests are `Asked`, what they mean is `meaning`'s, and counting is
`counting`'s. It is long because one request meets all of these rules, in the order in which they
stand here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

from tests.machine.answers import (
    FAILED,
    Answer,
    Asked,
    Counted,
    Shown,
    Status,
    by_policy,
    partly,
    seconds,
    shown,
    would_pass,
)
from tests.machine.counting import Counter, Leases, counter_of
from tests.machine.meaning import (
    Alone,
    Away,
    Grant,
    Identity,
    Meant,
    Override,
    Rule,
    Settings,
    meanings,
)
from tests.machine.terms import Terms

UNLIMITED = 2**32 - 1


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
        return self._answer(meant, denied, now)

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
        told = self._answer(meant, denied, now)
        if _fails(meant, policy):
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
        denied = self._denied(meant) and not self.settings.shadow_mode
        return by_policy(Answer(denied, tuple(map(status, meant)), (), False, None, False, ()))

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
                assert not self._always(one, terms), terms
                assert terms.algorithm != "concurrency", terms
        return self._answer(meant, denied=True, now=0)

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

    # What is counted.

    def _always(self, one: Meant, terms: Terms) -> bool:
        """Whether hits of a denied request count too.

        "Rules with `quota_mode: true` count every hit (as with `count_denied`; buckets and leases
        take only what has room)"; "`--count-denied all` does this to every rule", and `reported`
        to every descriptor that brings a number of its own.
        """
        if one.first:
            return False  # "`--count-denied` and `--quota-mode` do not touch such a list."
        return (
            terms.count_denied or one.quota or self.settings.count_denied or one.reported
        ) and terms.algorithm != "concurrency"

    def _settle(self, meant: Sequence[Meant], now: int, lease: str, policy: str = "") -> bool:
        scratch: dict[Identity, Counter] = {}

        def counter(name: Identity, terms: Terms) -> Counter:
            if name not in scratch:
                known = self.counters.get(name)
                scratch[name] = known.copy() if known else counter_of(terms)
            scratch[name].terms = terms
            scratch[name].look(now)
            return scratch[name]

        _give_back(meant, counter, now)
        committed = {name: each.copy() for name, each in scratch.items()}

        charging = [one for one in meant if not one.refund and one.terms]
        for one in charging:
            before = {name: each.copy() for name, each in scratch.items()}
            if one.first:
                _charge_first(one, counter, now, lease)
            else:
                self._charge_all(one, counter, now, lease)
            if one.over and (one.shadow or (self.settings.shadow_mode and not one.quota)):
                # Limits of one descriptor "are charged all or none", and a shadow denies nothing.
                # "A rule that is both is a shadow"; other quotas "count every hit".
                scratch.clear()
                scratch.update(before)
                self._only_always([one], counter, now, lease)
        denied = self._denied(meant)
        if (denied and not self.settings.shadow_mode) or _fails(meant, policy):
            # "A denied request charges nothing, in any descriptor", unless the rule says
            # `count_denied`. No more does a call that fails.
            scratch.clear()
            scratch.update(committed)
            self._only_always(charging, counter, now, lease)
        for name, each in scratch.items():
            if each.touched:
                each.touched = False
                self.counters[name] = each
            elif name in self.counters:
                self.counters[name].terms = each.terms
        return denied and not self.settings.shadow_mode

    def _charge_all(
        self, one: Meant, counter: Callable[[Identity, Terms], Counter], now: int, lease: str
    ) -> None:
        """Charges all limits of a descriptor."""
        for name, terms, hits, grants in zip(
            one.counters, one.terms, one.hits, one.grants, strict=True
        ):
            taken = _spend(one, grants, counter, now, hits)
            more = sum(each.remaining for each in one.counted[len(one.counted) - len(grants) :])
            at = counter(name, terms)
            one.delays.append(at.reset(terms, now) if terms.max_wait_us else 0)
            passed = at.passes(terms, now, hits)
            remaining = at.remaining(terms, now)
            if taken:
                # "They are spent before the limit's own, and are not counted by it."
                own = _look(at, terms, now)
                one.counted.append(own)
                found = own._replace(remaining=min(UNLIMITED, remaining + more), counted=hits)
                one.results.append(found)
                continue
            wait = 0 if passed else at.wait(terms, now, hits)
            counted = hits if passed or (self._always(one, terms) and _any(at)) else 0
            at.take(terms, now, counted, lease)
            if passed:
                own = Counted(False, remaining - hits, at.reset(terms, now), counted)
            else:
                own = Counted(True, remaining, wait, counted)
            one.counted.append(own)
            # "The remaining hits that answers show have those of all grants in them."
            both = min(UNLIMITED, own.remaining + more)
            one.results.append(own if own.over else own._replace(remaining=both))

    def _only_always(
        self,
        ones: Sequence[Meant],
        counter: Callable[[Identity, Terms], Counter],
        now: int,
        lease: str,
    ) -> None:
        """Counts what counts in any case; what then is left is what is shown."""
        for one in ones:
            places = _places(one)
            for place, (name, terms, hits) in zip(
                places, zip(one.counters, one.terms, one.hits, strict=True), strict=True
            ):
                at, own = counter(name, terms), one.counted[place]
                granted = any(one.counted[each].counted for each in _before(one, place))
                taken = self._always(one, terms) and (at.passes(terms, now, hits) or _any(at))
                taken = taken and not granted
                at.take(terms, now, hits if taken else 0, lease)
                one.counted[place] = own._replace(counted=hits if taken else 0)
        for one in ones:
            for limit, place in enumerate(_places(one)):
                grants = one.grants[limit]
                for at_grant, grant in enumerate(grants, place - len(grants)):
                    at = counter(grant.name, grant.terms)
                    one.counted[at_grant] = one.counted[at_grant]._replace(
                        counted=0,
                        remaining=at.remaining(grant.terms, now),
                        reset_us=at.reset(grant.terms, now),
                    )
                own, terms = one.counted[place], one.terms[limit]
                if not own.over:
                    at = counter(one.counters[limit], terms)
                    own = own._replace(
                        remaining=at.remaining(terms, now), reset_us=at.reset(terms, now)
                    )
                    one.counted[place] = own
                    more = sum(each.remaining for each in one.counted[place - len(grants) : place])
                    own = own._replace(remaining=min(UNLIMITED, own.remaining + more))
                one.results[limit] = own

    def _denied(self, meant: Sequence[Meant]) -> bool:
        """Whether the request is denied.

        "Rules with `quota_mode: true` [...] deny a request only when all quota rules that it meets
        are over. Other rules deny alone." "A rule that is both is a shadow: it counts as a quota
        that passed. What gives back hits is no quota beside others." Under `--quota-mode`
        "descriptors that meet no rule count as quotas that passed, those of unlimited rules not
        at all".
        """
        return bool(self._denying(meant)) or any(one.banned for one in meant)

    def _denying(self, meant: Sequence[Meant]) -> list[Meant]:
        """The descriptors that deny the request, the one that decides first."""
        enforced = [one for one in meant if one.over and not one.shadow and not one.quota]
        quotas = [
            one for one in meant if one.quota and (one.terms or one.uncounted) and not one.refund
        ]
        passed = [one for one in quotas if one.shadow or not one.over]
        passed += [one for one in meant if self.settings.quota_mode and one.without_rule]
        return enforced if passed else enforced + quotas

    def _queue(self, meant: Sequence[Meant]) -> str:
        """The rule into whose queue a denied request goes.

        "A request is queued if every rule that denies it says `on_limit: enqueue`. It goes into
        the queue of the rule that decided [...]. A peek [...] is not queued. What a ban, a failure
        policy (also `local`) or lack of time denies is not queued, nor is what a limit that the
        caller brought denies."
        """
        denying = self._denying(meant)
        queued = all(
            one.rule is not None and one.rule.get("on_limit") == "enqueue" and one.over_by_count
            for one in denying
        )
        asked_for = any(hits for one in denying for hits in one.hits)
        return denying[0].path if denying and queued and asked_for else ""

    # What is told.

    def _answer(self, meant: Sequence[Meant], denied: bool, now: int) -> Answer:
        limits = tuple(
            Shown(place, would_pass(result, terms), seconds(result.reset_us), result.over)
            for place, one in enumerate(meant)
            if len(one.terms) > 1 or any(map(partly, one.results))
            for terms, result in zip(one.terms, one.results, strict=True)
            if not one.twice(terms)
        )
        passing = [
            (terms, result, delay, hits)
            for one in meant
            if not one.refund and not denied
            for place, (terms, result, delay, hits) in enumerate(
                zip(one.terms, one.results, one.delays, one.hits, strict=True)
            )
            if not result.over and (not one.first or place == one.payer)
        ]
        # "the code is OK, and answers above the limit have the header x-ratelimit-warning"
        soft = any(result.remaining < terms.soft for terms, result, _, _ in passing)
        # "an admitted hit has a delay, until what was before it has leaked"
        delays = [
            delay
            for terms, result, delay, hits in passing
            if terms.max_wait_us and (result.counted or not hits)
        ]
        self.delay_us = max(delays, default=0)
        leased = any(
            terms.algorithm == "concurrency" and result.counted for terms, result, _, _ in passing
        )
        return Answer(
            denied,
            tuple(map(status, meant)),
            limits,
            soft,
            -(-self.delay_us // 1_000) if delays else None,
            leased,
            tuple(result for one in meant for result in one.counted),
            queue=self._queue(meant) if denied else "",
            paid=()
            if denied
            else tuple(one.terms[one.payer].name for one in meant if one.payer is not None),
        )


def _charge_first(
    one: Meant, counter: Callable[[Identity, Terms], Counter], now: int, lease: str
) -> None:
    """Charges the first limit of a list that has room.

    "asked in their order. The first that has room for all hits is charged, and no other. The
    request is denied only if none has room, and then none is charged."
    """
    one.delays = [0] * len(one.terms)
    asked = list(zip(one.counters, one.terms, one.hits, strict=True))
    rooms = [counter(name, terms).passes(terms, now, hits) for name, terms, hits in asked]
    payer = rooms.index(True) if True in rooms else -1
    if payer >= 0:
        name, terms, hits = asked[payer]
        counter(name, terms).take(terms, now, hits, lease)
    for place, (name, terms, hits) in enumerate(asked):
        at = counter(name, terms)
        remaining = at.remaining(terms, now)
        if payer < 0:
            one.results.append(Counted(True, remaining, at.wait(terms, now, hits), 0))
        else:
            counted = hits if place == payer else 0
            one.results.append(Counted(False, remaining, at.reset(terms, now), counted))
    one.counted = list(one.results)


def _count_alone(one: Meant, away: Sequence[Away | None]) -> None:
    """Has a process count by itself those limits of a descriptor whose shard it has lost."""
    for at, each in enumerate(away):
        if each is not None:
            one.counters[at] = Alone(each.process, each.shard, one.counters[at])
            one.terms[at] = replace(one.terms[at], share=each.share)


def _give_back(
    meant: Sequence[Meant], counter: Callable[[Identity, Terms], Counter], now: int
) -> None:
    """Applies what is given back."""
    # "With `is_negative_hits` the hits are given back [...] always answered OK, and applied
    # before and even if the rest of the request is denied."
    for one in meant:
        if one.refund:
            for name, terms, hits in zip(one.counters, one.terms, one.hits, strict=True):
                at = counter(name, terms)
                given = at.give(terms, now, hits, one.lease)
                one.results.append(
                    Counted(False, at.remaining(terms, now), at.reset(terms, now), given)
                )
            one.counted = list(one.results)


def _spend(
    one: Meant,
    grants: Sequence[Grant],
    counter: Callable[[Identity, Terms], Counter],
    now: int,
    hits: int,
) -> bool:
    """Has the first grant with room take the hits; returns whether there is one.

    "A request with several hits takes them from the grant or from the limit, not some from each."
    """
    taken = False
    for grant in grants:
        terms = grant.terms
        at = counter(grant.name, terms)
        if not taken and at.passes(terms, now, hits):
            at.take(terms, now, hits, "")
            one.counted.append(Counted(False, at.remaining(terms, now), at.reset(terms, now), hits))
            taken = True
        elif taken:
            one.counted.append(_look(at, terms, now))
        else:
            left = at.remaining(terms, now)
            one.counted.append(Counted(False, left, at.wait(terms, now, hits), 0))
    return taken


def _look(at: Counter, terms: Terms, now: int) -> Counted:
    """What is told of a counter that is only looked at."""
    passes = at.passes(terms, now, 0)
    until = at.reset(terms, now) if passes else at.wait(terms, now, 0)
    return Counted(False, at.remaining(terms, now), until, 0)


def _places(one: Meant) -> list[int]:
    """Where the limits' own results are in `counted`."""
    return [at - 1 for at in accumulate(len(grants) + 1 for grants in one.grants)]


def _before(one: Meant, place: int) -> range:
    """Where the results of a limit's grants are, which stand before its own."""
    limit = _places(one).index(place)
    return range(place - len(one.grants[limit]), place)


def _fails(meant: Sequence[Meant], policy: str) -> bool:
    """Whether the call fails: a limit has no store, and none beside it is known to be over."""
    return policy == "error" and any(one.denied_without and not one.known_over for one in meant)


def _any(counter: Counter) -> bool:
    """Whether hits without room can be counted at all."""
    return not counter.takes_only_what_fits


def status(one: Meant) -> Status:
    """What a descriptor is told.

    "The descriptor has one status: that of the limit that denies, of several the one with the
    longest wait; else that of the limit with the fewest hits left; else the first."
    """
    if one.unlimited or one.exempt:
        return Status(over=one.banned, remaining=0 if one.banned else UNLIMITED)
    if not one.terms:
        return Status(over=one.banned)
    pairs = list(zip(one.terms, one.results, strict=True))
    if one.first:
        return _status_of(one, *pairs[_speaking(one)])
    over = [pair for pair in pairs if pair[1].over]
    if over:
        terms, result = max(over, key=lambda pair: pair[1].reset_us)
    else:
        terms, result = min(pairs, key=lambda pair: shown(pair[1], pair[0]))
    return _status_of(one, terms, result)


def _speaking(one: Meant) -> int:
    """The limit whose status a list has that pays in turn.

    "The descriptor's status is that of the limit that paid"; "A denied descriptor shows the limit
    that has room again first". Where nothing was charged it is the first with room.
    """
    results = one.results
    places = range(len(results))
    paid = [place for place in places if results[place].counted]
    needed = 1 if one.refund else max(1, one.hits[0])
    fit = [at for at in places if not results[at].over and results[at].remaining >= needed]
    return next(iter([*paid, *fit]), min(places, key=lambda at: results[at].reset_us))


def _status_of(one: Meant, terms: Terms, result: Counted) -> Status:
    return Status(
        result.over and not one.shadow,
        terms.requests_per_unit,
        shown(result, terms),
        seconds(result.reset_us),
    )
