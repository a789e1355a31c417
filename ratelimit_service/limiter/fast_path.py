"""Which rules are usual: the fast paths do all that they ask for.

The fast paths know what is listed here. A rule in which anything else is set is unusual, and
takes the slow path; so whoever adds a field to rules or limits need not know of fast paths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, fields
from typing import Final

from ratelimit_service.model import Limit
from ratelimit_service.rules.tree import Rule

__all__ = ["has_template", "stands_alone", "takes_fast_path"]

_PLANNED_ALONE: Final = frozenset(
    (
        "domain",
        "path",
        "limits",
        "names",
        "shadow_mode",
        "failure_policy",
        "detailed_metric",
        "metadata",
        "answer",
        "enqueue",
        "in_turn",
        "source",
        "tallies",
    )
)
"""Fields of a rule that mean the same whatever stands beside its descriptor in a request."""

_ANSWERED: Final = (_PLANNED_ALONE - {"in_turn"}) | {"replaces", "quota_mode"}
"""Fields of a rule that the fast paths of answering and tallying do."""

_LIMIT_ANSWERED: Final = frozenset(
    (
        "requests_per_unit",
        "unit",
        "multiplier",
        "name",
        "algorithm",
        "anchor",
        "burst",
        "stepped",
        "buckets",
        "max_wait_us",
        "count_denied",
        "own",
        "grouping",
        "schedule",
        "pool",
        "reserved",
        "advances",
        "reservations",
    )
)
"""The same for a limit. `soft_ppm` is not listed: a status shows less than what remains."""


_LIMIT_TEMPLATED: Final = _LIMIT_ANSWERED - {"grouping", "pool"} | {"soft_ppm"}
"""Fields of a limit with which each value of an entry has a counter of its own."""


def takes_fast_path(rule: Rule | None, limits: Sequence[Limit]) -> bool:
    """Whether the fast paths of answering and tallying do all that a rule asks for.

    It has one limit. `rule` is None for a limit that a caller brings.
    """
    return (
        len(limits) == 1
        and _sets_only(limits[0], _LIMIT_ANSWERED)
        and (rule is None or _rule_sets_only(rule, _ANSWERED))
    )


def stands_alone(rule: Rule) -> bool:
    """Whether a descriptor is planned the same whatever stands beside it in its request."""
    return _rule_sets_only(rule, _PLANNED_ALONE)


def has_template(limits: Sequence[Limit]) -> bool:
    """Whether descriptors that differ in their last value differ in the key of one counter only."""
    return len(limits) == 1 and _sets_only(limits[0], _LIMIT_TEMPLATED)


def _sets_only(limit: Limit, known: frozenset[str]) -> bool:
    """Whether all fields but the known ones are at their defaults."""
    defaults = limit._field_defaults
    return all(
        name in known or (name in defaults and getattr(limit, name) == defaults[name])
        for name in limit._fields
    )


def _rule_sets_only(rule: Rule, known: frozenset[str]) -> bool:
    return all(
        declared.name in known
        or (declared.default is not MISSING and getattr(rule, declared.name) == declared.default)
        for declared in fields(rule)
    )
