"""The id of the leases that a request has taken, by which they are given back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ratelimit_service.algorithms import ALGORITHMS
from ratelimit_service.limiter.additions.addition import Said, Told
from ratelimit_service.model import Header, Limit
from ratelimit_service.rules.tree import Rule
from ratelimit_service.settings import Settings

__all__ = ["Lease"]

_HEADER: Final = "x-ratelimit-lease"


class Lease:
    """Travels with the request, so that whoever serves it can give the lease back."""

    needs_request = False

    def wanted(self, settings: Settings) -> bool:  # noqa: ARG002
        """Always."""
        return True

    def speaks_of(
        self,
        settings: Settings,  # noqa: ARG002
        rule: Rule | None,  # noqa: ARG002
        limits: Sequence[Limit],
    ) -> bool:
        """Of algorithms that hand out leases."""
        return any(ALGORITHMS[limit.algorithm].leases for limit in limits)

    def add(self, told: Told, said: Said) -> None:
        """Who only looks has taken no lease."""
        if told.lease:
            for _, hit, outcome in told.passed():
                if outcome.charged and hit.spec.algorithm.leases:
                    said.request_headers.append(Header(_HEADER, told.lease.hex()))
                    return
