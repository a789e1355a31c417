"""When a hit is near its limit: a mark for operators, which decides nothing."""

from __future__ import annotations

import struct

__all__ = ["near_threshold"]


def near_threshold(limit: int, ratio: float) -> int:
    """The count above which hits are near the limit; in float32, as envoyproxy/ratelimit has it."""
    return int(_float32(_float32(limit) * _float32(ratio)))


def _float32(number: float) -> float:
    (rounded,) = struct.unpack("f", struct.pack("f", number))
    return float(rounded)
