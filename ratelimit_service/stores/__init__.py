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
    AT_ONCE,
    NEVER,
    RANKS,
    Done,
    Look,
    LookAt,
    ShardState,
    Store,
    Wanted,
    always,
    wanted_at,
)

__all__ = [
    "AT_ONCE",
    "BROKEN",
    "DROPPED",
    "NEVER",
    "RANKS",
    "Done",
    "Granted",
    "Look",
    "LookAt",
    "Outcomes",
    "Settled",
    "ShardState",
    "Store",
    "Verdict",
    "Wanted",
    "always",
    "judge",
    "wanted_at",
]
