"""Units of time."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["SECOND_US", "Unit"]

SECOND_US = 1_000_000
"""Microseconds in a second."""


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
