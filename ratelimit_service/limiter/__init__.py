"""Pure decisions: requests and rules in, hits out; outcomes in, decisions out. No I/O, no wire."""

from ratelimit_service.limiter.answer import answer
from ratelimit_service.limiter.compiled import CompiledRule
from ratelimit_service.limiter.headers import lease_header, takes_lease
from ratelimit_service.limiter.plain import Plain, plain, tally_plain
from ratelimit_service.limiter.plan import LEASE_BYTES, Plan, Planner, PlanTemplate, unasked
from ratelimit_service.limiter.tally import tally, tally_within

__all__ = [
    "LEASE_BYTES",
    "CompiledRule",
    "Plain",
    "Plan",
    "PlanTemplate",
    "Planner",
    "answer",
    "lease_header",
    "plain",
    "takes_lease",
    "tally",
    "tally_plain",
    "tally_within",
    "unasked",
]
