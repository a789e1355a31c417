"""How a charge is taken back: by its receipt, so that it can come late, but never twice.

What must not live here: whether a request is denied, and so what is to be taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ratelimit_service.model import Hit, Hold, Mode, Outcome, Receipt
from ratelimit_service.stores import Outcomes
from ratelimit_service.stores.redis.batch import Background
from ratelimit_service.stores.redis.shard import Shard

__all__ = ["GivenBack", "give_back", "give_back_here", "late_refunds", "look", "undo", "undoable"]

GivenBack = Callable[[Sequence[bytes]], None]
"""Hears of counters in which hits were given back, once that is done."""


def late_refunds(
    hits: Sequence[Hit],
    decided: Outcomes,
    late: Outcomes,
    at_us: int,
    *,
    denied: bool,
    dropped: bool = False,
) -> list[Hit]:
    """Refunds of what a server has counted at `at_us`, after the request was decided without it.

    If the request was denied or dropped, all of its charges are taken back; else only those that
    this process has counted instead. `decided` are the outcomes by which it was decided, `late`
    those that the server has given.
    """
    return [
        undo(hit, outcome, at_us)
        for hit, before, outcome in zip(hits, decided, late, strict=True)
        if outcome
        and undoable(hit, outcome, dropped=dropped)
        and (denied or dropped or (before is not None and before.local))
    ]


def give_back(shard: Shard, refunds: Sequence[Hit], given_back: GivenBack) -> None:
    """Has a shard take back what it has counted; `given_back` hears of it once that is done."""

    def done(_: Outcomes | None) -> None:
        given_back([hit.key for hit in refunds])

    if refunds:
        shard.charge(Background([refunds], done))


def give_back_here(shard: Shard, hits: Sequence[Hit], outcomes: Outcomes, at_us: int) -> None:
    """Takes back what this process alone has counted."""
    refunds = late_refunds(hits, outcomes, outcomes, at_us, denied=True)
    if refunds:
        shard.charge_here(refunds, at_us)


def undoable(hit: Hit, outcome: Outcome | None, *, dropped: bool = False) -> bool:
    """Whether a hit was counted that is not counted if its request is denied.

    If the request is `dropped`, not even hits count that count though they are denied.
    """
    if outcome is None or outcome.charged <= 0 or hit.refund:
        return False
    return dropped or not hit.count_denied


def undo(hit: Hit, outcome: Outcome, at_us: int) -> Hit:
    """The refund that takes back exactly this charge, which was counted at `at_us`.

    Hits that counted without room were told how long to wait for room, not when their window ends.
    So their window is taken to be that of `at_us`. If the clock has stepped back it can be another
    one, and the counter holds more rather than less. What was reserved is let go of.
    """
    if isinstance(hit.receipt, Hold):
        return hit._replace(mode=Mode.ENFORCED, refund=True, addend=outcome.charged, joined=False)
    reset_us = outcome.reset_us
    if outcome.over:
        charge = hit.spec.algorithm.charge
        reset_us = charge(None, at_us, outcome.charged, hit.spec, True, b"").reset_us
    receipt = Receipt(at_us, at_us + reset_us)
    addend = outcome.charged
    return hit._replace(
        addend=addend, mode=Mode.ENFORCED, refund=True, receipt=receipt, joined=False
    )


def look(hit: Hit) -> Hit:
    """The hit that asks what is left on a hit's counter, and when the counter is as new.

    It is a refund of nothing. A charge of nothing would not do: on a counter beyond its limit it is
    told how long to wait for room instead.
    """
    return hit._replace(
        addend=0, mode=Mode.ENFORCED, refund=True, count_denied=False, lease=b"", joined=False
    )
