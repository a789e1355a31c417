"""How hits are counted: each algorithm in Python beside its Lua, and the rule of passing."""

from ratelimit_service.algorithms.settle import ALGORITHMS, Changes, denies, settle
from ratelimit_service.algorithms.step import Algorithm, Step

__all__ = ["ALGORITHMS", "Algorithm", "Changes", "Step", "denies", "settle"]
