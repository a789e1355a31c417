"""What header sets share: which rules chose one, and the status that matters most to the caller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ratelimit_service.limiter.additions.addition import CountedAddition, DecisionContext
from ratelimit_service.limiter.compiled import Kind, Plan
from ratelimit_service.model import Code, HeaderSet, Limit, Status
from ratelimit_service.rules.tree import Rule
from ratelimit_service.settings import Settings
from ratelimit_service.stores import Outcomes

__all__ = ["ChosenHeaders", "Foremost", "header_set_of"]

Foremost = tuple[Plan, Limit, int, int]
"""A descriptor, its limit, what remains of it, and the microseconds until there is more."""

_BY_SETTING: Final = {str(each): each for each in HeaderSet}


def header_set_of(settings: Settings, rule: Rule | None) -> HeaderSet:
    """The rule's own set, else that of the settings, of which the reference has a switch only."""
    answer = rule.answer if rule is not None else None
    if answer is not None and answer.headers is not None:
        return answer.headers
    chosen = _BY_SETTING[settings.headers]
    if chosen is HeaderSet.NONE and settings.limit_response_headers:
        return HeaderSet.REFERENCE
    return chosen


class ChosenHeaders(CountedAddition):
    """Headers of one set. They speak of the descriptors whose rules chose it."""

    covers_bans = True

    def __init__(self, chosen: HeaderSet) -> None:
        self.chosen = chosen

    def applies_to(self, settings: Settings, rule: Rule | None, limits: Sequence[Limit]) -> bool:
        """Of what is counted, where it is chosen."""
        return bool(limits) and header_set_of(settings, rule) is self.chosen

    def _banned(self, context: DecisionContext) -> bool:
        """Whether a descriptor is banned that this set is chosen for."""
        return any(
            planned.rule.kind is Kind.BANNED
            and header_set_of(context.settings, planned.declared) is self.chosen
            for planned in context.plans
        )

    def _of(self, context: DecisionContext) -> list[tuple[Plan, Outcomes, Status]]:
        """The descriptors whose rules chose it, with their outcomes and statuses."""
        return [
            (planned, outcomes, status)
            for planned, outcomes, status in zip(
                context.plans, context.outcomes, context.statuses(), strict=True
            )
            if planned.rule.limits
            and header_set_of(context.settings, planned.declared) is self.chosen
        ]

    def _foremost(self, context: DecisionContext) -> Foremost | None:
        """The status that matters most: one over its limit, then the one with the least remaining.

        None if nothing was counted.
        """
        counted = [
            (
                status.code is not Code.OVER_LIMIT,
                status.remaining,
                planned,
                status.limit,
                status.reset_us,
            )
            for planned, _, status in self._of(context)
            if status.limit is not None and status.reset_us is not None
        ]
        if not counted:
            return None
        _, remaining, planned, limit, reset_us = min(counted, key=lambda each: each[:2])
        return planned, limit, remaining, reset_us
