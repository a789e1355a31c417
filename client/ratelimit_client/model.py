"""What is asked and what is answered. Frozen values; nothing here knows how they travel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from ratelimit_client.errors import BadRequestError, LimiterError

__all__ = [
    "LEASE",
    "Call",
    "Decision",
    "DeniedError",
    "Descriptor",
    "Entries",
    "Limit",
    "Reason",
    "Request",
    "Status",
    "Unit",
    "Value",
]

Value = str | int
"""The value of an entry. A number is sent as its digits."""

Entries = Mapping[str, Value]
"""The entries of one descriptor, in their order."""

MAX_COST: Final = 2**32 - 1

LEASE: Final = "lease"
"""The key of the entry that names a lease to be given back."""

_LEASE_HEADER: Final = "x-ratelimit-lease"
_DELAY_HEADER: Final = "x-ratelimit-delay-ms"


class Unit(StrEnum):
    """What a limit's window is counted in. A month has 30 days, a year 365."""

    SECOND = "second"
    MINUTE = "minute"
    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    MONTH = "month"
    YEAR = "year"


_SECONDS: Final = {
    Unit.SECOND: 1,
    Unit.MINUTE: 60,
    Unit.HOUR: 3_600,
    Unit.DAY: 86_400,
    Unit.WEEK: 604_800,
    Unit.MONTH: 2_592_000,
    Unit.YEAR: 31_536_000,
}


@dataclass(frozen=True, slots=True)
class Limit:
    """So many requests in a window of so many units; `name` is the rule's, if it has one."""

    requests: int
    unit: Unit
    multiplier: int = 1
    name: str = ""

    @property
    def seconds(self) -> int:
        """The length of the window."""
        return _SECONDS[self.unit] * self.multiplier


@dataclass(frozen=True, slots=True)
class Descriptor:
    """What one rule is asked about: entries, and what the caller says beside them.

    `cost` is for this descriptor alone, in place of the request's; 0 only looks. `limit` takes
    the place of the rule's. Raises BadRequestError for what the service would refuse.
    """

    entries: tuple[tuple[str, str], ...]
    cost: int | None = None
    limit: Limit | None = None
    refund: bool = False

    def __post_init__(self) -> None:
        for key, value in self.entries:
            if not key:
                raise BadRequestError(f"an entry has no key: {self.entries}")
            _check_text(key, "the key")
            _check_text(value, f"the value of {key!r}")
        if not self.entries:
            raise BadRequestError("a descriptor has no entries: give at least one, as user='alice'")
        if self.cost is not None:
            check_cost(self.cost)

    @classmethod
    def of(
        cls,
        entries: Entries | Iterable[tuple[str, Value]],
        *,
        cost: int | None = None,
        limit: Limit | None = None,
    ) -> Descriptor:
        """From a mapping, or from pairs where a key stands twice."""
        pairs = entries.items() if isinstance(entries, Mapping) else entries
        return cls(tuple((key, _value(key, value)) for key, value in pairs), cost, limit)


