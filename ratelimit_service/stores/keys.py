"""How a counter is named in every store: the only place that writes keys.

A key says what is counted (domain, entries, algorithm, window) and nothing else: neither the
rule's place nor its number, so that edits to rules keep the counts. Parts are encoded with
their lengths, never joined, so that no two counters share a key.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Sequence
from hashlib import blake2b

from ratelimit_service.model import SECOND_US

__all__ = ["Identity", "counter_key"]

Identity = Sequence[tuple[str, str, bool]]
"""What is counted within a domain: (key, value, whether the value is a shared pattern)."""

_MAX_BYTES = 90
_TAG_BYTES = 6
_DIGEST_BYTES = 21
_MARKS = {"fixed_window": "f"}


def counter_key(domain: str, identity: Identity, algorithm: str, window_us: int) -> bytes:
    """The key of one counter, at most 90 bytes.

    `{tag}`, then the algorithm's letter and the window in seconds, then `:` and the encoded
    domain and entries or, where they are too long, `#` and their digest. The tag is a digest as
    well: limits of one descriptor share it, and no caller chooses a Redis Cluster slot.
    """
    counted = _encoded(domain, identity)
    tag = _digest(counted, _TAG_BYTES)
    head = b"{%b}%b%d" % (tag, _MARKS[algorithm].encode(), window_us // SECOND_US)
    if len(head) + 1 + len(counted) <= _MAX_BYTES:
        return b"%b:%b" % (head, counted)
    return b"%b#%b" % (head, _digest(counted, _DIGEST_BYTES))


def _encoded(domain: str, identity: Identity) -> bytes:
    """Every part as `length:bytes` (a netstring without its comma), values marked by their type."""
    parts = [_part(domain)]
    for key, value, is_pattern in identity:
        parts += (_part(key), b"~" if is_pattern else b"=", _part(value))
    return b"".join(parts)


def _part(text: str) -> bytes:
    data = text.encode()
    return b"%d:%b" % (len(data), data)


def _digest(data: bytes, size: int) -> bytes:
    return urlsafe_b64encode(blake2b(data, digest_size=size).digest())
