"""The protocol's `quota` field of a denial: how long its caller need not ask again."""

from __future__ import annotations

from collections.abc import Sequence

from ratelimit_service.limiter.additions.addition import Said, Told
from ratelimit_service.model import Limit, Mode
from ratelimit_service.rules.tree import Rule
from ratelimit_service.settings import Settings

__all__ = ["Quota"]


class Quota:
    """Says until when the same request is denied, if nothing is given back meanwhile.

    An allowed request gets no quota: hits that a client lets through unasked would have to be
    charged before, and a client that knows nothing of quotas, as Envoy, would lose them.
    """

    needs_request = False
    of_bans = False

    def wanted(self, settings: Settings) -> bool:
        """Where the setting is on."""
        return settings.denial_quota

    def speaks_of(
        self,
        settings: Settings,  # noqa: ARG002
        rule: Rule | None,  # noqa: ARG002
        limits: Sequence[Limit],
    ) -> bool:
        """Of what has limits."""
        return bool(limits)

    def add(self, told: Told, said: Said) -> None:
        """Says nothing where it matters that the caller asks again, or where a later try may pass.

        That is where denials are counted or queued, leases can come back at any time, processes
        hold parts of a limit that they may hand back, hits are given back, and what was not counted
        by the store.
        """
        if told.passes:
            return
        holds_us = 0
        for planned, each in zip(told.plans, told.outcomes, strict=True):
            declared = planned.declared
            if planned.refund or (declared is not None and declared.enqueue):
                return
            for hit, outcome in zip(planned.hits, each, strict=True):
                if outcome is None or outcome.local or hit.count_denied:
                    return
                if outcome.over and hit.mode is Mode.ENFORCED:
                    if hit.spec.advances or not hit.spec.algorithm.cached:
                        return
                    holds_us = max(holds_us, outcome.reset_us)
        if holds_us:
            said.holds_us = holds_us
