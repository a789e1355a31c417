"""How a charge is taken back: by its receipt, so that it can come late, but never twice.

What must not live here: whether a request is denied, and so what is to be taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ratelimit_service.model import Hit, Outcome, Receipt
from ratelimit_service.stores import Outcomes
from ratelimit_service.stores.redis.batch import Background
from ratelimit_service.stores.redis.shard import Shard

__all__ = ["GivenBack", "give_back_here", "give_back_late", "look", "undo", "undoable"]

GivenBack = Callable[[Sequence[bytes]], None]
"""Hears of counters in which hits were given back, once that is done."""


def give_back_late(
    given_back: GivenBack,
    shard: Shard,
    hits: Sequence[Hit],
    told: Outcomes,
    found: Outcomes,
    at_us: int,
    *,
    denied: bool,
    dropped: bool = False,
) -> None:
    """Takes back what a server has counted after the request was decided without it.

    If the request was denied or dropped, all of its charges are taken back; else only those that
    this process has counted instead. `told` are the outcomes that decided the request, `found` the
    late ones.
    """
    undone = [
        undo(hit, outcome, at_us)
        for hit, before, outcome in zip(hits, told, found, strict=True)
        if outcome
        and undoable(hit, outcome, dropped=dropped)
        and (denied or dropped or (before is not None and before.local))
    ]
    if undone:
        keys = [hit.key for hit in undone]
        shard.charge(Background([undone], partial(_given_back_late, given_back, keys)))


def _given_back_late(given_back: GivenBack, keys: Sequence[bytes], _found: Outcomes | None) -> None:
    given_back(keys)


def give_back_here(shard: Shard, hits: Sequence[Hit], found: Outcomes, at_us: int) -> None:
    """Takes back what this process alone has counted."""
    undone = [
        undo(hit, outcome, at_us)
        for hit, outcome in zip(hits, found, strict=True)
        if outcome and undoable(hit, outcome)
    ]
    if undone:
        shard.charge_here(undone, at_us)


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
    one, and the counter holds more rather than less.
    """
    reset_us = outcome.reset_us
    if outcome.over:
        charge = hit.spec.algorithm.charge
        reset_us = charge(None, at_us, hit.addend, hit.spec, True, b"").reset_us
    receipt = Receipt(at_us, at_us + reset_us)
    return hit._replace(refund=True, receipt=receipt, joined=False)


def look(hit: Hit) -> Hit:
    """The hit that asks what is left on a hit's counter, and when the counter is as new.

    It is a refund of nothing. A charge of nothing would not do: on a counter beyond its limit it is
    told how long to wait for room instead.
    """
    return hit._replace(addend=0, refund=True, count_denied=False, lease=b"", joined=False)
