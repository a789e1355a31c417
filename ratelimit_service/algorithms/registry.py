"""Which algorithms there are, and what a limit comes to with its own.

Registering one is a line in `NAMES`: the module of that name declares it as `ALGORITHM`, and
`lua/<name>.lua` beside it is its rendering for Redis.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Final

from ratelimit_service.algorithms.level import AHEAD_PARTS
from ratelimit_service.model import (
    MAX_EXACT,
    TICKS_US,
    Algorithm,
    CounterForm,
    CounterSpec,
    Limit,
    Parameter,
    Reservations,
)

__all__ = [
    "ALGORITHMS",
    "CALLED_ELSEWHERE",
    "DEFAULT",
    "PARAMETERS",
    "can_reserve",
    "capacity_of",
    "soft_of",
    "spec_of",
    "value_of",
    "with_parameter",
    "with_reservations",
]

NAMES: Final = (
    "fixed_window",
    "sliding_window",
    "sliding_log",
    "token_bucket",
    "leaky_bucket",
    "concurrency",
)
"""Their indices number them in script calls: new ones go to the end, and none is ever taken out."""


def _declared(name: str) -> Algorithm:
    algorithm = import_module(f"ratelimit_service.algorithms.{name}").ALGORITHM
    assert isinstance(algorithm, Algorithm)  # noqa: S101 -- a mistake of ours, seen at the import
    assert algorithm.name == name  # noqa: S101
    return algorithm


ALGORITHMS: Final[dict[str, Algorithm]] = {name: _declared(name) for name in NAMES}
"""Every algorithm by the name that rules, Lua files, metrics and docs use."""

CALLED_ELSEWHERE: Final = {
    "sliding_window_counter": "sliding_window",
    "sliding_window_log": "sliding_log",
}
"""What books and other rate limiters call algorithms, with their names here."""

DEFAULT: Final = ALGORITHMS["fixed_window"]
"""What counts where a rule names none."""

PARAMETERS: Final[dict[str, Parameter]] = {
    parameter.name: parameter
    for algorithm in ALGORITHMS.values()
    for parameter in algorithm.parameters
}
"""Every key of rules that is a parameter of some algorithm."""

_WHOLE_PPM: Final = 1_000_000


def with_parameter(name: str) -> Sequence[Algorithm]:
    """The algorithms that have a parameter of this name."""
    return [
        algorithm
        for algorithm in ALGORITHMS.values()
        if name in {parameter.name for parameter in algorithm.parameters}
    ]


def value_of(limit: Limit, parameter: Parameter) -> int:
    """The value of a parameter of the limit's algorithm, 0 where it is the default."""
    if parameter.field:
        value = getattr(limit, parameter.field)
        return value if isinstance(value, int) else 0
    own = [each.name for each in ALGORITHMS[limit.algorithm].parameters if not each.field]
    index = own.index(parameter.name)
    return limit.own[index] if index < len(limit.own) else 0


def capacity_of(limit: Limit) -> int:
    """The hits that fit before the soft part begins: what `remaining` counts down from."""
    return ALGORITHMS[limit.algorithm].capacity(limit)


def soft_of(limit: Limit) -> int:
    """The hits above the capacity that pass with a warning."""
    return capacity_of(limit) * limit.soft_ppm // _WHOLE_PPM


def can_reserve(limit: Limit) -> bool:
    """Whether hits of a limit can be held: leases and places in a queue are held as it is."""
    return not (ALGORITHMS[limit.algorithm].leases or limit.max_wait_us)


def with_reservations(limit: Limit) -> Limit:
    """The same limit, which takes reservations if it can."""
    if limit.reservations is not None or not can_reserve(limit):
        return limit
    return limit._replace(reservations=Reservations())


def spec_of(limit: Limit) -> CounterSpec:
    """The limit in the numbers that counters are judged by."""
    algorithm = ALGORITHMS[limit.algorithm]
    hard = capacity_of(limit) + soft_of(limit)
    rate = limit.requests_per_unit if algorithm.refills else 0
    tick = 0
    if algorithm.ticks:
        whole = hard + limit.reserved  # all limits of a pool count in the same ticks
        tick = _tick_exponent(limit.window_us, max(2, whole + (rate or whole)))
    # What passes with a warning, counts though it is denied, or is held has to be asked one by one.
    plain = limit.soft_ppm or limit.count_denied or limit.reservations is not None
    advances = limit.advances and not plain
    if advances and algorithm.refills:
        hard -= -(-hard // AHEAD_PARTS)
    form = CounterForm(
        tick,
        limit.anchor,
        limit.buckets,
        limit.stepped,
        limit.max_wait_us > 0,
        limit.own,
        advances,
        limit.reservations is not None,
    )
    return CounterSpec(algorithm, hard, limit.window_us, rate, limit.reserved, form)


def _tick_exponent(window_us: int, hits: int) -> int:
    """The smallest k so that a window in ticks of 10^k microseconds, times `hits`, is exact."""
    tick = 0
    while -(-window_us // TICKS_US[tick]) * (hits + 1) >= MAX_EXACT:
        tick += 1
    return tick
