"""What is counted of a request by the documents, and in which counters."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from tests.machine.answers import UNLIMITED, Counted
from tests.machine.counting import Counter, counter_of
from tests.machine.meaning import Grant, Identity, Meant, Settings
from tests.machine.terms import Terms

Counters = dict[Identity, Counter]


class Scratch:
    """Copies of the counters that a request looks at, at one moment."""

    def __init__(self, counters: Counters, now: int) -> None:
        self.now = now
        self._counters = counters
        self._copies: Counters = {}

    def counter(self, name: Identity, terms: Terms) -> Counter:
        """The copy of a counter, looked at by a limit."""
        if name not in self._copies:
            known = self._counters.get(name)
            self._copies[name] = known.copy() if known else counter_of(terms)
        self._copies[name].terms = terms
        self._copies[name].look(self.now)
        return self._copies[name]

    def copies(self) -> Counters:
        """All as they are now, to go back to."""
        return {name: each.copy() for name, each in self._copies.items()}

    def go_back(self, copies: Counters) -> None:
        """Makes all as they were."""
        self._copies = copies

    def put_away(self) -> None:
        """Makes all the counters what their copies are that have changed."""
        for name, each in self._copies.items():
            known = self._counters.get(name)
            if each.touched or (known is None and each.holds):
                each.touched = False
                self._counters[name] = each
            elif known is not None:
                known.terms, known.holds = each.terms, each.holds


class Charging:
    """Charges one request; leases that it takes get the id `lease`."""

    def __init__(self, scratch: Scratch, settings: Settings, lease: str) -> None:
        self._scratch = scratch
        self._settings = settings
        self._lease = lease
        self._granted: set[tuple[int, int]] = set()
        """The limits whose hits a grant has taken, by their descriptors and places."""

    def charge(self, one: Meant) -> None:
        """Charges all limits of a descriptor, or the first that has room."""
        before = self._scratch.copies()
        if one.first:
            self._charge_first(one)
        else:
            self._charge_all(one)
        if one.over and (one.shadow or (self._settings.shadow_mode and not one.quota)):
            # Limits of one descriptor "are charged all or none", and a shadow denies nothing.
            # "A rule that is both is a shadow"; other quotas "count every hit".
            self._scratch.go_back(before)
            self.only_always([one])

    def _charge_all(self, one: Meant) -> None:
        """Charges all limits of a descriptor."""
        now = self._scratch.now
        for name, terms, hits, grants in zip(
            one.counters, one.terms, one.hits, one.grants, strict=True
        ):
            taken = self._spend(one, grants, hits)
            more = sum(each.remaining for each in one.counted[len(one.counted) - len(grants) :])
            at = self._scratch.counter(name, terms)
            one.delays.append(at.reset(terms, now) if terms.max_wait_us else 0)
            passed = at.passes(terms, now, hits)
            remaining = at.remaining(terms, now)
            if taken:
                # "They are spent before the limit's own, and are not counted by it."
                own = _look(at, terms, now)
                self._granted.add((id(one), len(one.counted)))
                one.counted.append(own)
                found = own._replace(remaining=min(UNLIMITED, remaining + more), counted=hits)
                one.results.append(found)
                continue
            wait = 0 if passed else at.wait(terms, now, hits)
            counted = hits if passed or (self._always(one, terms) and _any(at)) else 0
            at.take(terms, now, counted, self._lease)
            if passed:
                own = Counted(False, remaining - hits, at.reset(terms, now), counted)
            else:
                own = Counted(True, remaining, wait, counted)
            one.counted.append(own)
            # "The remaining hits that answers show have those of all grants in them."
            both = min(UNLIMITED, own.remaining + more)
            one.results.append(own if own.over else own._replace(remaining=both))

    def only_always(self, ones: Sequence[Meant]) -> None:
        """Counts what counts in any case; what then is left is what is shown."""
        now = self._scratch.now
        for one in ones:
            places = _places(one)
            for place, (name, terms, hits) in zip(
                places, zip(one.counters, one.terms, one.hits, strict=True), strict=True
            ):
                at, own = self._scratch.counter(name, terms), one.counted[place]
                taken = self._always(one, terms) and (at.passes(terms, now, hits) or _any(at))
                taken = taken and (id(one), place) not in self._granted
                at.take(terms, now, hits if taken else 0, self._lease)
                one.counted[place] = own._replace(counted=hits if taken else 0)
        for one in ones:
            for limit, place in enumerate(_places(one)):
                grants = one.grants[limit]
                for at_grant, grant in enumerate(grants, place - len(grants)):
                    at = self._scratch.counter(grant.name, grant.terms)
                    one.counted[at_grant] = one.counted[at_grant]._replace(
                        counted=0,
                        remaining=at.remaining(grant.terms, now),
                        reset_us=at.reset(grant.terms, now),
                    )
                own, terms = one.counted[place], one.terms[limit]
                if not own.over:
                    at = self._scratch.counter(one.counters[limit], terms)
                    own = own._replace(
                        remaining=at.remaining(terms, now), reset_us=at.reset(terms, now)
                    )
                    one.counted[place] = own
                    more = sum(each.remaining for each in one.counted[place - len(grants) : place])
                    own = own._replace(remaining=min(UNLIMITED, own.remaining + more))
                one.results[limit] = own

    def _always(self, one: Meant, terms: Terms) -> bool:
        return counts_always(one, terms, self._settings)

    def _charge_first(self, one: Meant) -> None:
        """Charges the first limit of a list that has room.

        "asked in their order. The first that has room for all hits is charged, and no other. The
        request is denied only if none has room, and then none is charged."
        """
        now, counter = self._scratch.now, self._scratch.counter
        one.delays = [0] * len(one.terms)
        asked = list(zip(one.counters, one.terms, one.hits, strict=True))
        rooms = [counter(name, terms).passes(terms, now, hits) for name, terms, hits in asked]
        payer = rooms.index(True) if True in rooms else -1
        if payer >= 0:
            name, terms, hits = asked[payer]
            counter(name, terms).take(terms, now, hits, self._lease)
        for place, (name, terms, hits) in enumerate(asked):
            at = counter(name, terms)
            remaining = at.remaining(terms, now)
            if payer < 0:
                one.results.append(Counted(True, remaining, at.wait(terms, now, hits), 0))
            else:
                counted = hits if place == payer else 0
                one.results.append(Counted(False, remaining, at.reset(terms, now), counted))
        one.counted = list(one.results)

    def _spend(self, one: Meant, grants: Sequence[Grant], hits: int) -> bool:
        """Has the first grant with room take the hits; returns whether there is one.

        "A request with several hits takes them from the grant or from the limit, not some from
        each."
        """
        now, taken = self._scratch.now, False
        for grant in grants:
            terms = grant.terms
            at = self._scratch.counter(grant.name, terms)
            if taken:
                one.counted.append(_look(at, terms, now))
            elif at.passes(terms, now, hits):
                at.take(terms, now, hits, "")
                left = at.remaining(terms, now)
                one.counted.append(Counted(False, left, at.reset(terms, now), hits))
                taken = True
            else:
                left = at.remaining(terms, now)
                one.counted.append(Counted(False, left, at.wait(terms, now, hits), 0))
        return taken


def give_back(meant: Sequence[Meant], scratch: Scratch) -> None:
    """Applies what is given back.

    "With `is_negative_hits` the hits are given back [...] always answered OK, and applied
    before and even if the rest of the request is denied."
    """
    now = scratch.now
    for one in meant:
        if one.refund:
            for name, terms, hits in zip(one.counters, one.terms, one.hits, strict=True):
                at = scratch.counter(name, terms)
                given = at.give(terms, now, hits, one.lease)
                one.results.append(
                    Counted(False, at.remaining(terms, now), at.reset(terms, now), given)
                )
            one.counted = list(one.results)


def counts_always(one: Meant, terms: Terms, settings: Settings) -> bool:
    """Whether hits of a denied request count too.

    "Rules with `quota_mode: true` count every hit (as with `count_denied`; buckets and leases
    take only what has room)"; "`--count-denied all` does this to every rule", and `reported`
    to every descriptor that brings a number of its own.
    """
    if one.first:
        return False  # "`--count-denied` and `--quota-mode` do not touch such a list."
    return (
        terms.count_denied or one.quota or settings.count_denied or one.reported
    ) and terms.algorithm != "concurrency"


def _look(at: Counter, terms: Terms, now: int) -> Counted:
    """What is told of a counter that is only looked at."""
    passes = at.passes(terms, now, 0)
    until = at.reset(terms, now) if passes else at.wait(terms, now, 0)
    return Counted(False, at.remaining(terms, now), until, 0)


def _places(one: Meant) -> list[int]:
    """Where the limits' own results are in `counted`."""
    return [at - 1 for at in accumulate(len(grants) + 1 for grants in one.grants)]


def _any(counter: Counter) -> bool:
    """Whether hits without room can be counted at all."""
    return not counter.takes_only_what_fits
