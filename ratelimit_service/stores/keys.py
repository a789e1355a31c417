"""How a counter is named in every store: the only module that writes keys, or takes them apart.

A key says what is counted (domain, entries, algorithm, window) and nothing else: neither the
rule's place nor its number, so that edits to rules keep the counts. Parts are encoded with
their numbers of characters, never joined, so that no two counters share a key.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from binascii import crc_hqx, unhexlify
from collections.abc import Collection, Iterable, Sequence
from hashlib import blake2b
from struct import unpack
from typing import Final
from zlib import crc32

from ratelimit_service.model import CounterSpec, Grouping, Limit

__all__ = [
    "PARTITIONS",
    "SLOTS",
    "CounterNames",
    "KeyStem",
    "entries_of",
    "grant_key",
    "is_digest",
    "partition_of",
    "partitions_of",
    "queue_key",
    "shared_key",
    "slot_of",
    "slot_of_tag",
]

PARTITIONS: Final = 1 << 16
"""The partitions of a ring: many for each shard, so that they can be shared out evenly."""

SLOTS: Final = 1 << 14
"""The slots of Redis Cluster."""

_MAX_BYTES: Final = 90
_crc32: Final = crc32
"""A name of ours, which a compiler need not look up."""

_DIGEST_BYTES: Final = 21
_DIGEST_AT: Final = -(_DIGEST_BYTES * 4 // 3) - 1


class CounterNames:
    """The keys of one domain's counters of one limit."""

    __slots__ = ("_count_by", "_domain", "_grouping", "_kind", "_pool", "_shard_by")

    def __init__(
        self,
        domain: str,
        spec: CounterSpec,
        shard_by: frozenset[str] | None = None,
        limit: Limit | None = None,
    ) -> None:
        """`shard_by` are the keys of the entries that place a counter; None for all of them.

        `limit` is the one that is counted, where it says more than `spec` does.
        """
        self._domain = f"{len(domain)}:{domain}"
        self._grouping: Grouping | None = None
        self._pool = ""
        self._count_by: tuple[str, ...] = ()
        kind = spec.key
        if limit is not None:
            self._grouping = limit.grouping
            self._pool = limit.pool
            self._count_by = limit.count_by
            kind += limit.scope
        self._kind = kind.encode()
        self._shard_by = shard_by

    def key(self, entries: Sequence[tuple[str, str]], shared: Collection[int] = ()) -> bytes:
        """The key of the counter of these entries, at most 90 bytes.

        `shared` are the places of entries that stand for a pattern. A value of the same text has
        another key.

        `{tag}`, then the part that the algorithm makes (`CounterSpec.key`) and what the limit adds
        to it (`Limit.scope`), then `:` and the
        encoded domain and entries or, where they are too long, `#` and their digest. The tag is a
        checksum of what places the counter: domain and entries, or those of them that `shard_by`
        names if all of these are there.
        Limits of one descriptor share it, unless they group addresses, charge a pool or name what
        they count by. No
        caller's braces choose a Redis Cluster slot.
        """
        if self._grouping is not None:
            entries, shared = _grouped(entries, shared, self._grouping)
        if self._pool:  # no rule has an empty key, and what callers bring is never shared
            last = len(entries) - 1
            entries = [*entries[:last], ("", self._pool)]
            shared = (*(index for index in shared if index < last), last)
        if self._count_by:
            kept = [index for index, (key, _) in enumerate(entries) if key in self._count_by]
            entries = [entries[index] for index in kept]
            shared = [place for place, index in enumerate(kept) if index in shared]
        counted = (self._domain + _encoded(entries, shared)).encode()
        tagged = counted
        if self._shard_by is not None and self._shard_by <= {key for key, _ in entries}:
            tagged = self._domain.encode()
            for at, entry in enumerate(entries):
                if entry[0] in self._shard_by:
                    tagged += _encoded([entry], (0,) if at in shared else ()).encode()
        return _named(_crc32(tagged), self._kind, counted)

    def stem(self, entries: Sequence[tuple[str, str]]) -> KeyStem:
        """The keys of all counters of these entries, whatever the last one's value."""
        *before, (key, _) = entries
        stem = f"{self._domain}{_encoded(before)}{len(key)}:{key}=".encode()
        by = self._shard_by
        if by is None or not by <= {each for each, _ in entries}:
            return KeyStem(self._kind, stem)
        tagged = self._domain + _encoded([entry for entry in before if entry[0] in by])
        if key in by:
            return KeyStem(self._kind, stem, f"{tagged}{len(key)}:{key}=".encode())
        return KeyStem(self._kind, stem, tag=crc32(tagged.encode()))


