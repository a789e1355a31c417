"""How a charge is taken back: by its receipt, so that it can come late, but never twice.

What must not live here: whether a request is denied, and so what is to be taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ratelimit_service.model import MAX_ADDEND, Hit, Hold, Mode, Outcome, Receipt
from ratelimit_service.stores import Outcomes
from ratelimit_service.stores.redis.batch import Background
from ratelimit_service.stores.redis.shard import Shard

__all__ = [
    "GivenBack",
    "give_back",
    "give_back_here",
    "late_refunds",
    "look",
    "refunds",
    "undoable",
]

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
    if not (denied or dropped):
        late = [
            outcome if before is not None and before.local else None
            for before, outcome in zip(decided, late, strict=True)
        ]
    return refunds(hits, late, at_us, dropped=dropped)


def give_back(shard: Shard, hits: Sequence[Hit], given_back: GivenBack) -> None:
    """Has a shard take back what it has counted; `given_back` hears of it once that is done."""

    def done(_: Outcomes | None) -> None:
        given_back([hit.key for hit in hits])

    if hits:
        shard.charge(Background([hits], done))


def give_back_here(shard: Shard, hits: Sequence[Hit], outcomes: Outcomes, at_us: int) -> None:
    """Takes back what this process alone has counted."""
    counted_here = refunds(hits, outcomes, at_us)
    if counted_here:
        shard.charge_here(counted_here, at_us)


def undoable(hit: Hit, outcome: Outcome | None, *, dropped: bool = False) -> bool:
    """Whether a hit was counted that is not counted if its request is denied.

    If the request is `dropped`, not even hits count that count though they are denied.
    """
    if outcome is None or outcome.charged <= 0 or hit.refund:
        return False
    return dropped or not hit.count_denied


def refunds(
    hits: Sequence[Hit], outcomes: Outcomes, at_us: int, *, dropped: bool = False
) -> list[Hit]:
    """The refunds that take back exactly what was counted of these hits at `at_us`.

    All hits on one counter are one refund, with the reset of the last of them: in a queue only what
    is at its end can be given back, and there may be one that counts though it is denied. What was
    reserved is let go of.

    Hits that counted without room were told how long to wait for room, not when their window ends.
    So their window is taken to be that of `at_us`. If the clock has stepped back it can be another
    one, and the counter holds more rather than less.
    """
    counted = [
        (hit, outcome)
        for hit, outcome in zip(hits, outcomes, strict=True)
        if outcome and undoable(hit, outcome, dropped=True)
    ]
    resets_us = {hit.key: outcome.reset_us for hit, outcome in counted if not outcome.over}
    found: dict[Hit, int] = {}
    for hit, outcome in counted:
        if not undoable(hit, outcome, dropped=dropped):
            continue
        receipt = hit.receipt
        if not isinstance(receipt, Hold):
            reset_us = resets_us.get(hit.key)
            if reset_us is None:
                charge = hit.spec.algorithm.charge
                reset_us = charge(None, at_us, outcome.charged, hit.spec, True, b"").reset_us
            receipt = Receipt(at_us, at_us + reset_us)
        refund = look(hit)._replace(lease=hit.lease, receipt=receipt)
        found[refund] = min(found.get(refund, 0) + outcome.charged, MAX_ADDEND)
    return [refund._replace(addend=addend) for refund, addend in found.items()]


def look(hit: Hit) -> Hit:
    """The hit that asks what is left on a hit's counter, and when the counter is as new.

    It is a refund of nothing. A charge of nothing would not do: on a counter beyond its limit it is
    told how long to wait for room instead.
    """
    return hit._replace(
        addend=0, mode=Mode.ENFORCED, refund=True, count_denied=False, lease=b"", joined=False
    )
