"""Pure decisions: requests and rules in, hits out; outcomes in, decisions out. No I/O, no wire."""

from ratelimit_service.limiter.additions import Said, Told, say
from ratelimit_service.limiter.answer import Plain, answer, plain
from ratelimit_service.limiter.callers import RuleCallers, Seen, TopCallers
from ratelimit_service.limiter.compiled import CompiledRule, Plan
from ratelimit_service.limiter.ground import DecidedBy, Ground, ground_of
from ratelimit_service.limiter.overrides import DomainOverrides, Ruling, holding, ruling_of
from ratelimit_service.limiter.plan import (
    LEASE_BYTES,
    MAX_LIMITS,
    Planner,
    PlanTemplate,
    too_many_limits,
    unasked,
)
from ratelimit_service.limiter.queueing import queue_of
from ratelimit_service.limiter.steer import SteeredPlans, grant_end, steer
from ratelimit_service.limiter.tally import look_at_kept, tally, tally_plain, tally_within

__all__ = [
    "LEASE_BYTES",
    "MAX_LIMITS",
    "CompiledRule",
    "DecidedBy",
    "DomainOverrides",
    "Ground",
    "Plain",
    "Plan",
    "PlanTemplate",
    "Planner",
    "RuleCallers",
    "Ruling",
    "Said",
    "Seen",
    "SteeredPlans",
    "Told",
    "TopCallers",
    "answer",
    "grant_end",
    "ground_of",
    "holding",
    "look_at_kept",
    "plain",
    "queue_of",
    "ruling_of",
    "say",
    "steer",
    "tally",
    "tally_plain",
    "tally_within",
    "too_many_limits",
    "unasked",
]
