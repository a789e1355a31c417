"""`inspect`: the counters of a descriptor as they stand in the store. Nothing is charged.

About `domain` and `descriptor`, a list of pairs of key and value.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import chain
from typing import Final

from ratelimit_service.errors import StatusCode
from ratelimit_service.eventloop.clock import now_us
from ratelimit_service.limiter import (
    OverriddenPlans,
    Plan,
    Planner,
    apply_overrides,
    grant_end,
    ruling_of,
)
from ratelimit_service.limiter.compiled import CompiledLimit, Kind
from ratelimit_service.limiter.turns import each_once
from ratelimit_service.model import (
    MAX_ADDEND,
    SECOND_US,
    Descriptor,
    Entry,
    Hit,
    Limit,
    Mode,
    Override,
    OverrideKind,
    Request,
)
from ratelimit_service.rules.explain import explain
from ratelimit_service.rules.moment import at_moment
from ratelimit_service.rules.texts import limit_text
from ratelimit_service.service.questions.question import About, Deciding, Question, QuestionError
from ratelimit_service.stores import Look
from ratelimit_service.stores.keys import grant_key
from ratelimit_service.text.display import is_utf8

__all__ = ["QUESTION", "counters_of", "descriptor_of"]

_MOST_HELD: Final = 100
"""So many leases, hits or holds of a counter are told one by one."""

_ID_DIGITS: Final = 8
"""So many of a reservation's id are told to others than who holds it."""


def descriptor_of(about: About) -> tuple[str, Descriptor]:
    """The domain and the descriptor that a question is about. Raises QuestionError."""
    domain, entries = about.get("domain"), about.get("descriptor")
    if not isinstance(domain, str) or not domain:
        raise QuestionError("name a domain")
    if not isinstance(entries, Sequence) or isinstance(entries, str) or not entries:
        raise QuestionError("name a descriptor: a list of pairs of key and value")
    found = []
    for entry in entries:
        if not isinstance(entry, Sequence) or isinstance(entry, str) or len(entry) != 2:
            raise QuestionError("each entry of a descriptor is a pair of key and value")
        key, value = entry
        if not isinstance(key, str) or not key or not isinstance(value, str):
            raise QuestionError("each entry of a descriptor is a pair of texts, the key not empty")
        found.append(Entry(key, value))
    for text in (domain, *chain(*found)):
        if not is_utf8(text):
            raise QuestionError(f"{text!r} is no UTF-8")
    return domain, Descriptor(tuple(found))


def counters_of(deciding: Deciding, domain: str, descriptor: Descriptor) -> Plan:
    """What a descriptor charges now: a hit for each limit of the rule that it meets."""
    snapshot = at_moment(deciding.snapshot(), now_us())
    (planned,) = Planner(deciding.settings).plan(Request(domain, (descriptor,)), snapshot)
    return each_once(planned)


async def _told(deciding: Deciding, about: About) -> object:
    domain, descriptor = descriptor_of(about)
    planned = counters_of(deciding, domain, descriptor)
    declared = planned.declared
    explained = explain(at_moment(deciding.snapshot(), now_us()), domain, descriptor)
    now = deciding.overrides.clock()
    meeting = deciding.service.overrides.meeting(domain, descriptor.entries, now)
    overridden = apply_overrides([planned], [meeting], now, deciding.settings)
    limits = _in_force(planned, overridden)
    # A limit so high that nothing reaches it: then hits beyond the limit's own are told, too.
    peeks = [
        Hit(hit.key, limit.spec.as_counted(), 0)
        for limit, hit in zip(limits, planned.hits, strict=True)
    ]
    beside = [
        Hit(hit.key, limit.spec.with_numbers(MAX_ADDEND, limit.spec.rate), 0)
        for limit, hit in zip(limits, planned.hits, strict=True)
        if limit.spec.holds
    ]
    grants = _grants(planned, meeting, overridden)
    each_grant = [(grant, hit) for granted in grants for grant, hit in granted]
    found = await deciding.look_at([*peeks, *[hit for _, hit in each_grant], *beside])
    looks, grants_looks = found[: len(peeks)], iter(found[len(peeks) :])
    beside_looks = iter(found[len(found) - len(beside) :])
    counters = []
    all_told = zip(planned.rule.limits, limits, peeks, looks, grants, strict=True)
    for of_rule, limit, peek, look, granted in all_told:
        counter = _counter(limit, peek, look, deciding.shard_of(peek))
        if limit.spec.holds:
            _add_held(counter, next(beside_looks))
        if deciders := _deciders(overridden, meeting, of_rule):
            counter["rule_limit"] = limit_text(of_rule.limit)
            counter["by_override"] = [{"kind": each.kind, "id": each.id} for each in deciders]
        if granted:
            counter["grants"] = [
                _granted(grant, limit.limit, next(grants_looks)) for grant, _ in granted
            ]
        counters.append(counter)
    if counters and all(look is None for look in looks):
        raise QuestionError(
            "the store does not say how the counters stand: `ratelimit status` says why",
            StatusCode.UNAVAILABLE,
        )
    return {
        "domain": domain,
        "descriptor": [list(entry) for entry in descriptor.entries],
        "rule": declared.path if declared else None,
        "source": str(declared.source) if declared else None,
        "why": explained.why,
        "overrides": [each.fields() for each in meeting],
        "counters": counters,
    }


