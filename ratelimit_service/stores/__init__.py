"""Where counters live. A store settles whether requests pass, atomically, and counts them."""

from ratelimit_service.stores.settled import (
    BROKEN,
    DROPPED,
    Granted,
    Outcomes,
    Settled,
    Verdict,
    judge,
)
from ratelimit_service.stores.store import (
    NEVER,
    PRIORITIES,
    Done,
    KnownOver,
    Look,
    LookAt,
    Pay,
    ShardState,
    Store,
    Wanted,
    always,
    unknown,
    wanted_at,
)

__all__ = [
    "BROKEN",
    "DROPPED",
    "NEVER",
    "PRIORITIES",
    "Done",
    "Granted",
    "KnownOver",
    "Look",
    "LookAt",
    "Outcomes",
    "Pay",
    "Settled",
    "ShardState",
    "Store",
    "Verdict",
    "Wanted",
    "always",
    "judge",
    "unknown",
    "wanted_at",
]
