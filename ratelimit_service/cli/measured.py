"""What was measured of the service, for `ratelimit size`: tables of docs/benchmarks.md, as data.

What must not live here: what follows from it for a load (`size`).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final, NamedTuple

__all__ = ["BY_ALGORITHM", "CALLS_A_CORE", "CLIENTS_BYTES", "SOURCE", "WORKER_BYTES", "Measured"]

SOURCE: Final = "docs/benchmarks.md"
"""Its parts on speed and on memory of counters."""

CALLS_A_CORE: Final = MappingProxyType(
    {
        ("memory", "compiled"): 170_861,
        ("memory", "interpreted"): 68_981,
        ("redis", "compiled"): 136_382,
        ("redis", "interpreted"): 71_297,
    }
)
"""Calls a second on one core, each of two descriptors of a million keys, none over its limit."""


class Measured(NamedTuple):
    """Of one algorithm: bytes of a counter, what a call costs, and what a hit takes of Redis' time.

    `redis_bytes` and `memory_bytes` are all that a counter takes there. A call costs what one of
    the default algorithm does, divided by `memory_rate` and `redis_rate`.
    """

    redis_bytes: int
    redis_bytes_at_most: int
    memory_bytes: int
    memory_rate: float
    redis_rate: float
    redis_us: float


_TABLE: Final = """
fixed_window      184    240    278  1.00  1.00   6.6
sliding_window    213    240    277  0.77  0.91   9.8
sliding_log     2_217  2_900  2_867  0.73  0.82  10.4
token_bucket      213    240    310  0.69  0.98   9.0
leaky_bucket      213    240    311  0.75  0.95   9.3
concurrency       261    270    424  0.68  0.67  10.3
"""
"""In the order of `Measured`. A log holds 500 hits."""


def _read(line: str) -> tuple[str, Measured]:
    name, *cells = line.split()
    redis, at_most, memory = map(int, cells[:3])
    memory_rate, redis_rate, redis_us = map(float, cells[3:])
    return name, Measured(redis, at_most, memory, memory_rate, redis_rate, redis_us)


BY_ALGORITHM: Final = MappingProxyType(dict(map(_read, _TABLE.strip().splitlines())))
"""What was measured of algorithms. One is missing here until `make bench` has measured it."""

WORKER_BYTES: Final = 75_000_000
"""A worker with few rules (25 MiB; a test holds it below 40), and all that it may remember of
requests (50 MB, the bounds of `service.planning`)."""

CLIENTS_BYTES: Final = 64 << 20
"""What clients that are slow, or attack, can make a worker keep in addition."""
