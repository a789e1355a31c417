"""Decisions on their way to the decision log, as the process that decides hands them on.

What costs time there costs callers time. So of a usual denial only what is known anyway is packed:
the bytes of its request and of its headers, and once for all denials alike what they have in
common. Lines are made of it in another process (`packet_lines`). What must not live here: which
decisions are written down (`feed`).
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from ratelimit_service.decision_log.line import (
    Circumstances,
    HashValue,
    beginning,
    decider_part,
    line_of,
    place_part,
)
from ratelimit_service.limiter import DecidedBy, Plan
from ratelimit_service.model import SECOND_US, Hit, Outcome
from ratelimit_service.service.asked import Asked
from ratelimit_service.service.callers import PackedHeaders
from ratelimit_service.service.records import DecidedBatch
from ratelimit_service.stores import Verdict
from ratelimit_service.telemetry.parents import parent_of, request_id_of

__all__ = ["DecisionPackets", "Run", "decisions_in", "unpacked"]

_VERSION: Final = b"\x02"
"""Of packets. Another version of the program may make them for the moments of a restart."""

_MARSHAL: Final = 4
"""The version of what marshal writes, which all of Python's since 3.4 read."""

_COUNT_BYTES: Final = 4
"""A packet begins with the number of its decisions, and its version."""

Run = tuple[str, str, list[bytes], list[str], list[PackedHeaders]]
"""Lines that differ in what was asked and by whom: how each begins, what stands behind what was
asked, the requests, the addresses of who made them, and what their headers tell."""

_DENIED: Final = Verdict.DENIED
_COUNT: Final = f',"code":"OVER_LIMIT","by":"{DecidedBy.COUNT}","descriptor":'
_CACHE: Final = f',"code":"OVER_LIMIT","by":"{DecidedBy.LOCAL_CACHE}","descriptor":'


def decisions_in(packet: bytes) -> int:
    """How many decisions a packet has."""
    return int.from_bytes(packet[:_COUNT_BYTES], "big")


def unpacked(packet: bytes) -> tuple[str, list[str | Run]]:
    """How each line of a packet's runs ends, and its lines and runs in their order.

    Raises ValueError if it is of another version.
    """
    rest = packet[_COUNT_BYTES:]
    if not rest.startswith(_VERSION):
        raise ValueError(f"decisions are packed in version {rest[:1]!r}, not {_VERSION!r}")
    found: tuple[str, list[str | Run]] = marshal.loads(rest[1:])  # noqa: S302 -- our processes'
    return found


_T = TypeVar("_T")


def _at(values: Sequence[_T], places: Sequence[int]) -> list[_T]:
    """The values at these places, which ascend."""
    first, last = places[0], places[-1]
    if last - first + 1 == len(places):
        return list(values[first : last + 1])
    return [values[place] for place in places]


