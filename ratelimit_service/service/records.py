"""What was decided, for whoever listens: a record of each request, made only if somebody does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ratelimit_service.limiter import DecidedBy, ground_of
from ratelimit_service.model import Hit, Limit, Outcome, Override
from ratelimit_service.rules.paths import Source
from ratelimit_service.service.asked import Asked
from ratelimit_service.service.callers import CallOrigin
from ratelimit_service.service.refusal import Answer
from ratelimit_service.stores import Settled, Verdict

__all__ = ["Chosen", "DecisionRecord", "Listener", "is_denied", "record"]


class DecisionRecord(NamedTuple):
    """One decision.

    `body` is what was asked, as it came; `wire.decode_request` reads it. `limit` and `rule` (its
    path, empty for a limit that the caller brought) are what decided: the limit that denied, else
    the one of which the fewest hits are left. `outcome` is the count there, None without one, and
    `hit` what was charged. `descriptor` is the place of the one that this is about, and `source`
    where the rule stands. It stands for so many equal decisions (`times`). `caller` is who
    asked, None if nobody has looked, and `took_us` how long the answer took, -1 if that is unknown.
    `overrides` are those of an operator that took part.
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
    times: int = 1
    caller: CallOrigin | None = None
    took_us: int = -1
    overrides: tuple[Override, ...] = ()

    @property
    def denied(self) -> bool:
        """Whether the request did not pass."""
        return is_denied(self.answer, self.verdict)


Listener = Callable[[Sequence[DecisionRecord]], None]
"""Hears of the decisions of one batch, after they were answered. It must not wait."""

Chosen = Callable[[bool], bool]
"""Whether the listener wants a decision, by whether it denied. Others are not recorded at all."""


def is_denied(answer: Answer, verdict: Verdict | None) -> bool:
    """Whether a request did not pass; without a verdict its answer alone tells."""
    return not isinstance(answer, bytes) or (verdict is not None and not verdict.passes)


def record(
    body: bytes,
    asked: Asked | Answer,
    settled: Settled,
    answer: Answer,
    caller: CallOrigin | None = None,
    took_us: int = -1,
) -> DecisionRecord:
    """The record of a request with what it came to."""
    if not isinstance(asked, Asked):
        # Answered before it was planned: by policy, for lack of time, or refused.
        by = DecidedBy.POLICY if isinstance(asked, bytes) else DecidedBy.NOTHING
        return DecisionRecord(body, answer, None, by, caller=caller, took_us=took_us)
    found = ground_of(asked.plans, settled)
    declared = found.rule.declared if found.rule is not None else None
    return DecisionRecord(
        body,
        answer,
        settled.verdict,
        found.by,
        found.limit,
        "" if declared is None else declared.path,
        found.outcome,
        found.hit,
        found.descriptor,
        None if declared is None else declared.source,
        caller=caller,
        took_us=took_us,
        overrides=() if found.rule is None else found.rule.overrides,
    )
