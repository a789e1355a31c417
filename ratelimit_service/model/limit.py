"""What a limit is: a number of requests in a window of so many units."""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import NamedTuple

__all__ = ["MAX_ADDEND", "SECOND_US", "FailurePolicy", "Limit", "Unit"]

SECOND_US = 1_000_000
"""Microseconds in a second."""

MAX_ADDEND = 2**32 - 1
"""The most hits one request may add to one counter, and the highest limit."""


class Unit(IntEnum):
    """A unit of time; the value is its length in seconds.

    A month has 30 days and a year 365, as in Envoy and in envoyproxy/ratelimit.
    """

    SECOND = 1
    MINUTE = 60
    HOUR = 3_600
    DAY = 86_400
    WEEK = 604_800
    MONTH = 2_592_000
    YEAR = 31_536_000


class FailurePolicy(StrEnum):
    """What answers a request when the store does not."""

    OPEN = "open"
    """Allow it."""
    CLOSED = "closed"
    """Deny it."""
    ERROR = "error"
    """Fail the call, so that Envoy's `failure_mode_deny` decides."""


class Limit(NamedTuple):
    """`requests_per_unit` hits in every window of `multiplier` units.

    `name` is shown to callers; it holds no character that would need quoting in a header.
    """

    requests_per_unit: int
    unit: Unit
    multiplier: int = 1
    name: str = ""

    @property
    def window_us(self) -> int:
        """The window's length in microseconds."""
        return self.unit * self.multiplier * SECOND_US
