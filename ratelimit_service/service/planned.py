"""One request between its plan and its answer."""

from __future__ import annotations

from collections.abc import Sequence
from os import urandom

from ratelimit_service import limiter
from ratelimit_service.limiter import Plan
from ratelimit_service.model import Hit, Request
from ratelimit_service.stores import Settled
from ratelimit_service.wire import EncodedLimit

__all__ = ["PlannedRequest", "banned", "leased"]


class PlannedRequest:
    """A request as it was planned. It is also what is remembered, so only `untouched` is changed.

    `limits` are the encoded limits if every descriptor is usual, else None. `says` are the bits
    of the additions that may speak in its answer; `request` is None where they do not need it.
    `settled` is what the request comes to if it has no hits. With `leasing` some hits take
    leases; `lease` is their id, drawn for each call. `ban_us` is how long a banned request is to
    wait, of each call too; None if nobody knows.
    """

    __slots__ = (
        "ban_us",
        "hits",
        "lease",
        "leasing",
        "limits",
        "plans",
        "request",
        "says",
        "settled",
        "untouched",
    )

    def __init__(
        self,
        plans: list[Plan],
        hits: Sequence[Hit],
        limits: list[EncodedLimit] | None,
        says: int,
        request: Request | None,
        leasing: bool,
        settled: Settled,
        lease: bytes = b"",
        ban_us: int | None = None,
    ) -> None:
        self.plans = plans
        self.hits = hits
        self.limits = limits
        self.says = says
        self.request = request
        self.leasing = leasing
        self.settled = settled
        self.lease = lease
        self.ban_us = ban_us
        self.untouched = 0
        """The generation of overrides of which none takes it; 0 if nobody has looked yet."""


def leased(planned: PlannedRequest) -> PlannedRequest:
    """The same with an id of its own for the leases that the request takes."""
    lease = urandom(limiter.LEASE_BYTES)
    hits = [hit._replace(lease=lease) if _takes_lease(hit) else hit for hit in planned.hits]
    return PlannedRequest(
        planned.plans,
        hits,
        planned.limits,
        planned.says,
        planned.request,
        True,
        planned.settled,
        lease,
    )


def banned(planned: PlannedRequest, ban_us: int) -> PlannedRequest:
    """The same, of a call that comes so long before its bans end. It takes no leases."""
    return PlannedRequest(
        planned.plans,
        planned.hits,
        planned.limits,
        planned.says,
        planned.request,
        planned.leasing,
        planned.settled,
        ban_us=ban_us,
    )


def _takes_lease(hit: Hit) -> bool:
    return hit.spec.algorithm.leases and not hit.refund
