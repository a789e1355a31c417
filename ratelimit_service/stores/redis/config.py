"""The settings that all shards of a store share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from ratelimit_service.eventloop.clock import Clock
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.stores.redis.contexts import Contexts

__all__ = ["Layout", "ShardConfig"]


class Layout(NamedTuple):
    """Where in Redis counters lie."""

    second_url: str = ""
    """The store of counters whose window is a second; empty if they lie with the others."""
    key_prefix: str = ""
    """Stands before all keys, and has no braces in it."""


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

    def patient(self, timeout_us: int | None) -> ShardConfig:
        """The same for a server whose URL says how long it may take, if it does."""
        return self if timeout_us is None else replace(self, timeout_us=timeout_us)