def _in_force(planned: Plan, overridden: OverriddenPlans) -> list[CompiledLimit]:
    """Each limit of a rule as overrides leave it; the rule's own if they let nothing be counted."""
    (plan,) = overridden.plans
    known = {hit.key: limit for limit, hit in zip(plan.rule.limits, plan.hits, strict=True)}
    return [
        known.get(hit.key, limit)
        for limit, hit in zip(planned.rule.limits, planned.hits, strict=True)
    ]


def _deciders(
    overridden: OverriddenPlans, meeting: Sequence[Override], limit: CompiledLimit
) -> list[Override]:
    """The overrides that decide in a limit's place; grants do so only where they raise it."""
    (plan,) = overridden.plans
    if plan.rule.kind is Kind.BANNED:
        return list(plan.rule.overrides)
    raising = limit.spec.algorithm.leases
    return [
        each
        for each in ruling_of(meeting, limit.limit.name).applied
        if each in plan.rule.overrides and (raising or each.kind is not OverrideKind.GRANT)
    ]


def _grants(
    planned: Plan, meeting: Sequence[Override], overridden: OverriddenPlans
) -> list[list[tuple[Override, Hit]]]:
    """The grants of each limit that holds now, with what looks at their counters."""
    known = {hit.key: hit for hit in overridden.hits}
    return [
        [
            (grant, found._replace(addend=0, mode=Mode.ENFORCED))
            for grant in meeting
            if (found := known.get(grant_key(hit.key, grant.id))) is not None
        ]
        for hit in planned.hits
    ]


def _granted(grant: Override, limit: Limit, look: Look | None) -> dict[str, object]:
    """What is left of a grant."""
    told = {"id": grant.id, "hits": grant.number, "ends": _time(grant_end(limit, grant))}
    return told if look is None else {**told, "remaining": look.outcome.remaining}


def _counter(limit: CompiledLimit, peek: Hit, look: Look | None, shard: str) -> dict[str, object]:
    found: dict[str, object] = {
        "limit": limit_text(limit.limit),
        "name": limit.limit.name or None,
        "algorithm": limit.spec.algorithm.name,
        "key": peek.key.decode("utf-8", "backslashreplace"),
        "shard": shard or None,
        "capacity": limit.spec.limit,
    }
    if look is None:
        return {**found, "unknown": "its server gives no answer: `ratelimit status` says why"}
    count = peek.spec.limit - look.outcome.remaining
    found |= {
        "count": count,
        "remaining": max(0, limit.spec.limit - count),
        "over": count >= limit.spec.limit,
        "at": _time(look.at_us),
        "ends": _time(look.at_us + look.outcome.reset_us) if count else None,
        "ends_seconds": look.outcome.reset_us / SECOND_US if count else None,
    }
    if limit.spec.advances:
        found["held_here"] = look.held
    held = limit.spec.algorithm.held
    if held is not None:
        each = held(look.state, look.at_us, limit.spec)
        found["held_in_all"] = len(each)
        found["leases" if limit.spec.algorithm.leases else "log"] = [
            {
                "hits": one.hits,
                "age_seconds": max(0, look.at_us - one.at_us) / SECOND_US,
                "ends_seconds": (one.at_us + limit.spec.window_us - look.at_us) / SECOND_US,
                **({"lease": one.lease.hex()} if limit.spec.algorithm.leases else {}),
            }
            for one in each[-_MOST_HELD:]
        ]
    return found


def _add_held(counter: dict[str, object], look: Look | None) -> None:
    """Says what is held beside a counter, and what is left with that."""
    used, capacity = counter.get("count"), counter["capacity"]
    if look is None or not isinstance(used, int) or not isinstance(capacity, int):
        return
    held = MAX_ADDEND - look.outcome.remaining - used
    counter |= {
        "held": held,
        "remaining": max(0, capacity - used - held),
        "over": used + held >= capacity,
    }
    if look.holds is not None:
        counter["held_by"] = len(look.holds)
        counter["holds"] = [
            {
                "id": hold.id.hex()[:_ID_DIGITS],
                "hits": hold.hits,
                "ends_seconds": (hold.ends_us - look.at_us) / SECOND_US,
            }
            for hold in look.holds[:_MOST_HELD]
        ]


def _time(at_us: int) -> str:
    """A time as people write it, in UTC; what is beyond the calendar as its last moment."""
    try:
        moment = datetime.fromtimestamp(at_us / SECOND_US, UTC)
    except (OverflowError, ValueError):
        moment = datetime.max.replace(tzinfo=UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


QUESTION: Final = Question("inspect", _told)