class KeyStem:
    """The keys of counters that differ in the value of their last entry only."""

    __slots__ = ("_kind", "_stem", "_tag", "_tagged")

    def __init__(
        self, kind: bytes, stem: bytes, tagged: bytes | None = None, tag: int | None = None
    ) -> None:
        """The value goes behind `stem`. The tag is given, or made of `tagged` or `stem` with it."""
        self._kind = kind
        self._stem = stem
        self._tagged = tagged
        self._tag = tag

    def key(self, value: bytes) -> bytes:
        """What `CounterNames.key` makes of all entries; `value` is the last one's, in UTF-8.

        Raises UnicodeDecodeError if it is not UTF-8.
        """
        length = len(value) if value.isascii() else len(value.decode())
        last = (_LENGTHS[length] if length < _MAX_BYTES else b"%d:" % length) + value
        counted = self._stem + last
        if self._tag is not None:
            return _named(self._tag, self._kind, counted)
        tagged = counted if self._tagged is None else self._tagged + last
        return _named(_crc32(tagged), self._kind, counted)


_LENGTHS: Final = [b"%d:" % length for length in range(_MAX_BYTES)]


def grant_key(key: bytes, grant: str) -> bytes:
    """The counter of what a grant has given in the stead of the counter `key`.

    It has the same tag, so both lie together. No algorithm's letter is a plus sign.
    """
    return key[:_TAG_BYTES] + b"+" + grant.encode() + key[_TAG_BYTES:]


_TAG_BYTES: Final = 10
"""A tag with its braces."""


def shared_key(name: str, part: str = "") -> bytes:
    """The key of something that is no counter; all parts of one name lie together.

    No algorithm's letter is an exclamation mark.
    """
    named = name.encode()
    key = b"{%08x}!%b" % (crc32(named), named)
    return key + b"." + part.encode() if part else key


def queue_key(domain: str, rule: str) -> bytes:
    """The key of the queue of a rule, by its path; each has a tag of its own.

    It has at most 90 bytes, as a counter's key, and the same form: no algorithm's letter is an
    exclamation mark.
    """
    counted = f"{len(domain)}:{domain}{len(rule)}:{rule}".encode("utf-8", "surrogatepass")
    return _named(_crc32(counted), b"!queue", counted)


def partition_of(key: bytes) -> int:
    """Which of a ring's partitions a counter is in: the first half of its key's tag."""
    return int(key[1:5], 16)


def partitions_of(keys: Sequence[bytes]) -> tuple[int, ...]:
    """The same for many keys, in their order."""
    return unpack(f">{len(keys)}H", unhexlify(b"".join([key[1:5] for key in keys])))


def slot_of(key: bytes) -> int:
    """Which of Redis Cluster's slots a counter is in."""
    return crc_hqx(key[1:9], 0) & SLOTS - 1


def slot_of_tag(tag: bytes) -> int:
    """The slot of all keys with this tag: CRC-16/XMODEM modulo 16,384."""
    return crc_hqx(tag, 0) & SLOTS - 1


def is_digest(key: bytes) -> bool:
    """Whether a key may stand for entries too long to be in it; `entries_of` knows for certain."""
    return key[_DIGEST_AT : _DIGEST_AT + 1] == b"#"


def entries_of(key: bytes, domain: str) -> list[tuple[str, str]] | None:
    """What a counter of this domain counts; None if its key has only a digest of that.

    A value that stands for several is shown as it is counted: a pattern, a network, or behind an
    empty key the name of a pool.
    """
    name = domain.encode("utf-8", "surrogatepass")
    begin = b":%d:%b" % (len(domain), name)
    at = key.find(begin)
    if at < 0:
        return None
    rest = key[at + len(begin) :].decode("utf-8", "replace")
    parts: list[str] = []
    while rest:
        length, colon, rest = rest.partition(":")
        if not (colon and length.isdecimal()):
            return None
        size = int(length)
        parts.append(rest[:size])
        rest = rest[size + len(parts) % 2 :]  # a byte behind each key says what its value is
    return list(zip(parts[::2], parts[1::2], strict=True)) if len(parts) % 2 == 0 else None


def _grouped(
    entries: Sequence[tuple[str, str]], shared: Collection[int], grouping: Grouping
) -> tuple[Sequence[tuple[str, str]], Collection[int]]:
    """The same with the network of the last entry's address in place of its value."""
    last = len(entries) - 1
    if last < 0 or last in shared:
        return entries, shared
    *before, (key, value) = entries
    network = grouping.of(value)
    if network is None:
        return entries, shared
    return [*before, (key, network)], ((*shared, last) if "/" in network else shared)


def _encoded(entries: Iterable[tuple[str, str]], shared: Collection[int] = ()) -> str:
    encoded = ""
    if shared:
        for index, (key, value) in enumerate(entries):
            mark = "~" if index in shared else "="
            encoded += f"{len(key)}:{key}{mark}{len(value)}:{value}"
    else:
        for key, value in entries:
            encoded += f"{len(key)}:{key}={len(value)}:{value}"
    return encoded


def _named(tag: int, kind: bytes, counted: bytes) -> bytes:
    name = b"{%08x}%b:%b" % (tag, kind, counted)
    if len(name) <= _MAX_BYTES:
        return name
    digest = urlsafe_b64encode(blake2b(counted, digest_size=_DIGEST_BYTES).digest())
    return b"{%08x}%b#%b" % (tag, kind, digest)
