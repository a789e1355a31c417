"""Which shard of a ring a counter lies in: pure arithmetic on names and weights.

Rendezvous hashing (Thaler and Ravishankar, 1998) of 65,536 partitions: each belongs to the shard
whose hash for it is the highest. A shard of weight w draws w times, so that it wins w times as
often. A shard that is added or removed moves only its own partitions.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping

from ratelimit_service.stores.keys import PARTITIONS

__all__ = ["fingerprint", "owners"]


def owners(weights: Mapping[str, int]) -> list[str]:
    """For each partition the name of its shard; the same in every process and release."""
    if len(weights) == 1:  # a single server, as most are: it owns every partition
        return list(weights) * PARTITIONS
    best = [(-1, "")] * PARTITIONS
    for name, weight in sorted(weights.items()):
        for draw in range(weight):
            stream = hashlib.shake_128(f"{draw}:{name}".encode()).digest(4 * PARTITIONS)
            drawn = struct.unpack(f">{PARTITIONS}I", stream)
            best = [
                (score, name) if score > held[0] else held
                for score, held in zip(drawn, best, strict=True)
            ]
    return [name for _, name in best]


def fingerprint(weights: Mapping[str, int]) -> str:
    """A mark of 16 hex digits. Rings that place counters differently have different ones."""
    listed = "\n".join(f"{weight} {name}" for name, weight in sorted(weights.items()))
    return hashlib.blake2b(listed.encode(), digest_size=8).hexdigest()
