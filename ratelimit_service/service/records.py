"""What was decided, for whoever listens: a record of each request, made only if somebody does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple

from ratelimit_service.limiter import CompiledRule
from ratelimit_service.model import Hit, Limit, Outcome
from ratelimit_service.rules.paths import Source
from ratelimit_service.service.asked import Asked
from ratelimit_service.service.refusal import Answer
from ratelimit_service.stores import Settled, Verdict

__all__ = ["DecidedBy", "DecisionRecord", "Listener", "record"]


class DecidedBy(StrEnum):
    """What a decision rests on."""

    COUNT = "count"
    """What a store has counted."""
    POLICY = "policy"
    """A failure policy; `local` counts in this process alone."""
    LOCAL_CACHE = "local_cache"
    """A limit that is known to be over, without asking the store."""
    NOTHING = "nothing"
    """No limit applied, or the request was refused before it was counted."""


class DecisionRecord(NamedTuple):
    """One decision.

    `body` is what was asked, as it came; `wire.decode_request` reads it. `limit` and `rule` (its
    path, empty for a limit that the caller brought) are what decided: the limit that denied, else
    the one of which the fewest hits are left. `outcome` is the count there, None without one, and
    `hit` what was charged. `descriptor` is the place of the one that this is about, and `source`
    where the rule stands.
    """

    body: bytes
    answer: Answer
    verdict: Verdict | None
    by: DecidedBy
    limit: Limit | None = None
    rule: str = ""
    outcome: Outcome | None = None
    hit: Hit | None = None
    descriptor: int = -1
    source: Source | None = None


Listener = Callable[[Sequence[DecisionRecord]], None]
"""Hears of the decisions of one batch, after they were answered. It must not wait."""


def record(body: bytes, asked: Asked | Answer, settled: Settled, answer: Answer) -> DecisionRecord:
    """The record of a request with what it came to."""
    if not isinstance(asked, Asked):
        # Answered before it was planned: by policy, for lack of time, or refused.
        by = DecidedBy.POLICY if isinstance(asked, bytes) else DecidedBy.NOTHING
        return DecisionRecord(body, answer, None, by)
    outcomes, verdict, place, cached = settled
    if not outcomes:
        by_policy = verdict in (Verdict.DENIED, Verdict.FAILED)
        by = DecidedBy.POLICY if by_policy else DecidedBy.NOTHING
        return DecisionRecord(body, answer, verdict, by)
    if place < 0:
        place = _tightest(asked.hits, settled)
    descriptor, rule, limit = _limit_of(asked, place)
    path, source = "", None
    if rule.declared is not None:
        path, source = rule.declared.path, rule.declared.source
    outcome = outcomes[place]
    by = DecidedBy.LOCAL_CACHE if cached else DecidedBy.COUNT
    if outcome is None or outcome.local:
        by = DecidedBy.POLICY
    hit = asked.hits[place]
    return DecisionRecord(body, answer, verdict, by, limit, path, outcome, hit, descriptor, source)


def _tightest(hits: Sequence[Hit], settled: Settled) -> int:
    """The place of the hit that leaves the fewest others; one without an outcome comes first."""
    remaining = [
        -1 if outcome is None else outcome.remaining if not hit.refund else hit.spec.limit
        for hit, outcome in zip(hits, settled.outcomes, strict=True)
    ]
    return remaining.index(min(remaining))


def _limit_of(asked: Asked, place: int) -> tuple[int, CompiledRule, Limit]:
    """The place of the descriptor, the rule and the limit of a hit, by its place in the request."""
    for descriptor, (rule, _, hits) in enumerate(asked.plans):
        if place < len(hits):
            return descriptor, rule, rule.limits[place].limit
        place -= len(hits)
    raise IndexError(place)
