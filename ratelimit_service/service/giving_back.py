"""Gives back what was charged for a request that is refused all the same, by a fault of ours.

What must not live here: what is given back of requests that are denied or dropped (`stores`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ratelimit_service.model import FailurePolicy, Hit, Mode
from ratelimit_service.stores import Granted, Settled, Store

__all__ = ["give_back"]


def give_back(
    store: Store,
    hits: Sequence[Hit],
    settled: Settled,
    note: Callable[[str, Exception], None],
) -> None:
    """Gives back what a request with these hits has charged, as a caller would. Raises nothing.

    Hits that the request itself gave back stay so. What this process has counted alone, by the
    failure policy, stays counted. `note` hears of a fault.
    """
    try:
        back = _back(settled.hits if isinstance(settled, Granted) else hits, settled)
        if back:
            store.charge([back], _given_back)
    except Exception as error:
        note("hits of a refused request could not be given back", error)


def _back(hits: Sequence[Hit], settled: Settled) -> list[Hit]:
    return [
        hit._replace(
            addend=outcome.charged,
            mode=Mode.ENFORCED,
            refund=True,
            count_denied=False,
            joined=False,
            policy=FailurePolicy.OPEN,  # by `local` this process would give back what it never took
        )
        for hit, outcome in zip(hits, settled.outcomes, strict=False)
        if outcome is not None and outcome.charged > 0 and not (hit.refund or outcome.local)
    ]


def _given_back(_found: list[Settled]) -> None:
    """Nobody waits for it."""
