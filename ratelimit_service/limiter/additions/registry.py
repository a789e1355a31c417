"""The one list of what answers can say beside their statuses, in the order in which they say it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ratelimit_service.limiter.additions.addition import Addition, DecisionContext, ResponseExtras
from ratelimit_service.limiter.additions.decision_metadata import DecisionMetadata
from ratelimit_service.limiter.additions.delay import Delay
from ratelimit_service.limiter.additions.denial_body import DenialBody
from ratelimit_service.limiter.additions.ietf_headers import IetfHeaders
from ratelimit_service.limiter.additions.lease import Lease
from ratelimit_service.limiter.additions.paid import Paid
from ratelimit_service.limiter.additions.quota import Quota
from ratelimit_service.limiter.additions.request_metadata import RequestMetadata
from ratelimit_service.limiter.additions.soft import Soft
from ratelimit_service.limiter.additions.three_headers import ThreeHeaders
from ratelimit_service.model import HeaderSet, Limit
from ratelimit_service.rules.tree import Rule
from ratelimit_service.settings import Settings

__all__ = ["ADDITIONS", "BAN_ADDITIONS", "applicable", "enabled", "response_extras"]

ADDITIONS: Final[list[Addition]] = [
    ThreeHeaders(HeaderSet.REFERENCE, "RateLimit-", tells_wait=False),
    ThreeHeaders(HeaderSet.X_RATELIMIT, "X-RateLimit-", tells_wait=True),
    IetfHeaders(),
    DenialBody(),
    RequestMetadata(),
    DecisionMetadata(),
    Soft(),
    Delay(),
    Lease(),
    Paid(),
    Quota(),
]

BAN_ADDITIONS: Final = sum(
    [1 << index for index, addition in enumerate(ADDITIONS) if addition.covers_bans]
)
"""Those that may speak of a ban, as bits by their places in the list."""


def enabled(settings: Settings) -> list[Addition]:
    """Those that the settings ask for."""
    return [addition for addition in ADDITIONS if addition.enabled(settings)]


def applicable(
    enabled_ones: Sequence[Addition], settings: Settings, rule: Rule | None, limits: Sequence[Limit]
) -> int:
    """Those that may speak of a rule with these limits: bits by their places in the list."""
    chosen = 0
    for index, addition in enumerate(ADDITIONS):
        if addition in enabled_ones and addition.applies_to(settings, rule, limits):
            chosen |= 1 << index
    return chosen


def response_extras(chosen: int, context: DecisionContext) -> ResponseExtras:
    """Has those of these bits say what they have to say of a request."""
    extras = ResponseExtras()
    index = 0
    while chosen >> index:
        if chosen >> index & 1:
            ADDITIONS[index].add(context, extras)
        index += 1
    return extras