def _value(key: str, value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise BadRequestError(f"the value of {key!r} is {value!r}: give a text or a whole number")


def _check_text(text: object, what: str) -> None:
    if not isinstance(text, str):
        raise BadRequestError(f"{what} is {text!r}: give a text")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadRequestError(f"{what} is {text!r}, which is no Unicode text") from error


def check_cost(cost: int) -> None:
    """Raises BadRequestError for a cost that no request can have."""
    if not 0 <= cost <= MAX_COST:
        raise BadRequestError(
            f"the cost is {cost}: 0 (only look) to {MAX_COST} are allowed; refund() gives hits back"
        )


class Call(StrEnum):
    """What is done with a request."""

    DECIDE = "decide"
    RESERVE = "reserve"
    SETTLE = "settle"


@dataclass(frozen=True, slots=True)
class Request:
    """Descriptors that pass together or not at all; `cost` is for those that have none.

    One that reserves is held for `ttl` seconds, 0 for as long as the service lets. One that settles
    names its `reservation`, and costs what was used.
    """

    domain: str
    descriptors: tuple[Descriptor, ...]
    cost: int = 1
    call: Call = Call.DECIDE
    reservation: str = ""
    ttl: float = 0.0

    def __post_init__(self) -> None:
        if not self.domain:
            raise BadRequestError("the domain is empty: name the domain of the rules to apply")
        _check_text(self.domain, "the domain")
        if not self.descriptors:
            raise BadRequestError("nothing is asked about: give entries, as user='alice'")
        check_cost(self.cost)

    def costing(self, cost: int) -> Request:
        """The same, but without the descriptors that have a cost of their own."""
        rest = tuple(descriptor for descriptor in self.descriptors if descriptor.cost is None)
        return Request(self.domain, rest, cost)

    def given_back(self, lease: str = "") -> Request:
        """What takes it back: all of it, or only the lease of that name."""
        entry = ((LEASE, lease),) if lease else ()
        descriptors = tuple(
            replace(descriptor, entries=descriptor.entries + entry, refund=True)
            for descriptor in self.descriptors
        )
        return replace(self, descriptors=descriptors)


class Reason(StrEnum):
    """Why a request was allowed or denied."""

    WITHIN_LIMIT = "within_limit"
    OVER_LIMIT = "over_limit"
    NO_LIMIT = "no_limit"
    """No rule limits it."""

    FAILURE_POLICY = "failure_policy"
    """The service could not count, and decided by the rule's failure policy."""

    KNOWN_DENIAL = "known_denial"
    """It was denied a moment ago, and the service was not asked again."""

    UNAVAILABLE = "unavailable"
    """The service gave no answer, and `on_failure` decided."""


@dataclass(frozen=True, slots=True)
class Status:
    """The answer for one descriptor; without a `limit` no count decided.

    `reset` is in seconds: over the limit the wait until the same hits pass, else the time until
    the window ends or the bucket is as new.
    """

    allowed: bool
    limit: Limit | None = None
    remaining: int = 0
    reset: float | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer to one request. It is true if the request may go on.

    `headers` are for the caller's response; `request_headers` are what Envoy would pass on to
    whoever serves the request. `body` is what the rule has a denied caller told. `detail` says
    why the service was not asked or gave no answer, and of a reservation that no waiting helps.
    `age` is in seconds, for what is remembered. `denied_until` is in seconds since 1970, if the
    service says how long a denial holds.
    `reservation` is the id of what is held, empty if nothing is.
    """

    allowed: bool
    reason: Reason
    statuses: tuple[Status, ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    request_headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    metadata: Mapping[str, object] = field(default_factory=dict)
    detail: str = ""
    age: float = 0.0
    denied_until: float | None = None
    reservation: str = ""

    def __bool__(self) -> bool:
        return self.allowed

    @property
    def status(self) -> Status | None:
        """The one that decided: over with the longest wait, else with the fewest hits left."""
        counted = [status for status in self.statuses if status.limit is not None]
        over = [status for status in counted if not status.allowed]
        if over and not self.allowed:
            return max(over, key=lambda status: status.reset or 0)
        return min(counted, key=lambda status: status.remaining, default=None)

    @property
    def limit(self) -> Limit | None:
        """The limit that decided; None if no count did."""
        return self.status.limit if self.status else None

    @property
    def remaining(self) -> int | None:
        """How many single hits would pass now; None if no count decided."""
        return self.status.remaining if self.status else None

    @property
    def retry_after(self) -> float | None:
        """Seconds until a denied request passes; None if it is allowed, or if nobody knows."""
        over = () if self.allowed else self.statuses
        waits = [status.reset for status in over if not status.allowed and status.reset is not None]
        return max(0.0, max(waits) - self.age) if waits else None

    @property
    def delay(self) -> float:
        """Seconds that a request which a queue has admitted is to wait before it goes on."""
        text = self._request_header(_DELAY_HEADER)
        return int(text) / 1_000 if text.isdecimal() else 0.0

    @property
    def lease(self) -> str:
        """The name of the leases that it has taken; empty if it has none."""
        return self._request_header(_LEASE_HEADER)

    @property
    def counted(self) -> bool:
        """Whether every limit that it met was charged, or asked, where the counts are."""
        return self.reason in {Reason.WITHIN_LIMIT, Reason.OVER_LIMIT}

    def _request_header(self, name: str) -> str:
        return next((value for key, value in self.request_headers if key.lower() == name), "")


TOO_LARGE = "one reservation may not hold so much, at any time: reserve less"
"""The detail of a denied reservation that no waiting helps."""


class DeniedError(LimiterError):
    """A request was denied where the code cannot go on: in a lease, a budget or a decorator."""

    def __init__(self, decision: Decision) -> None:
        wait = decision.retry_after
        hint = decision.detail if wait is None else f"try again in {wait:g} s"
        super().__init__("the request is denied" + (f": {hint}" if hint else ""))
        self.decision = decision
