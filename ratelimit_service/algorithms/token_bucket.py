"""token_bucket: a bucket of `burst` tokens, of which each hit takes one, refilled at a rate.

Tokens come back one at a time, evenly over the unit, or with `refill: stepped` all of a unit's
at once with each multiple of it. What is kept is the tokens that are missing (`level`), so a new
bucket is full. Hits without tokens are never counted, whatever the mode.
"""

from __future__ import annotations

from typing import Final

from ratelimit_service.algorithms.level import (
    BURST,
    advance,
    burst_of,
    charge,
    contradictions,
    refund,
)
from ratelimit_service.model import SECOND_US, Algorithm, CounterSpec, Denied, Parameter, Takes

__all__ = ["ALGORITHM"]

_REFILL: Final = Parameter(
    "refill",
    Takes.WORD,
    "How a `token_bucket` is refilled: `continuous` or `stepped`.",
    "continuous",
    field="stepped",
    instead="to refill at once use token_bucket",
    phrase="refilled at once",
    words=("continuous", "stepped"),
)

_LETTER: Final = "t"


def _key(spec: CounterSpec) -> str:
    """As `t60`, with stepped refills `t60s`."""
    return f"{_LETTER}{spec.window_us // SECOND_US}{'s' if spec.stepped else ''}"


ALGORITHM: Final = Algorithm(
    "token_bucket",
    _LETTER,
    charge,
    refund,
    parameters=(BURST, _REFILL),
    capacity=burst_of,
    contradictions=contradictions,
    key=_key,
    denied=Denied.COUNTED_WITH_ROOM,
    refills=True,
    ticks=True,
    advance=advance,
)
