"""The protocol's `quota` field of a denial: how long its caller need not ask again."""

from __future__ import annotations

from ratelimit_service.limiter.additions.addition import (
    CountedAddition,
    DecisionContext,
    ResponseExtras,
)
from ratelimit_service.model import Mode
from ratelimit_service.settings import Settings

__all__ = ["Quota"]


class Quota(CountedAddition):
    """Says until when the same request is denied, if nothing is given back meanwhile.

    An allowed request gets no quota: hits that a client lets through unasked would have to be
    charged before, and a client that knows nothing of quotas, as Envoy, would lose them.
    """

    def enabled(self, settings: Settings) -> bool:
        """Where the setting is on."""
        return settings.denial_quota

    def add(self, context: DecisionContext, extras: ResponseExtras) -> None:
        """Says nothing where it matters that the caller asks again, or where a later try may pass.

        That is where denials are counted or queued, leases and holds can end at any time, processes
        hold parts of a limit that they may hand back, limits pay in turn, hits are given back, and
        what was not counted by the store.
        """
        if context.passes:
            return
        holds_us = 0
        for planned, outcomes in zip(context.plans, context.outcomes, strict=True):
            declared = planned.declared
            if planned.refund or (declared is not None and (declared.enqueue or declared.in_turn)):
                return
            for hit, outcome in zip(planned.hits, outcomes, strict=True):
                if outcome is None or outcome.local or hit.count_denied:
                    return
                if outcome.over and hit.mode is Mode.ENFORCED:
                    if hit.spec.advances or not hit.spec.cached:
                        return
                    holds_us = max(holds_us, outcome.reset_us)
        if holds_us:
            extras.holds_us = holds_us
