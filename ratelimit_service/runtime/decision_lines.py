"""Lines of the decision log for many decisions at once, in the process that decides.

What nearly every denial needs is written in a short way: of what decisions of one moment have in
common each piece is written once. `decision_line.line_of` is the long way, and says the same. What
must not live here: which decisions are written down.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from ratelimit_service.limiter import CompiledRule, DecidedBy
from ratelimit_service.model import SECOND_US, Hit, Outcome
from ratelimit_service.service.asked import Asked
from ratelimit_service.service.callers import CallOrigin
from ratelimit_service.service.decision_line import (
    Circumstances,
    HashValue,
    asked_part,
    beginning,
    decider_part,
    line_of,
    origin_part,
    place_part,
)
from ratelimit_service.service.records import DecidedBatch
from ratelimit_service.stores import Verdict
from ratelimit_service.telemetry.parents import parent_of, request_id_of

__all__ = ["DecisionLines"]

_DENIED: Final = Verdict.DENIED
_COUNT: Final = f',"code":"OVER_LIMIT","by":"{DecidedBy.COUNT}","descriptor":'
_CACHE: Final = f',"code":"OVER_LIMIT","by":"{DecidedBy.LOCAL_CACHE}","descriptor":'


class DecisionLines:
    """Makes lines of decisions."""

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
        self._end = "}\n" if hashed is None else ',"hashed":true}\n'
        if denied != 1:
            self._end = f',"sample":{denied}{self._end}'

    def of(self, decisions: Sequence[tuple[int, DecidedBatch, int]]) -> str:
        """The lines of decisions: each with its moment, those beside it, and its place there."""
        lines: list[str] = []
        hashed, end, no_shards = self._hashed, self._end, self._store == "memory"
        batch: DecidedBatch | None = None
        rule: CompiledRule | None = None
        outcome: Outcome | None = None
        origin: CallOrigin | None = None
        by, shard = -1, ""
        known_by_cache = False
        start = told = who = ""
        for at_us, decided, place in decisions:
            asked = decided.asked[place] if decided.settled is not None else None
            if decided.settled is None or not isinstance(asked, Asked) or asked.limits is None:
                lines.append(self._long(at_us, decided, place))
                continue
            outcomes, verdict, deciding, cached = decided.settled[place]
            answered = isinstance(decided.answers[place], bytes)
            if verdict is not _DENIED or deciding < 0 or not answered:
                lines.append(self._long(at_us, decided, place))
                continue
            planned, found = asked.plans[deciding], outcomes[deciding]
            source = planned.rule.declared
            if found is None or found.local or source is None or len(planned.hits) != 1:
                lines.append(self._long(at_us, decided, place))
                continue
            its_shard = "" if no_shards else self._shard_of(planned.hits[0])
            if (
                decided is not batch
                or planned.rule is not rule
                or deciding != by
                or found != outcome
                or its_shard != shard
                or cached is not known_by_cache
            ):
                batch, rule, by, outcome, shard = decided, planned.rule, deciding, found, its_shard
                known_by_cache = cached
                limit = rule.limits[0].limit
                used = max(0, planned.hits[0].spec.limit - found.remaining)
                start = beginning(at_us)
                told = (
                    f"{_CACHE if cached else _COUNT}{by}"
                    f"{decider_part(source.path, source.source, limit, hashed)}"
                    f',"used":{used},"remaining":{found.remaining}'
                    f',"reset_seconds":{found.reset_us / SECOND_US}'
                )
                if self._store:
                    told += "," + place_part(self._store, shard)
                if decided.took_us >= 0:
                    told += f',"duration_seconds":{decided.took_us / SECOND_US}'
            its_origin = None if decided.origins is None else decided.origins[place]
            if its_origin is not origin:
                origin = its_origin
                who = "" if origin is None else self._who(origin)
            lines.append(start + asked_part(decided.bodies[place], hashed) + told + who + end)
        return "".join(lines)

    def _who(self, origin: CallOrigin) -> str:
        request_id = trace_id = ""
        headers = origin.headers
        if headers:
            request_id, trace_id = request_id_of(headers), parent_of(headers).trace_id
        return origin_part(origin.peer, request_id, trace_id, self._hashed)

    def _long(self, at_us: int, decided: DecidedBatch, place: int) -> str:
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
