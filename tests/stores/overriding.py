"""Processes with overrides, for tests of where these are kept."""

from __future__ import annotations

from contextlib import AsyncExitStack

from ratelimit_service.model import Override
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.rules.tree import Snapshot
from ratelimit_service.service import Service
from ratelimit_service.service.overrides.following import Overrides
from ratelimit_service.settings import Settings
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.stores.overrides import OverrideStore
from ratelimit_service.stores.redis import Layout, RedisStore
from ratelimit_service.stores.redis.overrides import OverridesInRedis
from tests.stores.conftest import Time
from tests.stores.redis_store import started


class Process:
    """What one process knows of overrides that are kept somewhere."""

    def __init__(self, kept: OverrideStore, clock: Time) -> None:
        store, settings = MemoryStore(10, Stats(), Health(), clock), Settings()
        service = Service(lambda: Snapshot(0, {}), store, settings, Stats(), clock)
        self.in_force = service.overrides
        self.overrides = Overrides(kept, self.in_force, Stats(), clock)

    @property
    def known(self) -> list[Override]:
        assert len(self.overrides.in_force()) == self.in_force.active
        return self.overrides.in_force()


class Processes:
    """Processes that count in one store."""

    def __init__(self, url: str, clock: Time, stack: AsyncExitStack) -> None:
        self._url, self._clock, self._stack = url, clock, stack
        self.health = Health()
        """Of all of them."""

    async def store(self) -> RedisStore:
        store = RedisStore(
            self._url, 5_000_000, Stats(), self.health, self._clock, layout=Layout(key_prefix="rl:")
        )
        await started(store)
        self._stack.push_async_callback(store.close)
        return store

    async def start(self) -> Process:
        process = Process(OverridesInRedis(await self.store(), self.health), self._clock)
        await process.overrides.refresh()
        return process
