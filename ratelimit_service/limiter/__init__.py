"""Pure decisions: requests and rules in, hits out; outcomes in, decisions out. No I/O, no wire."""

from ratelimit_service.limiter.additions import DecisionContext, ResponseExtras, response_extras
from ratelimit_service.limiter.answer import answer, plain
from ratelimit_service.limiter.callers import CallerStanding, RuleCallers, TopCallers
from ratelimit_service.limiter.compiled import CompiledRule, Plan
from ratelimit_service.limiter.decision_reason import DecidedBy, decision_reason
from ratelimit_service.limiter.overridden_plans import OverriddenPlans, apply_overrides, grant_end
from ratelimit_service.limiter.overrides import DomainOverrides, Ruling, holding, ruling_of
from ratelimit_service.limiter.plan import (
    LEASE_BYTES,
    MAX_LIMITS,
    Planner,
    PlanTemplate,
    settle_without_hits,
    too_many_limits,
)
from ratelimit_service.limiter.queueing import queue_of
from ratelimit_service.limiter.tally import tally, tally_plain, tally_sample, tally_within

__all__ = [
    "LEASE_BYTES",
    "MAX_LIMITS",
    "CallerStanding",
    "CompiledRule",
    "DecidedBy",
    "DecisionContext",
    "DomainOverrides",
    "OverriddenPlans",
    "Plan",
    "PlanTemplate",
    "Planner",
    "ResponseExtras",
    "RuleCallers",
    "Ruling",
    "TopCallers",
    "answer",
    "apply_overrides",
    "decision_reason",
    "grant_end",
    "holding",
    "plain",
    "queue_of",
    "response_extras",
    "ruling_of",
    "settle_without_hits",
    "tally",
    "tally_plain",
    "tally_sample",
    "tally_within",
    "too_many_limits",
]
