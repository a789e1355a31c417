"""How a counter is named in every store: the only place that writes keys.

A key says what is counted (domain, entries, algorithm, window) and nothing else: neither the
rule's place nor its number, so that edits to rules keep the counts. Parts are encoded with
their numbers of characters, never joined, so that no two counters share a key.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Collection, Iterable
from hashlib import blake2b
from zlib import crc32

from ratelimit_service.model import SECOND_US

__all__ = ["CounterNames"]

_MAX_BYTES = 90
_DIGEST_BYTES = 21
_MARKS = {"fixed_window": b"f"}


class CounterNames:
    """The keys of one domain's counters of one algorithm and window."""

    __slots__ = ("_domain", "_kind")

    def __init__(self, domain: str, algorithm: str, window_us: int) -> None:
        self._domain = f"{len(domain)}:{domain}"
        self._kind = b"%b%d" % (_MARKS[algorithm], window_us // SECOND_US)

    def key(self, entries: Iterable[tuple[str, str]], shared: Collection[int] = ()) -> bytes:
        """The key of the counter of these entries, at most 90 bytes.

        `shared` are the places of entries whose value is a pattern, not a value that reads so.

        `{tag}`, then the algorithm's letter and the window in seconds, then `:` and the encoded
        domain and entries or, where they are too long, `#` and their digest. The tag is a
        checksum: limits of one descriptor share it, and no caller's braces choose a Redis
        Cluster slot.
        """
        encoded = self._domain
        if shared:
            for place, (key, value) in enumerate(entries):
                mark = "~" if place in shared else "="
                encoded += f"{len(key)}:{key}{mark}{len(value)}:{value}"
        else:
            for key, value in entries:
                encoded += f"{len(key)}:{key}={len(value)}:{value}"
        counted = encoded.encode()
        name = b"{%08x}%b:%b" % (crc32(counted), self._kind, counted)
        if len(name) <= _MAX_BYTES:
            return name
        digest = urlsafe_b64encode(blake2b(counted, digest_size=_DIGEST_BYTES).digest())
        return b"{%08x}%b#%b" % (crc32(counted), self._kind, digest)
