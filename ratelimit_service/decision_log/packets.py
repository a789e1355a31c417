"""Decisions on their way from the process that decides to the one that writes them down.

What costs time in the first costs callers time. So a packet has what is known there anyway: the
bytes of requests and of their headers, and the rest of the line once for all decisions in a row
that differ in nothing else. Lines are put together in the other process. What must not live here:
which decisions are written down (`queue`), and what a line says (`line`).
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Final

from ratelimit_service.decision_log.line import (
    HashValue,
    decision_part,
    end_part,
    origin_part,
    request_part,
    start_part,
)
from ratelimit_service.grpc.h2.headers import HeaderReader
from ratelimit_service.model import Hit
from ratelimit_service.model.call_origin import CallOrigin, PackedHeaders
from ratelimit_service.service.planned import PlannedRequest
from ratelimit_service.service.records import DecidedBatch
from ratelimit_service.stores import Verdict

__all__ = ["Group", "Packer", "PacketLines", "decisions_in", "packed"]

_VERSION: Final = b"\x03"
"""Of packets. Another version of the program may make them for the moments of a restart."""

_COUNT_BYTES: Final = 4
"""A packet begins with the number of its decisions, and its version."""

Group = tuple[str, str, str, list[bytes], list[str], list[PackedHeaders]]
"""Decisions that differ in what was asked and by whom: their lines' start, what stands behind the
request, the end; their requests, their callers' addresses, and these calls' headers."""

_DENIED: Final = Verdict.DENIED
_NOBODY: Final = CallOrigin()

_MOST_REMEMBERED_BYTES: Final = 512
_remembered: Final = lru_cache(4_096)(request_part)
"""Who is denied asks the same again."""

_NO_TABLE: Final = b"\x20"
"""A header block that says that from now on no block depends on another."""


def decisions_in(packet: bytes) -> int:
    """How many decisions a packet has."""
    return int.from_bytes(packet[:_COUNT_BYTES], "big")


def packed(count: int, groups: list[Group]) -> bytes:
    """A packet of groups that have so many decisions."""
    return count.to_bytes(_COUNT_BYTES, "big") + _VERSION + marshal.dumps(groups)


class Packer:
    """Makes groups of decisions."""

    def __init__(
        self,
        denied: float,
        allowed: float,
        hashed: HashValue | None,
        store: str,
        shard_of: Callable[[Hit], str],
    ) -> None:
        """Such parts of all decisions are written down. `store` is the kind of store."""
        self._hashed = hashed
        self._store = store
        self._shard_of = shard_of
        self._denied_end = end_part(denied, hashed) + "\n"
        self._allowed_end = end_part(allowed, hashed) + "\n"

    def groups(self, at_us: int, decided: DecidedBatch, indexes: Sequence[int]) -> Iterator[Group]:
        """Groups of decisions that were made together."""
        start, before = 0, None
        for at, key in enumerate(self._keys(decided, indexes)):
            if at and (key is None or key != before):
                yield self._group(at_us, decided, indexes[start:at])
                start = at
            before = key
        yield self._group(at_us, decided, indexes[start:])

    def _keys(
        self, decided: DecidedBatch, indexes: Sequence[int]
    ) -> Sequence[tuple[object, ...] | None]:
        """For each decision what is equal where they differ only in what was asked and by whom.

        None for all but denials by a usual rule: to find that out would take longer than it saves.
        """
        all_settled, all_planned = decided.settled, decided.planned
        if all_settled is None or set(map(type, decided.answers)) != {bytes}:
            return [None] * len(indexes)
        shard_of = None if self._store == "memory" else self._shard_of
        keys: list[tuple[object, ...] | None] = []
        for index in indexes:
            settled, planned = all_settled[index], all_planned[index]
            key = None
            if (
                settled.verdict is _DENIED
                and (by := settled.by) >= 0
                and isinstance(planned, PlannedRequest)
                and planned.limits is not None
                and (outcome := settled.outcomes[by]) is not None
            ):
                plan = planned.plans[by]
                key = (
                    plan.node,
                    plan.rule,
                    by,
                    outcome.remaining,
                    outcome.reset_us,
                    outcome.local,
                    settled.cached,
                    shard_of and shard_of(plan.hits[0]),
                )
            keys.append(key)
        return keys

    def _group(self, at_us: int, decided: DecidedBatch, indexes: Sequence[int]) -> Group:
        """Decisions that differ only in what was asked and by whom."""
        record = decided.record(indexes[0])
        shard = "" if record.hit is None else self._shard_of(record.hit)
        bodies, origins = decided.bodies, decided.origins
        if origins is None:  # there are none, or there are records, which are alone in their group
            callers = [record.caller or _NOBODY] * len(indexes)
        else:
            callers = [origins[index] for index in indexes]
        return (
            start_part(at_us),
            decision_part(record, self._hashed, self._store, shard),
            self._denied_end if record.denied else self._allowed_end,
            [bodies[index] for index in indexes],
            [caller.peer for caller in callers],
            [caller.packed() for caller in callers],
        )


class PacketLines:
    """Makes lines of packets."""

    def __init__(self, hashed: HashValue | None) -> None:
        """`hashed` is what values are hashed with, as where the packets were made."""
        self._hashed = hashed
        self._headers = HeaderReader()
        self._headers.without_table()
        self._headers.read(_NO_TABLE)

    def of(self, packet: bytes) -> bytes:
        """The lines of a packet. Raises ValueError if it is of another version."""
        rest = packet[_COUNT_BYTES:]
        if not rest.startswith(_VERSION):
            raise ValueError(f"decisions are packed in version {rest[:1]!r}, not {_VERSION!r}")
        groups: list[Group] = marshal.loads(rest[1:])  # noqa: S302 -- our processes'
        lines = [
            start + self._request(body) + middle + self._origin(peer, headers) + end
            for start, middle, end, bodies, peers, all_headers in groups
            for body, peer, headers in zip(bodies, peers, all_headers, strict=True)
        ]
        return "".join(lines).encode("utf-8", "replace")

    def _request(self, body: bytes) -> str:
        small = len(body) <= _MOST_REMEMBERED_BYTES
        return (_remembered if small else request_part)(body, self._hashed)

    def _origin(self, peer: str, headers: PackedHeaders) -> str:
        if headers and isinstance(headers, bytes):
            headers = tuple(self._headers.read_caller(headers))
        return origin_part(peer, headers or (), self._hashed)
