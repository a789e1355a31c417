"""How hits are counted: each algorithm in Python beside its Lua, and the rule of passing."""

from ratelimit_service.algorithms.concurrency import MAX_LEASES, held, several
from ratelimit_service.algorithms.settle import ALGORITHMS, Changes, denies, settle
from ratelimit_service.algorithms.sliding_log import MAX_HITS
from ratelimit_service.algorithms.step import Algorithm, State, Step

__all__ = [
    "ALGORITHMS",
    "MAX_HITS",
    "MAX_LEASES",
    "Algorithm",
    "Changes",
    "State",
    "Step",
    "denies",
    "held",
    "settle",
    "several",
]
