"""A store over one Redis, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.stores import Outcomes
from ratelimit_service.stores.redis import RedisStore
from tests.stores.cases import YEAR, charged, hit
from tests.waiting import PATIENCE_SECONDS, until

GENEROUS_US = 5_000_000

COUNTERS = "{[0-9a-f]*"
"""What the keys of counters look like."""


async def started(store: RedisStore) -> None:
    """Starts a store whose servers all serve, and waits until it is connected with each.

    A start tries each server for a second, which a busy machine may take to greet.
    """
    await store.start()
    await until(
        lambda: all(each.address and not each.breaker_open for each in store.shard_states())
    )


SILENT = ("does not answer", "Timeout")
"""What health says of a server, or a Sentinel, that a busy machine has not let answer yet."""


async def tried(store: RedisStore, health: Health) -> None:
    """Starts a store, and waits until its servers have answered something, if only a refusal."""
    await store.start()
    await until(
        lambda: not any(silent in fault for fault in health.faults.values() for silent in SILENT)
    )


class Fixture:
    """A store with the stats and the health it writes."""

    def __init__(self, url: str, timeout_us: int = GENEROUS_US) -> None:
        self.stats = Stats()
        self.health = Health()
        self.store = RedisStore(url, timeout_us, self.stats, self.health)

    async def hit(self, *, limit: int = 1_000, key: str = "a") -> Outcomes:
        (outcomes,) = await charged(self.store, [[hit(limit=limit, key=key, window_us=YEAR)]])
        return outcomes

    async def until(self, condition: Callable[[Outcomes], bool]) -> Outcomes:
        """Charges until the condition holds."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not condition(outcomes := await self.hit()):
                await asyncio.sleep(0.01)
            return outcomes
