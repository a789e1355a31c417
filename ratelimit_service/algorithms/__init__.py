"""How hits are counted: each algorithm in Python beside its Lua, and the rule of passing."""

from ratelimit_service.algorithms.registry import (
    ALGORITHMS,
    CALLED_ELSEWHERE,
    DEFAULT,
    PARAMETERS,
    capacity_of,
    soft_of,
    spec_of,
    value_of,
    with_parameter,
)
from ratelimit_service.algorithms.settle import Changes, denying, descriptors_of, settle

__all__ = [
    "ALGORITHMS",
    "CALLED_ELSEWHERE",
    "DEFAULT",
    "PARAMETERS",
    "Changes",
    "capacity_of",
    "denying",
    "descriptors_of",
    "settle",
    "soft_of",
    "spec_of",
    "value_of",
    "with_parameter",
]
