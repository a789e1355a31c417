"""What a limit is: a number of requests in a window, and how they are counted."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from ratelimit_service.model.calendar import Calendar
from ratelimit_service.model.measure import Anchor, Measure, tick_exponent
from ratelimit_service.model.unit import SECOND_US, Unit

__all__ = ["BUCKETS", "MAX_ADDEND", "FailurePolicy", "Limit"]

MAX_ADDEND: Final = 2**32 - 1
"""The most hits one request may add to one counter, and the highest limit."""

BUCKETS: Final[tuple[str, ...]] = ("token_bucket", "leaky_bucket")
"""The algorithms that have a burst and a rate."""

_WHOLE_PPM: Final = 1_000_000


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


class Limit(NamedTuple):
    """`requests_per_unit` hits in every window of `multiplier` units.

    `name` is shown to callers; it holds no character that would need quoting in a header.
    `burst` is what a bucket holds, None for as much as comes back in a window; with
    `max_wait_us` a leaky bucket is a queue and holds what leaks in that time. `soft_ppm` is how
    far, in millionths, the limit may be passed with a warning. With `count_denied` hits are
    counted whether or not they pass.
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

    @property
    def window_us(self) -> int:
        """The window's length in microseconds; on a calendar about that."""
        return self.unit * self.multiplier * SECOND_US

    @property
    def capacity(self) -> int:
        """The hits that fit before the soft part begins: what `remaining` counts down from."""
        if self.max_wait_us:
            return self.max_wait_us * self.requests_per_unit // self.window_us
        return self.requests_per_unit if self.burst is None else self.burst

    @property
    def soft(self) -> int:
        """The hits above the capacity that pass with a warning."""
        return self.capacity * self.soft_ppm // _WHOLE_PPM

    @property
    def measure(self) -> Measure:
        """The limit in the numbers that counters are judged by."""
        hard = self.capacity + self.soft
        rate = self.requests_per_unit if self.algorithm in BUCKETS else 0
        tick = 0
        if rate or self.algorithm == "sliding_window":
            tick = tick_exponent(self.window_us, max(2, hard + (rate or hard)))
        return Measure(
            self.algorithm,
            hard,
            self.window_us,
            rate,
            tick,
            self.anchor,
            self.buckets,
            self.stepped,
            self.max_wait_us > 0,
        )
