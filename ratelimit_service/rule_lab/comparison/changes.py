"""A change of rules as a value: what it does to callers and to counters.

How changes are found does not live here (`compare`), nor how they are shown (`cli`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ratelimit_service.model import Entry
from ratelimit_service.rules.tree import Rule

__all__ = ["Callers", "Change", "ChangeKind", "Detail", "overall"]


class ChangeKind(StrEnum):
    """What becomes of a rule, or of callers."""

    ADDED = "added"
    REMOVED = "removed"
    TIGHTENED = "tightened"
    """It admits less than before, never more."""
    LOOSENED = "loosened"
    """It admits more than before, never less."""
    CHANGED = "changed"
    """It is another one, and neither tighter nor looser in all cases."""
    CALLERS = "callers"
    """Callers meet another rule, although both rules were there before, and still are."""


@dataclass(frozen=True, slots=True)
class Detail:
    """One thing that a rule said and what it says now; "" where it said or says nothing of it."""

    kind: ChangeKind
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Callers:
    """Callers that meet another rule, or none: `example` is a descriptor of theirs.

    `anew` says whether they meet counters in which nothing of theirs is counted yet.
    """

    example: tuple[Entry, ...]
    old: Rule | None
    new: Rule | None
    anew: bool


@dataclass(frozen=True, slots=True)
class Change:
    """What becomes of one rule, of a whole domain (`path` is ""), or of callers.

    `anew` says why counters of the rule start again from nothing: each reason is a sentence.
    """

    kind: ChangeKind
    domain: str
    path: str
    old: Rule | None = None
    new: Rule | None = None
    details: tuple[Detail, ...] = ()
    anew: tuple[str, ...] = ()
    callers: tuple[Callers, ...] = ()


def overall(details: tuple[Detail, ...]) -> ChangeKind:
    """What several details come to: tighter or looser only if nothing speaks against it."""
    kinds = {each.kind for each in details}
    return kinds.pop() if len(kinds) == 1 else ChangeKind.CHANGED
