"""What a counter of each algorithm may cost."""

from __future__ import annotations

from typing import NamedTuple

from ratelimit_service.model import Limit
from ratelimit_service.rules.schema import parse

__all__ = ["PLENTY", "Cost", "limit_of", "rules_of"]

PLENTY = "unit: hour, requests_per_unit: 200000000"


class Cost(NamedTuple):
    """A way to count: `rate_limit`'s fields, how one counter of it is filled, and what it takes."""

    fields: str
    hits: int = 3
    counters: int = 50_000
    most_usage: int = 160
    most_used: int = 240
    """The bytes that a counter may take, by MEMORY USAGE and of used_memory."""


def rules_of(fields: str) -> str:
    """A rule file with this limit, for users and for tenants of a route."""
    lines = ["domain: bench", "descriptors:", "  - key: route", "    value: checkout"]
    lines += ["    descriptors:"]
    lines += [f"      - {{key: {key}, rate_limit: {{{fields}}}}}" for key in ("user", "tenant")]
    return "\n".join(lines) + "\n"


def limit_of(cost: Cost) -> Limit:
    """The limit as the rule loader reads it."""
    (route,) = parse("rules.yaml", rules_of(cost.fields).encode()).nodes
    assert route.children
    rule = route.children.nodes[0].rule
    assert rule
    return rule.limits[0]
