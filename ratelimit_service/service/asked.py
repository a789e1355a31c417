"""One request between its plan and its answer."""

from __future__ import annotations

from collections.abc import Sequence
from os import urandom

from ratelimit_service import limiter
from ratelimit_service.limiter import Plan
from ratelimit_service.model import Hit, Request
from ratelimit_service.stores import Settled

__all__ = ["Asked", "leased"]


class Asked:
    """A request as it was planned. Never changed, since it is also what is remembered.

    `limits` are the encoded limits if every descriptor is usual, else None. `says` are the bits
    of the additions that may speak in its answer; `request` is None where they do not need it.
    `settled` is what the request comes to if it has no hits. With `leasing` some hits take
    leases; `lease` is their id, drawn for each call.
    """

    __slots__ = ("hits", "lease", "leasing", "limits", "plans", "request", "says", "settled")

    def __init__(
        self,
        plans: Sequence[Plan],
        hits: Sequence[Hit],
        limits: Sequence[bytes] | None,
        says: int,
        request: Request | None,
        leasing: bool,
        settled: Settled,
        lease: bytes = b"",
    ) -> None:
        self.plans = plans
        self.hits = hits
        self.limits = limits
        self.says = says
        self.request = request
        self.leasing = leasing
        self.settled = settled
        self.lease = lease


def leased(asked: Asked) -> Asked:
    """The same with an id of its own for the leases that the request takes."""
    lease = urandom(limiter.LEASE_BYTES)
    hits = [hit._replace(lease=lease) if _takes_lease(hit) else hit for hit in asked.hits]
    return Asked(
        asked.plans, hits, asked.limits, asked.says, asked.request, True, asked.settled, lease
    )


def _takes_lease(hit: Hit) -> bool:
    return hit.spec.algorithm.leases and not hit.refund
