"""How cases speak: one hit, one moment, one counter."""

from __future__ import annotations

from zlib import crc32

from ratelimit_service.algorithms import spec_of
from ratelimit_service.model import Denied, Hit, Limit, Mode, Outcome
from tests.stores.cases import Charge

__all__ = ["at", "hit"]


def hit(
    limit: Limit,
    addend: int = 1,
    *,
    key: str = "a",
    count_denied: bool = False,
    refund: bool = False,
    lease: bytes = b"",
) -> Hit:
    spec = spec_of(limit)
    counted = f"{spec.key}{key}".encode()
    name = b"{%08x}%b" % (crc32(counted), counted)
    count_denied = count_denied or spec.algorithm.denied is Denied.ALWAYS_COUNTED
    return Hit(name, spec, addend, Mode.ENFORCED, count_denied, refund, lease)


def at(now_us: int, outcome: Outcome, *hits: Hit) -> Charge:
    """One hit, or several with the same outcome."""
    return Charge(now_us, hits, [outcome] * len(hits))
