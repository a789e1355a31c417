"""Which shard of a ring a counter lies in: pure arithmetic on names and weights.

Rendezvous hashing (Thaler and Ravishankar, 1998) of 65,536 places: each belongs to the shard
whose hash for it is the highest. A shard of weight w draws w times, so that it wins w times as
often; one that comes or goes moves only what it gets or had.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping

__all__ = ["PLACES", "fingerprint", "owners", "place_of"]

PLACES = 1 << 16
_TAG = slice(1, 5)


def place_of(key: bytes) -> int:
    """The place of a counter, from the first half of its key's tag (`stores.keys`)."""
    return int(key[_TAG], 16)


def owners(weights: Mapping[str, int]) -> list[str]:
    """For each place the name of its shard; the same in every process and release."""
    best = [(-1, "")] * PLACES
    for name, weight in sorted(weights.items()):
        for draw in range(weight):
            stream = hashlib.shake_128(f"{draw}:{name}".encode()).digest(4 * PLACES)
            drawn = struct.unpack(f">{PLACES}I", stream)
            best = [
                (score, name) if score > held[0] else held
                for score, held in zip(drawn, best, strict=True)
            ]
    return [name for _, name in best]


def fingerprint(weights: Mapping[str, int]) -> str:
    """What tells rings apart that place counters differently: 16 hex digits."""
    listed = "\n".join(f"{weight} {name}" for name, weight in sorted(weights.items()))
    return hashlib.blake2b(listed.encode(), digest_size=8).hexdigest()
