"""Which rule and limit decided, as dynamic metadata, so that Envoy's access log can say it."""

from __future__ import annotations

from ratelimit_service.limiter.additions.addition import (
    CountedAddition,
    DecisionContext,
    ResponseExtras,
)
from ratelimit_service.limiter.additions.names import policy_name
from ratelimit_service.limiter.decision_reason import decision_reason
from ratelimit_service.model import Mode
from ratelimit_service.settings import Settings

__all__ = ["DecisionMetadata"]


class DecisionMetadata(CountedAddition):
    """Of a denied request the limit that denied it, else the one with the fewest hits left."""

    def enabled(self, settings: Settings) -> bool:
        """If `decision_metadata` is on."""
        return settings.decision_metadata

    def add(self, context: DecisionContext, extras: ResponseExtras) -> None:
        """Says nothing if neither a limit nor an override decided."""
        reason = decision_reason(context.plans, context.settled)
        if reason.plan is not None:
            declared = reason.plan.declared
            extras.metadata["decided"] = {
                "by": str(reason.by),
                "descriptor": reason.descriptor,
                "limit": policy_name(reason.limit) if reason.limit is not None else "",
                "rule": declared.path if declared is not None else "",
                "shadow": reason.plan.rule.hit_mode is Mode.SHADOW,
                "denied": not context.passes,
            }
