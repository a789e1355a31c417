"""Asks a rate limit service whether a request may go on.

    async with Limiter("localhost:8081", domain="api") as limiter:
        decision = await limiter.check(user="alice", cost=3)
        if not decision:
            print(f"come back in {decision.retry_after} s")

`SyncLimiter` is the same without asyncio; `ratelimit_client.asgi` and `ratelimit_client.wsgi` have
middleware, `ratelimit_client.testing` what tests need.
"""

from __future__ import annotations

from ratelimit_client.errors import (
    BadRequestError,
    LimiterError,
    MissingExtraError,
    UnavailableError,
)
from ratelimit_client.limiter import Budget, Lease, Limiter
from ratelimit_client.model import Decision, DeniedError, Descriptor, Limit, Reason, Status, Unit
from ratelimit_client.sync import SyncBudget, SyncLease, SyncLimiter
from ratelimit_client.tls import TLS

__all__ = [
    "TLS",
    "BadRequestError",
    "Budget",
    "Decision",
    "DeniedError",
    "Descriptor",
    "Lease",
    "Limit",
    "Limiter",
    "LimiterError",
    "MissingExtraError",
    "Reason",
    "Status",
    "SyncBudget",
    "SyncLease",
    "SyncLimiter",
    "UnavailableError",
    "Unit",
]
