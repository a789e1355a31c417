"""The id of the leases that a request has taken, by which they are given back."""

from __future__ import annotations

from typing import Final

from ratelimit_service.algorithms import ALGORITHMS
from ratelimit_service.limiter.additions.addition import (
    CountedAddition,
    DecisionContext,
    ResponseExtras,
)
from ratelimit_service.model import Header, Limit

__all__ = ["Lease"]

_HEADER: Final = "x-ratelimit-lease"


class Lease(CountedAddition):
    """Travels with the request, so that whoever serves it can give the lease back."""

    def applies_to_limit(self, limit: Limit) -> bool:
        """Of algorithms that hand out leases."""
        return ALGORITHMS[limit.algorithm].leases

    def add(self, context: DecisionContext, extras: ResponseExtras) -> None:
        """Adds nothing for a request that only looks: it has taken no lease."""
        if context.lease:
            for _, hit, outcome in context.passed():
                if outcome.charged and hit.spec.algorithm.leases:
                    extras.request_headers.append(Header(_HEADER, context.lease.hex()))
                    return
