"""Limits of a descriptor that pay in turn (`charge: first`): their hits, and which of them paid.

The first hit asks for all that the descriptor asks for, the others for nothing. Stores charge the
first of them that has room (`algorithms.settle`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from ratelimit_service.limiter.compiled import CompiledLimit, CompiledRule, Plan
from ratelimit_service.model import CounterSpec, Hit, Limit, Mode, Outcome
from ratelimit_service.stores import Settled

__all__ = [
    "each_once",
    "in_turn",
    "is_soft_part",
    "paid_by",
    "paid_of",
    "payer",
    "payers",
    "refund_to",
    "without_grants",
    "without_room",
]


def in_turn(hits: Sequence[Hit], mode: Mode, addend: int) -> tuple[Hit, ...]:
    """These hits as hits that pay in turn, in their order."""
    last = len(hits) - 1
    return tuple(
        hit._replace(
            mode=mode if index == last else Mode.IN_TURN,
            addend=0 if index else addend,
            joined=index > 0,
        )
        for index, hit in enumerate(hits)
    )


def payers(limits: Sequence[Limit]) -> list[Limit]:
    """The limits in the order in which they are asked: soft parts come after all without them."""
    hard = [limit._replace(soft_ppm=0) for limit in limits]
    return hard + [limit for limit in limits if limit.soft_ppm]


def payer(planned: Plan, outcomes: Sequence[Outcome | None]) -> int:
    """The place of the limit that speaks for a descriptor whose limits pay in turn.

    It is the one that paid. If nothing was charged, it is the first that has room; if none has,
    the one that will have it first.
    """
    waits = []
    for index, outcome in enumerate(outcomes):
        if outcome is None:
            return 0
        if outcome.charged:
            return index
        waits.append(outcome.reset_us)
    needed = 1 if planned.refund else max(1, planned.addend)
    for index, outcome in enumerate(outcomes):
        if outcome is not None and not outcome.over and outcome.remaining >= needed:
            return index
    return waits.index(min(waits))


def is_soft_part(rule: CompiledRule, compiled: CompiledLimit) -> bool:
    """Whether a limit stands in the rule a second time, with its soft part."""
    return rule.in_turn and compiled.limit.soft_ppm > 0


def each_once(planned: Plan) -> Plan:
    """The same with each counter once, soft parts included, for those who only look."""
    if not planned.rule.in_turn:
        return planned
    pairs = zip(planned.rule.limits, planned.hits, strict=True)
    counters = {hit.key: (limit, hit) for limit, hit in pairs}
    limits, hits = zip(*counters.values(), strict=True)
    return planned._replace(rule=replace(planned.rule, limits=limits), hits=hits)


def without_grants(planned: Plan) -> Plan:
    """The same without its grants, if its limits pay in turn and hold: nothing is held in them."""
    rule = planned.rule
    if not rule.in_turn or all(limit.limit.reservations is None for limit in rule.limits):
        return planned
    kept = [pair for pair in zip(rule.limits, planned.hits, strict=True) if pair[1].spec.holds]
    rule = replace(rule, limits=tuple(limit for limit, _ in kept))
    hits = in_turn([hit for _, hit in kept], rule.hit_mode, planned.addend)
    return planned._replace(rule=rule, hits=hits)


@lru_cache(4096)
def without_room(spec: CounterSpec) -> CounterSpec:
    """The spec by which nothing passes on a counter, for a limit that may not be charged so much.

    What is held there is found all the same. There is one for each spec, as stores remember them.
    """
    return CounterSpec(spec.algorithm, 0, spec.window_us, spec.rate, spec.reserved, spec.form)


def paid_by(planned: Plan, outcomes: Sequence[Outcome | None]) -> CompiledLimit | None:
    """The limit that paid for a descriptor; None if none did, or if they do not pay in turn."""
    if planned.rule.in_turn and not planned.refund:
        for limit, outcome in zip(planned.rule.limits, outcomes, strict=True):
            if outcome is not None and outcome.charged:
                return limit
    return None


def paid_of(plans: Sequence[Plan], settled: Settled) -> list[tuple[int, str]]:
    """Which limits have paid for a request, where some pay in turn.

    Each has the place of its descriptor, and its name. There are none if the request is denied.
    """
    paid: list[tuple[int, str]] = []
    start = 0
    for place, planned in enumerate(plans if settled.verdict.passes else ()):
        end = start + len(planned.hits)
        limit = paid_by(planned, settled.outcomes[start:end]) if planned.rule.in_turn else None
        if limit is not None:
            paid.append((place, limit.limit.name))
        start = end
    return paid


def refund_to(
    name: str | None, limits: Sequence[CompiledLimit], hits: Sequence[Hit]
) -> tuple[Hit, ...]:
    """These refunds, of which only the limit of this name gets something; without one the first.

    If no limit has the name, none does.
    """
    names = [each.limit.name for each in limits]
    to = 0
    if name is not None:
        to = names.index(name) if name in names else -1
    return tuple(hit if index == to else hit._replace(addend=0) for index, hit in enumerate(hits))
