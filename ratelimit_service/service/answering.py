"""From a store's outcomes to the bytes of an answer, and to what is tallied of it.

What must not live here: which statuses and headers an answer has (`limiter`), and how they are
written (`wire`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final, TypeGuard

from ratelimit_service import limiter, wire
from ratelimit_service.errors import PolicyError, StatusCode
from ratelimit_service.model import FailurePolicy, Outcome
from ratelimit_service.observer import Counters
from ratelimit_service.service.asked import Asked
from ratelimit_service.service.faults import FAILED_REQUEST, Faults
from ratelimit_service.service.rare_log import RareLog
from ratelimit_service.service.refusal import Answer, Refusal
from ratelimit_service.settings import Settings
from ratelimit_service.stores import FAILED, Outcomes

__all__ = ["Answering"]

_ABANDONED: Final = Refusal(
    StatusCode.DEADLINE_EXCEEDED, "the caller stopped waiting before its hits were counted"
)


class Answering:
    """Answers planned requests once their outcomes are known."""

    def __init__(
        self, settings: Settings, counters: Counters, faults: Faults, rare_log: RareLog
    ) -> None:
        self._settings = settings
        self._counters = counters
        self._faults = faults
        self._rare_log = rare_log

    def answer(self, asked: Asked | Answer, outcomes: Outcomes) -> Answer:
        """Answers one request and tallies it; what was answered without a plan stays so."""
        if not isinstance(asked, Asked):
            return asked
        if asked.hits and not outcomes:
            if outcomes is FAILED:  # the store has logged why
                self._counters.refusals["internal"] += 1
                return FAILED_REQUEST
            self._counters.refusals["abandoned"] += 1
            return _ABANDONED
        try:
            if asked.limits is not None and _all_within(outcomes):
                answer = wire.encode_within(asked.limits, outcomes)
                if asked.lease and any(map(limiter.takes_lease, asked.hits, outcomes)):
                    answer += wire.encode_request_header(limiter.lease_header(asked.lease))
                limiter.tally_within(asked.plans, outcomes)
                self._counters.decisions["ok"] += 1
                return answer
            if asked.limits is not None:
                answer = self._plain_answer(asked, asked.limits, outcomes)
                if answer:
                    return answer
            in_order = iter(outcomes)
            each = [list(islice(in_order, len(planned.hits))) for planned in asked.plans]
            decision = limiter.answer(asked.request, asked.plans, each, self._settings, asked.lease)
            answer = wire.encode_decision(decision)
            limiter.tally(asked.plans, each, decision, self._counters, self._settings)
            if decision.metadata and "by_policy" in decision.metadata:
                self._rare_log.by_policy()
        except PolicyError as error:
            self._counters.refusals["policy"] += 1
            self._counters.policy_decisions[FailurePolicy.ERROR] += 1
            self._rare_log.by_policy()
            return Refusal(StatusCode.UNAVAILABLE, str(error))
        except Exception as error:
            return self._faults.request(error)
        return answer

    def _plain_answer(self, asked: Asked, limits: Sequence[bytes], outcomes: Outcomes) -> bytes:
        """The answer to a request of plain descriptors; nothing if it takes the long way."""
        found = limiter.verdict(asked.plans, outcomes)
        if found is None:
            return b""
        header = b""
        if asked.lease and not found.denied:
            for hit, outcome in zip(asked.hits, outcomes, strict=True):
                if outcome is not None and not outcome.over and limiter.takes_lease(hit, outcome):
                    header = wire.encode_request_header(limiter.lease_header(asked.lease))
        answer = wire.encode_plain(
            found.denied, found.statuses, limits, outcomes, found.by_policy, header
        )
        limiter.tally_plain(asked.plans, outcomes, found, self._counters)
        if found.by_policy:
            self._rare_log.by_policy()
        return answer


def _all_within(outcomes: Outcomes) -> TypeGuard[Sequence[Outcome]]:
    """Whether every hit was counted by the store, and none is over."""
    for outcome in outcomes:  # noqa: SIM110 -- a generator costs more than all of the rest
        if outcome is None or outcome[0] or outcome[4]:
            return False
    return True
