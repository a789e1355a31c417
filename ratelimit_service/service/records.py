"""What was decided, for whoever listens: a record is made when somebody asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from ratelimit_service.limiter import DecidedBy, Plan, decision_reason
from ratelimit_service.limiter.turns import paid_of
from ratelimit_service.model import Hit, Limit, Outcome, Override
from ratelimit_service.model.call_origin import CallOrigin
from ratelimit_service.model.refusal import Answer
from ratelimit_service.rules.paths import Source
from ratelimit_service.service.planned import PlannedRequest
from ratelimit_service.stores import BROKEN, Settled, Verdict

__all__ = [
    "DecidedBatch",
    "DecisionRecord",
    "Listener",
    "Reserved",
    "is_denied",
    "record",
    "refused_by",
]

_WITHIN: Final = Verdict.WITHIN
_ADMITTED: Final = Verdict.ADMITTED
_DENIED: Final = Verdict.DENIED


class Reserved(NamedTuple):
    """What was reserved or settled: a part of the id, empty without one, and the hits.

    They are held for `ttl_us`, or `too_large` to be held. What `settles` ends a hold of `held`.
    """

    settles: bool
    id: str
    hits: int | None
    ttl_us: int = 0
    too_large: bool = False
    held: int = 0


class DecisionRecord(NamedTuple):
    """One decision.

    `body` is what was asked, as it came; `wire.decode_request` reads it. `limit` and `rule` (its
    path, empty for a limit that the caller brought) are what decided: the limit that denied, else
    the one of which the fewest hits are left. `outcome` is the count there, None without one, and
    `hit` what was charged. `descriptor` is the place of the one that this is about, and `source`
    where the rule stands. `caller` is who asked, None if nobody has looked, and `took_us` how long
    the answer took, -1 if that is unknown. `overrides` are those of an operator that took part.
    Of limits that pay in turn `in_turn` names those that were asked, and `paid` has those of the
    request that have paid, with the places of their descriptors. `reserved` is there if hits were
    held or settled.
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
    caller: CallOrigin | None = None
    took_us: int = -1
    overrides: tuple[Override, ...] = ()
    in_turn: tuple[str, ...] = ()
    paid: Sequence[tuple[int, str]] = ()
    reserved: Reserved | None = None

    @property
    def denied(self) -> bool:
        """Whether the request did not pass."""
        return is_denied(self.answer, self.verdict)


class DecidedBatch:
    """Decisions that were made together. It holds what they were made of, and never changes.

    `settled` is None after a fault of ours; then not all need have been `planned`. `records` are
    there if they were made before: then nothing else is known.
    """

    __slots__ = ("answers", "bodies", "origins", "planned", "records", "settled", "took_us")

    def __init__(
        self,
        bodies: Sequence[bytes],
        planned: Sequence[PlannedRequest | Answer],
        settled: Sequence[Settled] | None,
        answers: Sequence[Answer],
        origins: Sequence[CallOrigin] | None,
        took_us: int,
    ) -> None:
        self.bodies = bodies
        self.planned = planned
        self.settled = settled
        self.answers = answers
        self.origins = origins
        """Who has asked; None if nobody has looked."""
        self.took_us = took_us
        self.records: Sequence[DecisionRecord] | None = None

    @classmethod
    def of(cls, records: Sequence[DecisionRecord]) -> DecidedBatch:
        """Decisions of which there are records."""
        decided = cls(
            [each.body for each in records], (), None, [each.answer for each in records], None, -1
        )
        decided.records = records
        return decided

    def denied(self, index: int) -> bool:
        """Whether the request at this place did not pass."""
        if self.records is not None:
            return self.records[index].denied
        verdict = None
        if self.settled is not None and isinstance(self.planned[index], PlannedRequest):
            verdict = self.settled[index].verdict
        return is_denied(self.answers[index], verdict)

    def denied_indices(self) -> Sequence[int]:
        """The places of the requests that did not pass."""
        if self.records is not None or self.settled is None:
            return [index for index in range(len(self.bodies)) if self.denied(index)]
        planned, settled = self.planned, self.settled
        if [each.verdict for each in settled].count(_DENIED) == len(settled):
            return range(len(settled))  # as in a flood; a request without a plan is never DENIED
        return [
            index
            for index, (answer, each) in enumerate(zip(self.answers, self.settled, strict=True))
            if (
                each.verdict is not _WITHIN
                and each.verdict is not _ADMITTED
                and isinstance(planned[index], PlannedRequest)
            )
            or not isinstance(answer, bytes)
        ]

    def record(self, index: int) -> DecisionRecord:
        """The record of the request at this place."""
        if self.records is not None:
            return self.records[index]
        answer = self.answers[index]
        planned = self.planned[index] if index < len(self.planned) else answer
        settled = BROKEN
        if self.settled is not None:
            settled = self.settled[index]
        elif isinstance(planned, PlannedRequest) and not planned.hits:
            settled = planned.settled
        origin = None if self.origins is None else self.origins[index]
        return record(self.bodies[index], planned, settled, answer, origin, self.took_us)


class Listener(Protocol):
    """Hears of decisions. It must not wait."""

    def hear(self, decided: DecidedBatch) -> None:
        """Hears of decisions, after they were answered."""

    def missed(self, calls: int) -> None:
        """Hears how many calls were refused of which there was no time to tell."""


def is_denied(answer: Answer, verdict: Verdict | None) -> bool:
    """Whether a request did not pass; without a verdict its answer alone tells."""
    return not isinstance(answer, bytes) or (verdict is not None and not verdict.passes)


def record(
    body: bytes,
    planned: PlannedRequest | Answer,
    settled: Settled,
    answer: Answer,
    caller: CallOrigin | None = None,
    took_us: int = -1,
) -> DecisionRecord:
    """The record of a request with what it came to."""
    if not isinstance(planned, PlannedRequest):
        # Answered before it was planned: by policy, for lack of time, or refused.
        by = DecidedBy.POLICY if isinstance(planned, bytes) else DecidedBy.NOTHING
        return DecisionRecord(body, answer, None, by, caller=caller, took_us=took_us)
    reason = decision_reason(planned.plans, settled)
    declared = reason.plan.declared if reason.plan is not None else None
    return DecisionRecord(
        body,
        answer,
        settled.verdict,
        reason.by,
        reason.limit,
        "" if declared is None else declared.path,
        reason.outcome,
        reason.hit,
        reason.descriptor,
        None if declared is None else declared.source,
        caller=caller,
        took_us=took_us,
        overrides=() if reason.plan is None else reason.plan.rule.overrides,
        in_turn=reason.in_turn,
        paid=paid_of(planned.plans, settled),
    )


def refused_by(
    told: DecisionRecord, plans: Sequence[Plan], descriptor: int, limit: Limit
) -> DecisionRecord:
    """The same, of a request that this limit let nobody count."""
    declared = plans[descriptor].declared
    if declared is not None:
        told = told._replace(rule=declared.path, source=declared.source)
    return told._replace(by=DecidedBy.NOTHING, limit=limit, descriptor=descriptor)
