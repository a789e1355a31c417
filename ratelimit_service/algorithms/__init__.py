"""How hits are counted: each algorithm in Python beside its Lua, and the rule of passing."""

from ratelimit_service.algorithms.registry import (
    ALGORITHMS,
    CALLED_ELSEWHERE,
    DEFAULT,
    PARAMETERS,
    can_reserve,
    capacity_of,
    soft_of,
    spec_of,
    value_of,
    with_parameter,
    with_reservations,
)
from ratelimit_service.algorithms.settle import (
    LEAST_ADVANCE,
    Changes,
    denying,
    descriptors_of,
    settle,
)

__all__ = [
    "ALGORITHMS",
    "CALLED_ELSEWHERE",
    "DEFAULT",
    "LEAST_ADVANCE",
    "PARAMETERS",
    "Changes",
    "can_reserve",
    "capacity_of",
    "denying",
    "descriptors_of",
    "settle",
    "soft_of",
    "spec_of",
    "value_of",
    "with_parameter",
    "with_reservations",
]
