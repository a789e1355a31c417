"""The settings that all shards of a store share."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ratelimit_service.eventloop.clock import Clock
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.stores.redis.contexts import Contexts

__all__ = ["ShardConfig"]


@dataclass(frozen=True, slots=True)
class ShardConfig:
    """How a shard's server is connected, and where it says how it stands."""

    timeout_us: int
    """How long a server may take to answer."""
    stats: Stats
    health: Health
    contexts: Contexts
    component: str = "store"
    """The name in health."""
    clock: Clock | None = None
    """If it is given its time counts, not the server's."""
    key_prefix: str = ""
    """All keys in the server begin with it."""

    def of(self, shard: str) -> ShardConfig:
        """The same for one of several shards, with its name in health."""
        return replace(self, component=f"{self.component} {shard}")
