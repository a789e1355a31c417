"""How a counter is named in every store: the only place that writes keys.

A key says what is counted (domain, entries, algorithm, window) and nothing else: neither the
rule's place nor its number, so that edits to rules keep the counts. Parts are encoded with
their lengths, never joined, so that no two counters share a key.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Sequence
from hashlib import blake2b
from zlib import crc32

from ratelimit_service.model import SECOND_US

__all__ = ["Identity", "counter_key"]

Identity = Sequence[tuple[str, str, bool]]
"""What is counted within a domain: (key, value, whether the value is a shared pattern)."""

_MAX_BYTES = 90
_DIGEST_BYTES = 21
_MARKS = {"fixed_window": b"f"}


def counter_key(domain: str, identity: Identity, algorithm: str, window_us: int) -> bytes:
    """The key of one counter, at most 90 bytes.

    `{tag}`, then the algorithm's letter and the window in seconds, then `:` and the encoded
    domain and entries or, where they are too long, `#` and their digest. The tag is a checksum:
    limits of one descriptor share it, and no caller's braces choose a Redis Cluster slot.
    """
    counted = _encoded(domain, identity)
    key = b"{%08x}%b%d:%b" % (
        crc32(counted),
        _MARKS[algorithm],
        window_us // SECOND_US,
        counted,
    )
    if len(key) <= _MAX_BYTES:
        return key
    digest = urlsafe_b64encode(blake2b(counted, digest_size=_DIGEST_BYTES).digest())
    return b"%b#%b" % (key[: -len(counted) - 1], digest)


def _encoded(domain: str, identity: Identity) -> bytes:
    """Every part led by its number of characters, values marked by their type."""
    encoded = f"{len(domain)}:{domain}"
    for key, value, is_pattern in identity:
        encoded += f"{len(key)}:{key}{'~' if is_pattern else '='}{len(value)}:{value}"
    return encoded.encode()