class DecisionPackets:
    """Makes packets of decisions."""

    def __init__(
        self,
        denied: float,
        allowed: float,
        hashed: HashValue | None,
        store: str,
        shard_of: Callable[[Hit], str],
    ) -> None:
        """Such parts of all decisions are written down. `store` is the kind of store."""
        self._denied = denied
        self._allowed = allowed
        self._hashed = hashed
        self._store = store
        self._shard_of = shard_of
        self.count = 0
        """Decisions that were added since the last packet."""
        self._found: list[str | Run] = []
        self._end = "}\n" if hashed is None else ',"hashed":true}\n'
        if denied != 1:
            self._end = f',"sample":{denied}{self._end}'

    def take(self) -> bytes:
        """A packet of all that was added since the last one."""
        head = self.count.to_bytes(_COUNT_BYTES, "big") + _VERSION
        packet = head + marshal.dumps((self._end, self._found), _MARSHAL)
        self._found = []
        self.count = 0
        return packet

    def add(self, at_us: int, decided: DecidedBatch, places: Sequence[int]) -> None:
        """Adds decisions that were made together: usual denials as runs, others as lines."""
        at = 0
        while (at := self.add_usual(at_us, decided, places, at)) < len(places):
            self._found.append(self._line(at_us, decided, places[at]))
            self.count += 1
            at += 1

    def add_usual(
        self, at_us: int, decided: DecidedBatch, places: Sequence[int], first: int = 0
    ) -> int:
        """Adds usual denials, from the first of these places up to one with something else.

        Returns how many places are done with then.
        """
        if decided.settled is None:
            return first
        settled, all_asked, answers = decided.settled, decided.asked, decided.answers
        no_shards, all_plain = self._store == "memory", set(map(type, answers)) == {bytes}
        planned: Plan | None = None
        by, remaining, reset_us, known_by_cache, shard = -1, -1, -1, False, ""
        before: Asked | None = None
        told = ""
        at = begun = first
        try:
            for place in places[first:] if first else places:
                its_settled = settled[place]
                deciding = its_settled.by
                if (
                    its_settled.verdict is not _DENIED
                    or deciding < 0
                    or not (all_plain or isinstance(answers[place], bytes))
                ):
                    break
                its_outcome = its_settled.outcomes[deciding]
                if its_outcome is None or its_outcome.local:
                    break
                asked = all_asked[place]
                if (
                    asked is not before
                    or deciding != by
                    or its_outcome.remaining != remaining  # what a line says of it
                    or its_outcome.reset_us != reset_us
                    or its_settled.cached is not known_by_cache
                ):
                    if not isinstance(asked, Asked) or asked.limits is None:
                        break
                    its_plan = asked.plans[deciding]
                    if (
                        planned is None
                        or its_plan.met is not planned.met
                        or its_plan.rule is not planned.rule
                        or deciding != by
                        or its_outcome.remaining != remaining
                        or its_outcome.reset_us != reset_us
                        or its_settled.cached is not known_by_cache
                        or not (no_shards or self._shard_of(its_plan.hits[0]) == shard)
                    ):
                        hits = its_plan.hits
                        if its_plan.declared is None or len(hits) != 1:
                            break
                        self._add_run(at_us, told, decided, places[begun:at])
                        begun = at
                        planned, by, known_by_cache = its_plan, deciding, its_settled.cached
                        remaining, reset_us = its_outcome.remaining, its_outcome.reset_us
                        shard = "" if no_shards else self._shard_of(hits[0])
                        told = self._told(
                            decided, its_plan, hits[0], by, its_outcome, shard, known_by_cache
                        )
                    before = asked
                at += 1
        finally:
            self._add_run(at_us, told, decided, places[begun:at])
        return at

    def _add_run(self, at_us: int, told: str, decided: DecidedBatch, places: Sequence[int]) -> None:
        """Adds denials that differ in what was asked and by whom."""
        count = len(places)
        if not count:
            return
        bodies, origins = _at(decided.bodies, places), decided.origins
        peers = [""] * count
        callers: list[PackedHeaders] = [b""] * count
        if origins is not None:
            whose = _at(origins, places)
            origin = whose[0]
            if whose.count(origin) == count:  # as where callers send no headers that name calls
                peers, callers = [origin.peer] * count, [origin.packed()] * count
            else:
                peers, callers = [each.peer for each in whose], [each.packed() for each in whose]
        self._found.append((beginning(at_us), told, bodies, peers, callers))
        self.count += count

    def _told(
        self,
        decided: DecidedBatch,
        planned: Plan,
        hit: Hit,
        by: int,
        outcome: Outcome | None,
        shard: str,
        cached: bool,
    ) -> str:
        """What a line says behind what was asked, up to who asked it."""
        declared, limit = planned.declared, planned.rule.limits[0].limit
        assert declared is not None  # noqa: S101 -- by who asks
        assert outcome is not None  # noqa: S101
        used = max(0, hit.spec.limit - outcome.remaining)
        told = (
            f"{_CACHE if cached else _COUNT}{by}"
            f"{decider_part(declared.path, declared.source, limit, self._hashed)}"
            f',"used":{used},"remaining":{outcome.remaining}'
            f',"reset_seconds":{outcome.reset_us / SECOND_US}'
        )
        if self._store:
            told += "," + place_part(self._store, shard)
        if decided.took_us >= 0:
            told += f',"duration_seconds":{decided.took_us / SECOND_US}'
        return told

    def _line(self, at_us: int, decided: DecidedBatch, place: int) -> str:
        """The line of any decision."""
        record = decided.record(place)
        peer = request_id = trace_id = shard = ""
        if record.caller is not None:
            peer, headers = record.caller.peer, record.caller.headers
            if headers:
                request_id, trace_id = request_id_of(headers), parent_of(headers).trace_id
        if record.hit is not None:
            shard = self._shard_of(record.hit)
        line = line_of(
            record,
            at_us,
            self._denied if record.denied else self._allowed,
            self._hashed,
            Circumstances(peer, request_id, trace_id, self._store, shard),
        )
        return line + "\n"
