"""From a store's outcomes to the bytes of an answer, and to what is tallied of it.

What must not live here: which statuses and headers an answer has (`limiter`), and how they are
written (`wire`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final

from ratelimit_service import limiter, wire
from ratelimit_service.errors import StatusCode
from ratelimit_service.eventloop.clock import Clock
from ratelimit_service.model import FailurePolicy, Outcome
from ratelimit_service.model.refusal import Answer, Refusal
from ratelimit_service.observability.stats import Stats
from ratelimit_service.service.faults import FAILED_REQUEST, Faults
from ratelimit_service.service.giving_back import give_back
from ratelimit_service.service.notes import Note, note_unkept
from ratelimit_service.service.planned import PlannedRequest
from ratelimit_service.service.rare_log import RareLog
from ratelimit_service.settings import Settings
from ratelimit_service.stores import Settled, Store, Verdict

__all__ = ["Answering"]

_ABANDONED: Final = Refusal(
    StatusCode.DEADLINE_EXCEEDED, "the caller stopped waiting before its hits were counted"
)
_POLICY: Final = "and the failure policy is `error`: see the service's health and log"
_UNCOUNTED: Final = Refusal(StatusCode.UNAVAILABLE, f"the store gave no answer in time, {_POLICY}")
_NEVER_LOADED: Final = Refusal(
    StatusCode.UNAVAILABLE, f"the rules of this domain have never loaded, {_POLICY}"
)
_REFUSED: Final = {
    Verdict.FAILED: ("policy", _UNCOUNTED),
    Verdict.DROPPED: ("abandoned", _ABANDONED),
    Verdict.BROKEN: ("internal", FAILED_REQUEST),
}
"""The reason in metrics and the refusal, by verdict."""

_WITHIN: Final = Verdict.WITHIN


class Answering:
    """Answers planned requests once their outcomes are known."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        stats: Stats,
        faults: Faults,
        rare_log: RareLog,
        clock: Clock,
        note: Note,
    ) -> None:
        self._note = note
        self._clock = clock
        self._store = store
        self._settings = settings
        self._stats = stats
        self._faults = faults
        self._rare_log = rare_log

    def answer(
        self,
        planned: Sequence[PlannedRequest | Answer],
        settled: Sequence[Settled],
        callers: limiter.TopCallers | None = None,
    ) -> list[Answer]:
        """Answers a batch and tallies it; what was answered without a plan stays so.

        `callers` hear of each descriptor that is over or near its limit. A request that cannot be
        answered is refused, and gets back what it was charged.
        """
        answers: list[Answer] = []
        within = 0
        for index, one in enumerate(planned):
            each = settled[index]
            if not isinstance(one, PlannedRequest):
                answers.append(one)
                continue
            try:
                limits = one.limits
                if each.verdict is _WITHIN and limits is not None:
                    outcomes: list[Outcome] = each.outcomes  # type: ignore[assignment]  # by it
                    encoded = wire.encode_within(limits, outcomes)
                    if one.says:
                        encoded += self._additions(one, each)
                    limiter.tally_within(one.plans, outcomes, callers)
                    within += 1
                    answers.append(encoded)
                else:
                    answers.append(self._answer(one, each, callers))
            except Exception as error:
                answers.append(self._faults.request(error))
                self.give_back(one, each)
        if within:
            self._stats.decisions["ok"] += within
        if self._rare_log.uncounted:
            self._rare_log.say_uncounted()
        return answers

    def give_back(self, planned: PlannedRequest, settled: Settled) -> None:
        """Gives back what a request was charged that a fault of ours refuses."""
        give_back(self._store, planned.hits, settled, self._faults.note)

    def _answer(
        self, planned: PlannedRequest, settled: Settled, callers: limiter.TopCallers | None
    ) -> Answer:
        verdict = settled.verdict
        if not (verdict.passes or verdict is Verdict.DENIED):
            return self._refuse(planned, verdict, *_REFUSED[verdict])
        if planned.limits is not None:
            answer = self._plain_answer(planned, planned.limits, settled, callers)
            if answer:
                return answer
        in_order = iter(settled.outcomes)
        each = [list(islice(in_order, len(plan.hits))) for plan in planned.plans]
        decision = limiter.answer(self._context(planned, each, settled))
        answer = wire.encode_decision(decision)
        if decision.holds_us:
            answer += wire.encode_quota(self._clock() + decision.holds_us)
        limiter.tally(planned.plans, each, verdict, self._stats, self._settings, callers)
        if verdict is Verdict.DENIED:
            note_unkept(planned.plans, each, self._note)
        listed = decision.metadata.get("by_policy") if decision.metadata else None
        if isinstance(listed, list):
            self._rare_log.uncounted[listed[0]["policy"]] += 1
        return answer

    def _refuse(
        self, planned: PlannedRequest, verdict: Verdict, reason: str, refusal: Refusal
    ) -> Refusal:
        self._stats.refusals[reason] += 1
        if verdict is Verdict.FAILED:
            self._stats.policy_decisions[FailurePolicy.ERROR] += 1
            self._rare_log.uncounted[FailurePolicy.ERROR] += 1
            return refusal if planned.hits else _NEVER_LOADED
        return refusal

    def _additions(self, planned: PlannedRequest, settled: Settled) -> bytes:
        """What follows the statuses of a request whose descriptors are all within their limits."""
        said = self._said(planned, settled)
        return wire.encode_additions(
            said.response_headers, said.request_headers, said.body, said.metadata
        )

    def _said(self, planned: PlannedRequest, settled: Settled) -> limiter.ResponseExtras:
        """What is said of a request of usual descriptors beside its statuses."""
        each = [[outcome] for outcome in settled.outcomes]
        return limiter.response_extras(planned.says, self._context(planned, each, settled))

    def _context(
        self, planned: PlannedRequest, each: Sequence[list[Outcome | None]], settled: Settled
    ) -> limiter.DecisionContext:
        return limiter.DecisionContext(
            planned.request,
            planned.plans,
            each,
            settled,
            self._settings,
            self._clock,
            planned.lease,
            planned.ban_us,
        )

    def _plain_answer(
        self,
        planned: PlannedRequest,
        limits: Sequence[wire.EncodedLimit],
        settled: Settled,
        callers: limiter.TopCallers | None,
    ) -> bytes:
        """The answer to a request of plain descriptors; nothing if it takes the slow path."""
        outcomes, verdict = settled.outcomes, settled.verdict
        plain = limiter.plain(planned.plans, outcomes)
        if plain is None:
            return b""
        additions = b""
        if planned.says:
            said = self._said(planned, settled)
            if said.metadata and plain.by_policy:
                return b""  # both go into the one field for metadata
            additions = wire.encode_additions(
                said.response_headers, said.request_headers, said.body, said.metadata
            )
            if said.holds_us:
                additions += wire.encode_quota(self._clock() + said.holds_us)
        answer = wire.encode_plain(
            verdict.passes, plain.statuses, limits, outcomes, plain.by_policy, additions
        )
        limiter.tally_plain(planned.plans, settled, self._stats, callers)
        if plain.by_policy:
            self._rare_log.uncounted[plain.by_policy[0][1]] += 1
        return answer
