"""The hits of a request that reserves or settles, in the place of those of its plans.

What must not live here: what an algorithm makes of them (`algorithms.holding`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from ratelimit_service.limiter.plan import LEASE_BYTES, Plan
from ratelimit_service.model import WHOLE_PPM, FailurePolicy, Hit, Hold, Limit, Mode, Outcome

__all__ = [
    "HOLD_ID_BYTES",
    "REMEMBERED_US",
    "gave_place",
    "held_until_settled",
    "hits_to_hold",
    "hits_to_settle",
    "is_held",
    "too_large",
]

HOLD_ID_BYTES: Final = 16

REMEMBERED_US: Final = 60_000_000
"""For so long, beyond the longest reservation, a settled id is known."""


def hits_to_hold(
    plans: Sequence[Plan],
    number: int | None,
    hold_id: bytes,
    ttl_us: int,
    *,
    extends: bool = False,
) -> list[Hit]:
    """The hits of a request that reserves; with no time to live it only asks.

    One that `extends` another has its place already.
    """
    hits = []
    for plan in plans:
        for limit, hit in zip(plan.rule.limits, plan.hits, strict=True):
            asked = _of(hit, number)._replace(count_denied=False)
            if hit.policy is FailurePolicy.LOCAL:
                asked = asked._replace(policy=FailurePolicy.OPEN)  # nobody could settle it
            if _pays_in_turn(plan):
                hits.append(asked._replace(receipt=Hold(0)))
                continue
            if hit.spec.algorithm.leases:
                hits.append(asked._replace(addend=1 if ttl_us and not extends else 0))
                continue
            of_limit = limit.limit.reservations
            for_us, charged = ttl_us, False
            if of_limit is not None:
                for_us, charged = min(ttl_us, of_limit.ttl_us or ttl_us), of_limit.charged
            if plan.rule.hit_mode is not Mode.ENFORCED:
                for_us = 0
            hits.append(asked._replace(receipt=Hold(for_us, charged=charged)))
    return _named(hits, hold_id)


def hits_to_settle(
    plans: Sequence[Plan], number: int | None, hold_id: bytes, remembered_us: int
) -> list[Hit]:
    """The hits of a request that settles. They count, whatever the limits say."""
    hits = []
    for plan in plans:
        if _pays_in_turn(plan):
            hits += [_of(hit, number)._replace(policy=FailurePolicy.OPEN) for hit in plan.hits]
            continue
        for hit in plan.hits:
            settled = _of(hit, number)._replace(joined=False, policy=FailurePolicy.OPEN)
            if hit.spec.algorithm.leases:
                hits.append(settled._replace(addend=1, refund=True))
                continue
            hold = Hold(remembered_us, settles=True)
            hits.append(settled._replace(mode=Mode.SHADOW, count_denied=True, receipt=hold))
    return _named(hits, hold_id)


def is_held(hit: Hit, outcome: Outcome | None) -> bool:
    """Whether a hit that reserves is held, and not only asked for, in a request that passes."""
    if outcome is None:
        return False
    hold = hit.receipt
    if hold is None:  # it has a place
        return not outcome.over
    return hit.spec.holds and hit.addend > 0 and isinstance(hold, Hold) and hold.ttl_us > 0


def gave_place(hit: Hit, outcome: Outcome | None) -> bool:
    """Whether a hit that settles has given back a place."""
    return hit.refund and outcome is not None and outcome.charged > 0


def held_until_settled(hits: Sequence[Hit], outcomes: Sequence[Outcome | None]) -> list[int]:
    """What was held on each counter until a settle ended it; nothing where no hold was left."""
    return [
        outcome.remaining
        for hit, outcome in zip(hits, outcomes, strict=True)
        if outcome is not None and not outcome.over and isinstance(hit.receipt, Hold)
    ]


def too_large(plans: Sequence[Plan], hits: int) -> tuple[int, Limit] | None:
    """The limit that lets no reservation hold so much, and which descriptor's; None without one."""
    for descriptor, plan in enumerate(plans):
        for limit in plan.rule.limits if plan.rule.hit_mode is Mode.ENFORCED else ():
            most = limit.limit.reservations
            if most is not None and hits * WHOLE_PPM > limit.spec.limit * most.most_ppm:
                return descriptor, limit.limit
    return None


def _pays_in_turn(plan: Plan) -> bool:
    """Whether one of the limits pays: then which one, a settle could not tell."""
    return bool(plan.hits) and plan.hits[0].mode is Mode.IN_TURN


def _of(hit: Hit, number: int | None) -> Hit:
    """The hit with this number of hits; of those that pay in turn only the first one has any."""
    return hit if number is None or not hit.addend else hit._replace(addend=number)


def _named(hits: Sequence[Hit], hold_id: bytes) -> list[Hit]:
    """The hits under an id: of several on one counter each has a hold of its own."""
    met: Counter[bytes] = Counter()
    named = []
    for hit in hits:
        if hit.receipt is None and not hit.spec.algorithm.leases:
            named.append(hit)
            continue
        if hit.spec.algorithm.leases:
            named.append(hit._replace(lease=hold_id[:LEASE_BYTES]))
            continue
        behind = bytes([met[hit.key] % 256]) if met[hit.key] else b""
        met[hit.key] += 1
        named.append(hit._replace(lease=hold_id + behind))
    return named
