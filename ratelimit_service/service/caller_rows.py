"""Callers in order, as people see them: a row each."""

from __future__ import annotations

import heapq
from typing import Final

from ratelimit_service.service.caller_history import (
    CallerOrder,
    RuleStretch,
    Standing,
    Stretch,
)

__all__ = ["MOST_ROWS", "rows_of"]

MOST_ROWS: Final = 1_000

_UNKNOWN: Final = Standing("", 0, -1, None)

_Row = dict[str, object]


def rows_of(stretch: Stretch, order: CallerOrder, most: int) -> list[_Row]:
    """The first callers by an order, over all rules.

    `over` and `hits` begin with the highest numbers, `near` with those that have the smallest share
    of their limit left.
    """
    ranked = [
        (_rank(order, sketch.counts[key], rule.standing.get(key, _UNKNOWN)), name, key)
        for name, rule in stretch.rules.items()
        for sketch in (rule.sketches[order],)
        for key in sketch.counts
    ]
    return [_row(name, key, stretch.rules[name]) for _, name, key in heapq.nsmallest(most, ranked)]


def _rank(order: CallerOrder, times: int, standing: Standing) -> tuple[float, int]:
    if order is CallerOrder.NEAR:
        share = standing.remaining / standing.capacity if standing.capacity else 0.0
        return share if standing.remaining >= 0 else 1.0, -times
    return 0.0, -times


def _row(name: tuple[str, str], key: str, rule: RuleStretch) -> _Row:
    standing = rule.standing.get(key, _UNKNOWN)
    row: _Row = {
        "domain": name[0],
        "rule": name[1],
        "caller": None if standing.entries is None else [list(each) for each in standing.entries],
        "limit": standing.limit,
        "capacity": standing.capacity,
        "remaining": standing.remaining if standing.remaining >= 0 else None,
    }
    for order, sketch in rule.sketches.items():
        row[order.value] = sketch.counts.get(key, 0)
        row[f"{order.value}_error"] = sketch.error
    if standing.entries is None:
        row["key"] = key
    return row
