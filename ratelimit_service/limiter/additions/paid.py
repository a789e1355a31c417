"""Which limit has paid, where the limits of a descriptor pay in turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ratelimit_service.limiter.additions.addition import (
    CountedAddition,
    DecisionContext,
    ResponseExtras,
)
from ratelimit_service.limiter.turns import paid_of
from ratelimit_service.model import Header, Limit
from ratelimit_service.rules.tree import Rule
from ratelimit_service.settings import Settings

__all__ = ["Paid"]

_HEADER: Final = "x-ratelimit-paid"


class Paid(CountedAddition):
    """Travels with the request, so that what was charged too much can be given back there."""

    def applies_to(
        self,
        settings: Settings,  # noqa: ARG002
        rule: Rule | None,
        limits: Sequence[Limit],  # noqa: ARG002
    ) -> bool:
        """Of limits that pay in turn."""
        return rule is not None and rule.in_turn

    def add(self, context: DecisionContext, extras: ResponseExtras) -> None:
        """Names in the header one limit: of several descriptors only the metadata tell."""
        paid = paid_of(context.plans, context.settled)
        if paid:
            extras.metadata["paid"] = [{"descriptor": at, "limit": name} for at, name in paid]
        if len(paid) == 1:
            extras.request_headers.append(Header(_HEADER, paid[0][1]))
