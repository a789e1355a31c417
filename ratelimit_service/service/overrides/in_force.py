"""Overrides in the way of a request: which are in force here, and what they make of its plan.

A plan of the rules is remembered as always. One that no override takes has the number of the
generation of overrides in which that was found, and nothing is looked up here until they change. A
request that some override takes is looked up here, by its bytes. What must not live here: where
overrides are kept (`stores`), and what they make of a plan (`limiter.apply_overrides`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import count
from typing import Final, NamedTuple

from ratelimit_service import limiter, wire
from ratelimit_service.errors import BadRequestError
from ratelimit_service.limiter import DomainOverrides, Plan
from ratelimit_service.model import NEVER_US, Entry, Hit, Override, OverrideKind, Request
from ratelimit_service.model.refusal import Answer
from ratelimit_service.observability.bugs import Bugs
from ratelimit_service.rules.matchers.effort import EFFORT, EffortSpentError
from ratelimit_service.rules.tree import Snapshot
from ratelimit_service.service.giving_back import give_back
from ratelimit_service.service.memo import Memo
from ratelimit_service.service.overrides.granted import SpentGrants, granted
from ratelimit_service.service.planned import PlannedRequest, banned
from ratelimit_service.service.planning import Planning
from ratelimit_service.settings import Settings
from ratelimit_service.stores import BROKEN, Done, Settled, Store, Verdict

__all__ = ["OverriddenRequest", "OverridesInForce"]

_REMEMBERED: Final = 1 << 14
_MANY: Final = 64
"""Descriptors of a request that takes several turns."""

_SHORTEST: Final = 4
"""Bytes of a request that has a domain and a descriptor."""


class OverriddenRequest(NamedTuple):
    """A request with its overrides, from `since_us` until before `until_us`.

    Without `planned` no override takes any of its descriptors. `bans_end_us` is when a banned
    request may come back, if that is known.
    """

    since_us: int
    until_us: int
    planned: PlannedRequest | None = None
    granted: bool = False
    banned: bool = False
    bans_end_us: int | None = None


_UNTOUCHED: Final = OverriddenRequest(0, NEVER_US)
"""Of a request that none takes, until overrides change."""


class _Domain:
    """The overrides of a domain that are in force here."""

    def __init__(self) -> None:
        self.overrides = DomainOverrides()
        self.number = 0
        """Under which its requests are remembered."""
        self.snapshot = 0
        """The rules for which the number holds."""
        self.descriptors: Counter[bytes] = Counter()
        """Plain descriptors that exact overrides take, and how many take each."""
        self.others = 0
        """How many overrides may take other plain descriptors than these."""

    def note(self, override: Override, change: int) -> None:
        """Hears that there is one more that takes its descriptor, or one less."""
        plain = wire.plain_descriptor(override.entries) if override.exact else b""
        if not plain:
            self.others += change
        elif self.descriptors[plain] + change:
            self.descriptors[plain] += change
        else:
            del self.descriptors[plain]


class OverridesInForce:
    """The overrides that this process knows."""

    def __init__(self, settings: Settings, store: Store, planning: Planning) -> None:
        self.active = 0
        """How many there are: decisions pay nothing else while this is 0."""
        self.generation = 0
        """Another number after each change, and never 0 while there are any."""
        self._settings = settings
        self._store = store
        self._planning = planning
        self._bugs = Bugs()
        self._spent = SpentGrants()
        self._domains: dict[str, _Domain] = {}
        self._likely: dict[bytes, _Domain] = {}
        """The same by their names in UTF-8, with which nearly all of their requests begin."""
        self._numbers = count(1)
        self._memo: Memo[OverriddenRequest] | None = None

    def add(self, overrides: Iterable[Override]) -> None:
        """Puts these in force, from the next decision on."""
        for override in overrides:
            domain = self._domains.setdefault(override.domain, _Domain())
            self._likely[_coded(override.domain)] = domain
            domain.overrides.add(override)
            domain.note(override, 1)
            self._change(domain, 1)

    def remove(self, overrides: Iterable[Override]) -> None:
        """Takes these, which were added before, out of force."""
        for override in overrides:
            domain = self._domains[override.domain]
            domain.overrides.remove(override)
            domain.note(override, -1)
            self._change(domain, -1)
            if not domain.overrides.known:
                del self._domains[override.domain]
                del self._likely[_coded(override.domain)]

    def _change(self, domain: _Domain, change: int) -> None:
        """Hears of one override more or less in a domain."""
        domain.number = self.generation = next(self._numbers)
        self.active += change
        self._planning.untouched = self._untouched_of if self.active else None

    def meeting(self, domain: str, entries: Sequence[Entry], now_us: int) -> list[Override]:
        """The overrides that take a descriptor now, the first one first."""
        known = self._domains.get(domain)
        return known.overrides.meeting(entries, now_us) if known else []

    def without_bans(self, body: bytes, plans: Sequence[Plan], now_us: int) -> Sequence[Plan]:
        """What overrides make of a request's plans where bans do nothing."""
        request = wire.decode_request(body)
        meetings = [
            [
                each
                for each in self.meeting(request.domain, descriptor.entries, now_us)
                if each.kind is not OverrideKind.BAN
            ]
            for descriptor in request.descriptors
        ]
        return limiter.apply_overrides(plans, meetings, now_us, self._settings).plans

    def apply(
        self,
        bodies: Sequence[bytes],
        planned: list[PlannedRequest | Answer],
        snapshot: Snapshot,
        now_us: int,
    ) -> list[OverriddenRequest | None] | None:
        """Has overrides change requests that are planned by the rules alone, in their list.

        Tells of each what has changed it, None where nothing has; None if nothing has changed any.
        """
        touched: list[OverriddenRequest | None] | None = None
        for index, one in enumerate(planned):
            if isinstance(one, PlannedRequest) and one.untouched != self.generation:
                overridden = self._overridden(bodies[index], one, snapshot, now_us)
                if overridden.planned is not None:
                    found = overridden.planned
                    if overridden.bans_end_us is not None:
                        found = banned(found, overridden.bans_end_us - now_us)
                    planned[index] = found
                    if touched is None:
                        touched = [None] * len(planned)
                    touched[index] = overridden
        return touched

    def charged(
        self,
        planned: Sequence[PlannedRequest | Answer],
        touched: Sequence[OverriddenRequest | None],
        done: Done,
    ) -> tuple[list[Sequence[Hit]], Done]:
        """What the store is to charge of those requests that have hits, and who is to hear of it.

        A request with grants gets one outcome for each limit, and one that is banned is denied.
        """
        charged = [
            (self._spent.without(one.hits) if by and by.granted else one.hits, by)
            for one, by in zip(planned, touched, strict=True)
            if isinstance(one, PlannedRequest) and one.hits
        ]
        if any(by and (by.granted or by.banned) for _, by in charged):
            done = partial(self._settled, charged, done)
        return [hits for hits, _ in charged], done

    def _settled(
        self,
        charged: Sequence[tuple[Sequence[Hit], OverriddenRequest | None]],
        done: Done,
        results: list[Settled],
    ) -> None:
        """Hands on what requests came to; if there are not as many, nobody can tell whose it is."""
        for index, (hits, overridden) in enumerate(charged if len(results) == len(charged) else ()):
            settled = results[index]
            try:
                if overridden and overridden.granted:
                    results[index] = granted(hits, settled)
                    self._spent.learn(hits, settled)
                elif overridden and overridden.banned and settled.verdict.passes:
                    results[index] = Settled(settled.outcomes, Verdict.DENIED)
            except Exception as error:
                self._bugs.note("what a grant was charged could not be read", error)
                give_back(self._store, hits, settled, self._bugs.note)
                results[index] = BROKEN
        done(results)

    def _known(self, body: bytes, snapshot: Snapshot, now_us: int) -> OverriddenRequest | None:
        """What is remembered of a request, if it begins with the name of its domain.

        Whether it is of that domain was found out when it was remembered.
        """
        if self._memo is None or len(body) < _SHORTEST or body[1] & 0x80:
            return None
        domain = self._likely.get(body[2 : 2 + body[1]])
        if domain is None or domain.snapshot != snapshot.number:
            return None
        known = self._memo.get(body, domain.number)
        return known if known is not None and known.since_us <= now_us < known.until_us else None

    def _domain(self, body: bytes, split: wire.Split | None) -> _Domain | None:
        try:
            name = split.domain if split is not None else wire.decode_request(body).domain
        except (BadRequestError, UnicodeDecodeError):
            return None  # it is refused
        return self._domains.get(name)

    def _overridden(
        self, body: bytes, planned: PlannedRequest, snapshot: Snapshot, now_us: int
    ) -> OverriddenRequest:
        """What overrides make of a request."""
        overridden = self._known(body, snapshot, now_us)
        if overridden is None:
            split = wire.split_request(body)
            domain = self._domain(body, split)
            overridden = self._look(body, split, domain, snapshot, now_us) if domain else _UNTOUCHED
        if overridden is _UNTOUCHED:
            planned.untouched = self.generation
        return overridden

    def _look(
        self,
        body: bytes,
        split: wire.Split | None,
        domain: _Domain,
        snapshot: Snapshot,
        now_us: int,
    ) -> OverriddenRequest:
        """Compares a request with the overrides of its domain, and remembers what is found."""
        if domain.snapshot != snapshot.number:
            domain.snapshot = snapshot.number
            domain.number = next(self._numbers)
        memo = self._memo
        if memo is None:
            memo = self._memo = Memo[OverriddenRequest](_REMEMBERED)
        overridden = OverriddenRequest(now_us, NEVER_US)
        taking = _taking(body, split, domain)
        meetings = [limiter.holding(each, now_us) for each in taking]
        if any(meetings):
            request = _request(body)
            plans = self._planning.plans(request, snapshot)
            for index, plan in enumerate(plans):
                # A ban says nothing of hits that are given back, also where nothing counts them.
                if request.descriptors[index].is_negative_hits and not plan.hits:
                    meetings[index] = []
            found = limiter.apply_overrides(plans, meetings, now_us, self._settings)
            changed = self._planning.planned(found, request)
            overridden = OverriddenRequest(
                now_us, found.until_us, changed, found.granted, found.banned, found.bans_end_us
            )
        elif not any(taking):
            overridden = _UNTOUCHED
        memo.put(body, domain.number, overridden)
        return overridden

    def _untouched_of(self, split: wire.Split) -> int:
        """What is known of a request of plain descriptors, without reading its entries."""
        domain = self._likely.get(split.name)
        if domain is not None:
            if domain.others:
                return 0
            taken, at = domain.descriptors, split.descriptor_at
            for part in split.parts:
                if part[at : at + 2 + part[at + 1]] in taken:
                    return 0
        return self.generation


