"""What a limit is: a number of requests in a window, and how they are counted."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from enum import StrEnum
from hashlib import blake2b
from typing import Final, NamedTuple

from ratelimit_service.model.calendar import Anchor, Calendar
from ratelimit_service.model.network import Grouping
from ratelimit_service.model.schedule import Schedule
from ratelimit_service.model.unit import SECOND_US, Unit

__all__ = [
    "MAX_ADDEND",
    "MAX_EXACT",
    "WHOLE_PPM",
    "CountDenied",
    "FailurePolicy",
    "Limit",
    "Reservations",
]

_MOST_SCOPE: Final = 12
_DIGEST_BYTES: Final = 9
"""What is longer is shown by a digest, since it stands in every key of the limit."""

MAX_EXACT: Final = 2**53
"""Integers below this are exact as doubles, and Lua has nothing else. So windows, in microseconds,
are shorter: 285 years at most."""

MAX_ADDEND: Final = 2**32 - 1
"""The most hits one request may add to one counter, and the highest limit."""

WHOLE_PPM: Final = 1_000_000
"""A whole in the unit of `Limit.soft_ppm`: so many parts of a million."""


class FailurePolicy(StrEnum):
    """What answers a request when the store does not."""

    OPEN = "open"
    """Allow it."""
    CLOSED = "closed"
    """Deny it."""
    ERROR = "error"
    """Fail the call, so that Envoy's `failure_mode_deny` decides."""
    LOCAL = "local"
    """Count it in this process alone, which gets its share of the limit."""


class CountDenied(StrEnum):
    """Which hits of a denied request count all the same, in rules that say nothing of it."""

    NONE = "none"
    """None."""
    REPORTED = "reported"
    """Those of descriptors that bring a positive `hits_addend` of their own: what was used."""
    ALL = "all"
    """All."""


class Reservations(NamedTuple):
    """That hits of a limit can be held before they are counted, and how.

    A reservation holds at most `most_ppm` millionths of the limit, for `ttl_us` at most (0 for as
    long as the service lets). With `charged` it stays when its time is over, for as long as it
    would count had it been charged then.
    """

    most_ppm: int = WHOLE_PPM
    ttl_us: int = 0
    charged: bool = False


class Limit(NamedTuple):
    """`requests_per_unit` hits in every window of `multiplier` units.

    `name` is shown to callers; it holds no character that would need quoting in a header.
    `algorithm` is the name of a declared one; what the limit comes to with it say
    `capacity_of`, `soft_of` and `spec_of` in `algorithms`. `burst` is what a bucket holds,
    None for as much as comes back in a window; with `max_wait_us` a leaky bucket is a queue and
    holds what leaks in that time. `soft_ppm` is how far, in millionths, the limit may be passed
    with a warning. With `count_denied` hits are counted whether or not they pass. `own` are
    the values of the algorithm's parameters that have no field here, as it declares them.
    With a `grouping` the addresses of one network are one caller. With a `schedule` it holds only
    at its times, and counts only then. All limits of a `pool` charge one counter, whatever the
    value of the rule's own entry; `reserved` are the hits that this one leaves to the others.
    With `count_by` only the entries with these keys tell its counters apart; empty, all do.
    With `advances` processes may hold parts of it that are counted ahead. With `reservations` it
    has room only beside what is held.
    """

    requests_per_unit: int
    unit: Unit
    multiplier: int = 1
    name: str = ""
    algorithm: str = "fixed_window"
    anchor: Anchor | Calendar = Anchor.CLOCK
    burst: int | None = None
    stepped: bool = False
    buckets: int = 0
    max_wait_us: int = 0
    soft_ppm: int = 0
    count_denied: bool = False
    own: tuple[int, ...] = ()
    grouping: Grouping | None = None
    schedule: Schedule | None = None
    pool: str = ""
    reserved: int = 0
    count_by: tuple[str, ...] = ()
    advances: bool = False
    reservations: Reservations | None = None

    @property
    def scope(self) -> str:
        """What tells its counters from those of another limit that counts in the same way."""
        scope = f"|{self.grouping.key}" if self.grouping is not None else ""
        if self.schedule is not None:
            scope += f"|{self.schedule.key}"
        if len(scope) > _MOST_SCOPE:
            digest = blake2b(scope.encode(), digest_size=_DIGEST_BYTES).digest()
            scope = f"#{urlsafe_b64encode(digest).decode()}"
        return scope

    @property
    def time_zones(self) -> tuple[str, ...]:
        """The zones whose clocks it goes by."""
        zones = (self.anchor.time_zone,) if isinstance(self.anchor, Calendar) else ()
        return zones if self.schedule is None else (*zones, self.schedule.time_zone)

    @property
    def window_us(self) -> int:
        """The window's length in microseconds; on a calendar about that."""
        return self.unit * self.multiplier * SECOND_US
