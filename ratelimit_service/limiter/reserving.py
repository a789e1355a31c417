"""The hits of a request that reserves or settles, in the place of those of its plans.

What must not live here: what an algorithm makes of them (`algorithms.holding`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from ratelimit_service.limiter.compiled import CompiledLimit
from ratelimit_service.limiter.plan import LEASE_BYTES, Plan
from ratelimit_service.limiter.turns import without_room
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
    several: list[list[Hit]] = []
    for plan in plans:
        several.append([])
        mixed = plan.rule.in_turn and len({hit.spec.algorithm.leases for hit in plan.hits}) > 1
        for limit, hit in zip(plan.rule.limits, plan.hits, strict=True):
            asked = _of(hit, number)._replace(count_denied=False)
            if hit.policy is FailurePolicy.LOCAL:
                asked = asked._replace(policy=FailurePolicy.OPEN)  # nobody could settle it
            if mixed:  # nobody would give a place back
                several[-1].append(asked._replace(receipt=Hold(0)))
                continue
            if hit.spec.algorithm.leases:
                takes = ttl_us > 0 and not extends and not (plan.rule.in_turn and hit.joined)
                several[-1].append(asked._replace(addend=int(takes)))
                continue
            of_limit = limit.limit.reservations
            for_us, charged = ttl_us, False
            if of_limit is not None:
                for_us, charged = min(ttl_us, of_limit.ttl_us or ttl_us), of_limit.charged
            if plan.rule.hit_mode is not Mode.ENFORCED:
                for_us = 0
            if plan.rule.in_turn and ttl_us and _is_too_large(limit, number or 0):
                asked = asked._replace(spec=without_room(asked.spec))
            several[-1].append(asked._replace(receipt=Hold(for_us, charged=charged)))
    return _named(several, hold_id)


def hits_to_settle(
    plans: Sequence[Plan], number: int | None, hold_id: bytes, remembered_us: int
) -> list[Hit]:
    """The hits of a request that settles. They count, whatever the limits say."""
    several: list[list[Hit]] = []
    hold = Hold(remembered_us, settles=True)
    for plan in plans:
        several.append(hits := [])
        leases = [hit.spec.algorithm.leases for hit in plan.hits]
        in_turn = plan.rule.in_turn and not all(leases)
        for hit, leased in zip(plan.hits, leases, strict=True):
            settled = _of(hit, number)._replace(policy=FailurePolicy.OPEN)
            if in_turn:
                receipt = None if leased else hold
                hits.append(settled._replace(mode=Mode.IN_TURN, receipt=receipt))
                continue
            settled = settled._replace(mode=Mode.SHADOW, joined=False)
            if leased:
                hits.append(settled._replace(addend=1, refund=True))
                continue
            hits.append(settled._replace(count_denied=True, receipt=hold))
    return _named(several, hold_id)


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
    """The limit that lets no reservation hold so much, and which descriptor's; None without one.

    Of limits that pay in turn all must let less be held; then it is the first of them.
    """
    for descriptor, plan in enumerate(plans):
        if plan.rule.hit_mode is not Mode.ENFORCED:
            continue
        limits = plan.rule.limits
        refusing = [limit.limit for limit in limits if _is_too_large(limit, hits)]
        if refusing and (len(refusing) == len(limits) or not plan.rule.in_turn):
            return descriptor, refusing[0]
    return None


def _is_too_large(limit: CompiledLimit, hits: int) -> bool:
    of_limit = limit.limit.reservations
    return of_limit is not None and hits * WHOLE_PPM > limit.spec.limit * of_limit.most_ppm


def _of(hit: Hit, number: int | None) -> Hit:
    """The hit with this number of hits; of those that pay in turn only the first one has any."""
    return hit if number is None or not hit.addend else hit._replace(addend=number)


def _named(several: Sequence[Sequence[Hit]], hold_id: bytes) -> list[Hit]:
    """The hits of some descriptors under an id: of several on one counter each has its own hold."""
    met: Counter[bytes] = Counter()
    named = []
    for hits in several:
        for hit in hits:
            behind = bytes([met[hit.key] % 256]) if met[hit.key] else b""
            lease = hold_id[:LEASE_BYTES] if hit.spec.algorithm.leases else hold_id + behind
            named.append(hit._replace(lease=lease))
        met.update({hit.key for hit in hits})  # a soft part that pays in turn is no further hold
    return named
