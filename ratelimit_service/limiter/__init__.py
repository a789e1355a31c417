"""Pure decisions: requests and rules in, hits out; outcomes in, decisions out. No I/O, no wire."""

from ratelimit_service.limiter.answer import answer
from ratelimit_service.limiter.plan import Plan, independent, plan
from ratelimit_service.limiter.tally import tally

__all__ = ["Plan", "answer", "independent", "plan", "tally"]
