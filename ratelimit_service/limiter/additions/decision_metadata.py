"""Which rule and limit decided, as dynamic metadata, so that Envoy's access log can say it."""

from __future__ import annotations

from collections.abc import Sequence

from ratelimit_service.limiter.additions.addition import Said, Told
from ratelimit_service.limiter.additions.names import policy_name
from ratelimit_service.limiter.ground import ground_of
from ratelimit_service.model import Limit, Mode
from ratelimit_service.rules.tree import Rule
from ratelimit_service.settings import Settings

__all__ = ["DecisionMetadata"]


class DecisionMetadata:
    """Of a denied request the limit that denied it, else the one with the fewest hits left."""

    needs_request = False
    of_bans = False

    def wanted(self, settings: Settings) -> bool:
        """If `decision_metadata` is on."""
        return settings.decision_metadata

    def speaks_of(
        self,
        settings: Settings,  # noqa: ARG002
        rule: Rule | None,  # noqa: ARG002
        limits: Sequence[Limit],
    ) -> bool:
        """Of what is counted."""
        return bool(limits)

    def add(self, told: Told, said: Said) -> None:
        """Says nothing if neither a limit nor an override decided."""
        found = ground_of(told.plans, told.settled)
        if found.plan is not None:
            declared = found.plan.declared
            said.metadata["decided"] = {
                "by": str(found.by),
                "descriptor": found.descriptor,
                "limit": policy_name(found.limit) if found.limit is not None else "",
                "rule": declared.path if declared is not None else "",
                "shadow": found.plan.rule.hit_mode is Mode.SHADOW,
                "denied": not told.passes,
            }
