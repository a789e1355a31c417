"""What decides in a process, built from the settings: the store, and the service over it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from ratelimit_service.errors import SettingsError
from ratelimit_service.health import Health
from ratelimit_service.model import Hit
from ratelimit_service.observer import Stats
from ratelimit_service.rules.tree import Snapshot
from ratelimit_service.service import Service
from ratelimit_service.service.caller_history import Board, CallerHistory
from ratelimit_service.service.overrides import Overrides
from ratelimit_service.service.questions import Deciding
from ratelimit_service.settings import Settings
from ratelimit_service.stores import LookAt, Store
from ratelimit_service.stores.local_cache import LocalCache
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.stores.overrides import KeptOverrides, OverridesInMemory
from ratelimit_service.stores.redis import RedisStore
from ratelimit_service.stores.redis.board import RedisBoard
from ratelimit_service.stores.redis.overrides import OverridesInRedis

__all__ = ["deciding", "open_store"]


class Opened(NamedTuple):
    """A store, and what else is known of it.

    `live_counters` is how many counters this process has in memory, None if they are elsewhere.
    `shard_of` says which server has a hit's counter, "" if none has. `look_at` tells how counters
    stand, `forget` lets them start anew. Overrides are `kept` there. On the `board` processes leave
    records for each other.
    """

    store: Store
    live_counters: Callable[[], int] | None
    shard_of: Callable[[Hit], str]
    look_at: LookAt
    forget: Callable[[Sequence[Hit]], Awaitable[None]]
    kept: KeptOverrides
    board: Board | None = None


@asynccontextmanager
async def deciding(
    settings: Settings, snapshot: Callable[[], Snapshot], stats: Stats, health: Health
) -> AsyncIterator[Deciding]:
    """A service whose store has been tried once. Raises SettingsError if there can be none."""
    store, live_counters, shard_of, look_at, forget, kept, board = open_store(
        settings, stats, health
    )
    keeping: asyncio.Task[None] | None = None
    try:
        await store.start()
        service = Service(snapshot, store, settings, stats)
        history = CallerHistory(service.callers, board) if service.callers is not None else None
        if history is not None:
            keeping = asyncio.create_task(history.keep())
        overrides = Overrides(kept, service.steering, stats)
        async with overrides.followed():
            yield Deciding(
                settings,
                service,
                store,
                snapshot,
                stats,
                health,
                live_counters,
                shard_of,
                look_at,
                forget,
                overrides,
                history,
            )
        if history is not None and board is not None:
            await history.leave()  # for those who ask when this process is gone
    finally:
        if keeping is not None:
            keeping.cancel()
        await store.close()


def open_store(settings: Settings, stats: Stats, health: Health) -> Opened:
    """The store that the settings name, not started. Raises SettingsError if it cannot be used."""
    if settings.store == "memory":
        if settings.second_store:
            raise SettingsError("--second-store needs a --store in Redis")
        memory = MemoryStore(settings.max_counters, stats, health)
        in_memory = OverridesInMemory(settings.overrides_file)
        return Opened(memory, memory.__len__, lambda _: "", memory.look, memory.forget, in_memory)
    if settings.overrides_file:
        raise SettingsError(
            "--overrides-file is for counters in memory: in Redis overrides lie beside them"
        )
    store = RedisStore(
        settings.store,
        settings.store_timeout_us,
        stats,
        health,
        second_url=settings.second_store,
        key_prefix=settings.key_prefix,
    )
    kept, board = OverridesInRedis(store), RedisBoard(store)
    opened = Opened(store, None, store.shard_of, store.look, store.forget, kept, board)
    if not settings.local_cache_bytes:
        return opened
    cache = LocalCache(store, settings.local_cache_bytes, stats)
    store.tell_of_give_backs(cache.given_back)
    return opened._replace(store=cache)
