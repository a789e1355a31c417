"""Plans of requests over rules in YAML, without a service."""

from __future__ import annotations

from collections.abc import Sequence

from ratelimit_service.limiter import Planner
from ratelimit_service.limiter.compiled import Plan
from ratelimit_service.model import Descriptor, Entry, Limit, Outcome, Request
from ratelimit_service.observability.stats import Tally
from ratelimit_service.rules.schema import parse
from ratelimit_service.rules.tree import Domain, Level, Snapshot
from ratelimit_service.settings import Settings

MINUTE_US = 60_000_000


def domain(*rules: str) -> Domain:
    """`domain("{key: a, rate_limit: {unlimited: true}}")` has one rule."""
    text = "domain: d\ndescriptors:\n" + "".join(f"- {rule}\n" for rule in rules)
    file = parse("f", text.encode())
    assert all(each.hint or each.tolerated for each in file.problems), file.problems
    return Domain("d", Level.of(file.nodes))


def snapshot(*rules: str, number: int = 1) -> Snapshot:
    return Snapshot(number, {"d": domain(*rules)})


def descriptor(
    text: str,
    *,
    addend: int | None = None,
    limit: Limit | None = None,
    refund: bool = False,
) -> Descriptor:
    """`descriptor("a=b,c=")`."""
    entries = [part.partition("=") for part in text.split(",")]
    return Descriptor(tuple(Entry(key, value) for key, _, value in entries), limit, addend, refund)


def plans_of(
    rules: Sequence[str] | Snapshot,
    *descriptors: str | Descriptor,
    settings: Settings | None = None,
    addend: int = 0,
) -> list[Plan]:
    known = rules if isinstance(rules, Snapshot) else snapshot(*rules)
    wanted = [descriptor(one) if isinstance(one, str) else one for one in descriptors]
    return Planner(settings or Settings()).plan(Request("d", tuple(wanted), addend), known)


def plan_of(rule: str, descriptors: str | Descriptor, settings: Settings | None = None) -> Plan:
    """Of a request with one descriptor, over one rule."""
    (plan,) = plans_of([rule], descriptors, settings=settings)
    return plan


def tally_of(plan: Plan) -> Tally:
    assert plan.node.tally is not None
    return plan.node.tally


def within(remaining: int, charged: int = 1, reset_us: int = MINUTE_US) -> Outcome:
    return Outcome(False, remaining, reset_us, charged)


def over(remaining: int = 0, charged: int = 0, wait_us: int = MINUTE_US) -> Outcome:
    return Outcome(True, remaining, wait_us, charged)
