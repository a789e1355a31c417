"""The one list of what answers can say beside their statuses, in the order in which they say it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ratelimit_service.limiter.additions.addition import Addition, Said, Told
from ratelimit_service.limiter.additions.decision_metadata import DecisionMetadata
from ratelimit_service.limiter.additions.delay import Delay
from ratelimit_service.limiter.additions.denial_body import DenialBody
from ratelimit_service.limiter.additions.ietf_headers import IetfHeaders
from ratelimit_service.limiter.additions.lease import Lease
from ratelimit_service.limiter.additions.quota import Quota
from ratelimit_service.limiter.additions.request_metadata import RequestMetadata
from ratelimit_service.limiter.additions.soft import Soft
from ratelimit_service.limiter.additions.three_headers import ThreeHeaders
from ratelimit_service.model import HeaderSet, Limit
from ratelimit_service.rules.tree import Rule
from ratelimit_service.settings import Settings

__all__ = ["ADDITIONS", "OF_BANS", "say", "speaking", "wanted"]

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
    Quota(),
]

OF_BANS: Final = sum([1 << place for place, each in enumerate(ADDITIONS) if each.of_bans])
"""Those that may speak of a ban, as bits by their places in the list."""


def wanted(settings: Settings) -> list[Addition]:
    """Those that the settings ask for."""
    return [each for each in ADDITIONS if each.wanted(settings)]


def speaking(
    among: Sequence[Addition], settings: Settings, rule: Rule | None, limits: Sequence[Limit]
) -> int:
    """Those that may speak of a rule with these limits: bits by their places in the list."""
    says = 0
    for place, each in enumerate(ADDITIONS):
        if each in among and each.speaks_of(settings, rule, limits):
            says |= 1 << place
    return says


def say(says: int, told: Told) -> Said:
    """Has those of these bits say what they have to say of a request."""
    said = Said()
    place = 0
    while says >> place:
        if says >> place & 1:
            ADDITIONS[place].add(told, said)
        place += 1
    return said
