"""The headers a decision adds, and what goes into metadata beside them.

The three of envoyproxy/ratelimit are off by default; those that mark an answer are there
whenever a rule has something to mark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from ratelimit_service.limiter.plan import Plan
from ratelimit_service.model import Code, Header, Hit, Outcome, Status, whole_seconds
from ratelimit_service.settings import Settings

__all__ = [
    "DELAY_HEADER",
    "LEASE_HEADER",
    "NO_MARKS",
    "WARNING_HEADER",
    "Marks",
    "lease_header",
    "limit_headers",
    "marks",
    "takes_lease",
]

WARNING_HEADER: Final = "x-ratelimit-warning"
DELAY_HEADER: Final = "x-ratelimit-delay-ms"
LEASE_HEADER: Final = "x-ratelimit-lease"

_MILLISECOND_US: Final = 1_000


def limit_headers(statuses: Sequence[Status], settings: Settings) -> tuple[Header, ...]:
    """Limit, remaining and reset (whole seconds) of the status that matters most to the caller.

    That is one over its limit, then the one with the least remaining, then the first. None
    if the headers are off, or nothing was counted.
    """
    if not settings.limit_response_headers:
        return ()
    counted = [
        (status, status.limit, status.reset_us)
        for status in statuses
        if status.limit is not None and status.reset_us is not None
    ]
    if not counted:
        return ()
    status, limit, reset_us = min(
        counted, key=lambda shown: (shown[0].code is not Code.OVER_LIMIT, shown[0].remaining)
    )
    return (
        Header(settings.limit_header, str(limit.requests_per_unit)),
        Header(settings.remaining_header, str(status.remaining)),
        Header(settings.reset_header, str(whole_seconds(reset_us))),
    )


def takes_lease(hit: Hit, outcome: Outcome) -> bool:
    """Whether a hit has taken a lease, rather than looked."""
    return hit.measure.algorithm.leases and outcome.charged > 0


def lease_header(lease: bytes) -> Header:
    """The header by which a lease is known when it is given back."""
    return Header(LEASE_HEADER, lease.hex())


class Marks(NamedTuple):
    """What an allowed request is told beside its statuses."""

    for_response: tuple[Header, ...]
    for_request: tuple[Header, ...]
    metadata: Mapping[str, object]


NO_MARKS: Final = Marks((), (), {})


def marks(
    plans: Sequence[Plan], outcomes: Sequence[Sequence[Outcome | None]], lease: bytes
) -> Marks:
    """The marks of an allowed request.

    A warning where a limit is passed in its soft part; the longest delay of its queues; the id
    of the lease, if it has taken one.
    """
    soft, leased, delay_us = False, False, None
    for planned, each in zip(plans, outcomes, strict=True):
        if planned.refund:
            continue
        for counted, hit, outcome in zip(planned.rule.limits, planned.hits, each, strict=True):
            if outcome is None or outcome.over:
                continue
            leased = leased or takes_lease(hit, outcome)
            if outcome.local:
                continue  # a share of the limit says nothing of the limit
            soft = soft or outcome.left < counted.soft
            if counted.limit.max_wait_us and (outcome.charged or not hit.addend):
                # The bucket is empty after the hits' own time and what was in it before them.
                own_us = -(-hit.addend * hit.measure.window_us // hit.measure.rate)
                delay_us = max(delay_us or 0, outcome.reset_us - own_us)
    warning = [Header(WARNING_HEADER, "soft")] if soft else []
    for_request = list(warning)
    metadata: dict[str, object] = {"soft": True} if soft else {}
    if delay_us is not None:
        delay_ms = -(-delay_us // _MILLISECOND_US)
        for_request.append(Header(DELAY_HEADER, str(delay_ms)))
        metadata["delay_ms"] = delay_ms
    if leased:
        for_request.append(lease_header(lease))
    return Marks(tuple(warning), tuple(for_request), metadata)
