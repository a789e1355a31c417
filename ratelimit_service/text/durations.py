"""Durations as people write them."""

from __future__ import annotations

import re

from ratelimit_service.errors import SettingsError
from ratelimit_service.model import MAX_EXACT

__all__ = ["duration_text", "parse_duration"]


def parse_duration(text: str) -> int:
    """Microseconds of a duration such as `10ms`, `1.5s` or `1m30s`."""
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise SettingsError(
            f"{text!r} is no duration: write a number and us, ms, s, m, h, d or w: 10ms"
        )
    length_us = sum(float(number) * _UNITS_US[unit] for number, unit in parts)
    if length_us >= MAX_EXACT:  # also if it is infinite, as a float of 400 digits is
        raise SettingsError(f"{text[:20]!r} is too long: write at most 285 years, as 14800w")
    return round(length_us)


_DURATION = re.compile(r"(\d+(?:\.\d+)?)(us|µs|ms|s|m|h|d|w)")
_UNITS_US = {
    "us": 1,
    "µs": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
    "w": 604_800_000_000,
}


def duration_text(duration_us: int) -> str:
    """A duration in the largest units, as `parse_duration` reads it: `1m30s`."""
    text = ""
    for unit in ("w", "d", "h", "m", "s", "ms", "us"):
        count, duration_us = divmod(duration_us, _UNITS_US[unit])
        text += f"{count}{unit}" if count else ""
    return text or "0s"