def _taking(body: bytes, split: wire.Split | None, domain: _Domain) -> Sequence[Sequence[Override]]:
    """The overrides that take each descriptor, also if they have ended.

    Raises EffortSpentError where they take some of many: to plan these has a turn of its own.
    """
    name = (domain.number, body)
    found = EFFORT.results.get(name)
    if found is None:
        found = [domain.overrides.taking(each) for each in _entries(body, split)]
        if EFFORT.bounded and len(found) > _MANY and any(found):
            EFFORT.results[name] = found
            EFFORT.rest = 0
            raise EffortSpentError
    return found


def _entries(body: bytes, split: wire.Split | None) -> list[Sequence[Entry]]:
    """The entries of each descriptor of a request; decoded only if it is unusual."""
    if split is not None:
        found: list[Sequence[Entry]] = []
        for part in split.parts:
            entries = wire.plain_entries(part, split.descriptor_at)
            if entries is None:
                break
            found.append(entries)
        else:
            return found
    return [each.entries for each in _request(body).descriptors]


def _request(body: bytes) -> Request:
    """The request, which is read once however many turns it takes."""
    name = (Request, body)
    found = EFFORT.results.get(name)
    if found is None:
        found = (wire.decode_request(body),)
        if EFFORT.bounded:
            EFFORT.results[name] = found
            EFFORT.rest -= len(body)
    request: Request = found[0]
    return request


def _coded(domain: str) -> bytes:
    return domain.encode("utf-8", "surrogatepass")
