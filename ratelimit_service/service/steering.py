"""Overrides in the way of a request: which are in force here, and what they make of its plan.

A plan of the rules is remembered as ever. Where overrides are in force a request of their domain
is looked up here as well, by its bytes: so a change of overrides costs the plans of the rules
nothing, and of what is remembered here only that of the same domain. What must not live here: where
overrides are kept (`stores`), and what they make of a plan (`limiter.steer`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Final, NamedTuple

from ratelimit_service import limiter, wire
from ratelimit_service.errors import BadRequestError
from ratelimit_service.limiter import DomainOverrides
from ratelimit_service.model import Entry, Hit, Override
from ratelimit_service.rules.tree import Snapshot
from ratelimit_service.service.asked import Asked, banned
from ratelimit_service.service.granting import Granting, Wish
from ratelimit_service.service.memo import Memo
from ratelimit_service.service.planning import Planning
from ratelimit_service.service.refusal import Answer
from ratelimit_service.settings import Settings
from ratelimit_service.stores import Done, Store, Wanted

__all__ = ["Steered", "Steering"]

_REMEMBERED: Final = 1 << 14
_NEVER_US: Final = 1 << 62
_SHORTEST: Final = 4
"""Bytes of a request that has a domain and a descriptor."""


class Steered(NamedTuple):
    """A request with its overrides, from `since_us` until before `until_us`.

    Without `asked` no override takes any of its descriptors. `bans_end_us` is when a banned request
    may come back, if that is known.
    """

    since_us: int
    until_us: int
    asked: Asked | None = None
    grants: Sequence[Sequence[Hit]] = ()
    banned: bool = False
    bans_end_us: int | None = None


class _Domain:
    """The overrides of a domain that are in force here."""

    def __init__(self) -> None:
        self.overrides = DomainOverrides()
        self.number = 0
        """Under which its requests are remembered."""
        self.snapshot = 0
        """The rules for which the number holds."""


class Steering:
    """The overrides that this process knows."""

    def __init__(self, settings: Settings, store: Store, planning: Planning) -> None:
        self.active = 0
        """How many there are: decisions pay nothing else while this is 0."""
        self._settings = settings
        self._store = store
        self._planning = planning
        self._granting = Granting(store)
        self._domains: dict[str, _Domain] = {}
        self._likely: dict[bytes, _Domain] = {}
        """The same by their names in UTF-8, with which nearly all of their requests begin."""
        self._numbers = count(1)
        self._memo: Memo[Steered] | None = None

    def add(self, overrides: Iterable[Override]) -> None:
        """Puts these in force, from the next decision on."""
        for override in overrides:
            domain = self._domains.setdefault(override.domain, _Domain())
            self._likely[_coded(override.domain)] = domain
            domain.overrides.add(override)
            domain.number = next(self._numbers)
            self.active += 1

    def remove(self, overrides: Iterable[Override]) -> None:
        """Takes these, which were added before, out of force."""
        for override in overrides:
            domain = self._domains[override.domain]
            domain.overrides.remove(override)
            domain.number = next(self._numbers)
            self.active -= 1
            if not domain.overrides.known:
                del self._domains[override.domain]
                del self._likely[_coded(override.domain)]

    def meeting(self, domain: str, entries: Sequence[Entry], now_us: int) -> list[Override]:
        """The overrides that take a descriptor now, the first one first."""
        known = self._domains.get(domain)
        return known.overrides.meeting(entries, now_us) if known else []

    def steer(
        self,
        bodies: Sequence[bytes],
        snapshot: Snapshot,
        now_us: int,
        ask: Callable[[bytes, Snapshot], Asked | Answer],
        hurried: bool,
    ) -> tuple[list[Asked | Answer], list[Steered | None]]:
        """Plans requests with their overrides; `ask` plans by the rules alone.

        None in place of those that no override has touched. Those that are hurried are answered
        without a plan only if their domain has no overrides.
        """
        planned: list[Asked | Answer] = []
        touched: list[Steered | None] = []
        requests = self._planning.requests
        for body in bodies:
            steered = self._known(body, snapshot, now_us)
            split = wire.split_request(body) if steered is None else None
            domain = self._domain(body, split) if steered is None else None
            unsteered = steered is None and domain is None
            plan = self._planning.ask_in_haste if hurried and unsteered else ask
            asked = requests.get(body, snapshot.number) or plan(body, snapshot)
            if domain is not None and isinstance(asked, Asked):
                steered = self._steered(body, split, domain, snapshot, now_us)
            if steered is None or steered.asked is None or not isinstance(asked, Asked):
                planned.append(asked)
                touched.append(None)
            else:
                found = steered.asked
                if steered.bans_end_us is not None:
                    found = banned(found, steered.bans_end_us - now_us)
                planned.append(found)
                touched.append(steered)
        return planned, touched

    def charge(
        self,
        asked: Sequence[Asked | Answer],
        touched: Sequence[Steered | None],
        done: Done,
        wanted: Wanted,
        deadline_us: int,
    ) -> None:
        """Has the store charge those requests that have hits."""
        wishes = []
        for one, steered in zip(asked, touched, strict=True):
            if isinstance(one, Asked) and one.hits:
                if steered is None:
                    wishes.append(Wish(one.hits))
                else:
                    wishes.append(Wish(one.hits, steered.grants, banned=steered.banned))
        if any(wish.grants or wish.banned for wish in wishes):
            self._granting.charge(wishes, done, wanted, deadline_us)
        else:
            self._store.charge([wish.hits for wish in wishes], done, wanted, deadline_us)

    def _known(self, body: bytes, snapshot: Snapshot, now_us: int) -> Steered | None:
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

    def _steered(
        self,
        body: bytes,
        split: wire.Split | None,
        domain: _Domain,
        snapshot: Snapshot,
        now_us: int,
    ) -> Steered:
        if domain.snapshot != snapshot.number:
            domain.snapshot = snapshot.number
            domain.number = next(self._numbers)
        memo = self._memo
        if memo is None:
            memo = self._memo = Memo[Steered](_REMEMBERED)
        steered = Steered(now_us, _NEVER_US)
        entries = _entries(body, split)
        meetings = [domain.overrides.meeting(each, now_us) for each in entries]
        if any(meetings):
            request = wire.decode_request(body)
            found = limiter.steer(
                self._planning.plans(request, snapshot), meetings, now_us, self._settings
            )
            asked = self._planning.asked(found, request)
            grants = found.grants if any(found.grants) else ()
            steered = Steered(
                now_us, found.until_us, asked, grants, found.banned, found.bans_end_us
            )
        memo.put(body, domain.number, steered)
        return steered


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
    return [each.entries for each in wire.decode_request(body).descriptors]


def _coded(domain: str) -> bytes:
    return domain.encode("utf-8", "surrogatepass")
