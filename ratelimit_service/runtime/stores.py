"""Every store, by how `--store` begins: what opens it, and what comes with it.

What must not live here: how counters are kept (`stores`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import NamedTuple

from ratelimit_service.errors import SettingsError
from ratelimit_service.model import CounterSpec, Hit
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.service.caller_history import ProcessRecords
from ratelimit_service.settings import Settings
from ratelimit_service.stores import KnownOver, LookAt, Pay, ShardState, Store, unknown
from ratelimit_service.stores.local_cache import LocalCache
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.stores.overrides import OverridesInMemory, OverrideStore
from ratelimit_service.stores.queues import Queues
from ratelimit_service.stores.redis import Layout, RedisStore
from ratelimit_service.stores.redis.advances import Advances
from ratelimit_service.stores.redis.overrides import OverridesInRedis
from ratelimit_service.stores.redis.process_records import RedisProcessRecords
from ratelimit_service.stores.redis.queues import RedisQueues

__all__ = ["STORES", "Opened", "open_store"]


def _nothing(_specs: Collection[CounterSpec]) -> None:
    """Nothing is leased there."""


class Opened(NamedTuple):
    """A store, and what else is known of it.

    `live_counters` is how many counters this process has in memory, None if they are elsewhere.
    `shard_of` says which server has a hit's counter, "" if none has. `look_at` tells how counters
    stand, `forget` lets them start again from nothing. Processes leave `records` there for each
    other. Rules have `queues` there for denied requests. `shard_states` says how the store's
    servers stand, if it has any, and `reply_us` how long the slowest takes to reply lately.
    `known_over` says who is over without counting. `pay` settles what needs no store, if anything
    may. `lease` hears which limits are leased from now on.
    """

    store: Store
    live_counters: Callable[[], int] | None
    shard_of: Callable[[Hit], str]
    look_at: LookAt
    forget: Callable[[Sequence[Hit]], Awaitable[None]]
    override_store: OverrideStore
    records: ProcessRecords | None = None
    queues: Queues | None = None
    shard_states: Callable[[], Sequence[ShardState]] = tuple
    known_over: KnownOver = unknown
    reply_us: Callable[[], int] = int
    pay: Pay | None = None
    lease: Callable[[Collection[CounterSpec]], None] = _nothing


def open_store(settings: Settings, stats: Stats, health: Health) -> Opened:
    """The store that the settings name, not started. Raises SettingsError if it cannot be used."""
    scheme, separator, _ = settings.store.partition("://")
    return STORES.get(scheme + separator, _in_redis)(settings, stats, health)


def _in_memory(settings: Settings, stats: Stats, health: Health) -> Opened:
    if settings.second_store:
        raise SettingsError("--second-store needs a --store in Redis")
    memory = MemoryStore(settings.max_counters, stats, health)
    overrides = OverridesInMemory(settings.overrides_file)
    return Opened(
        memory,
        memory.__len__,
        lambda _: "",
        memory.look,
        memory.forget,
        overrides,
        known_over=memory.known_over,
    )


def _in_redis(settings: Settings, stats: Stats, health: Health) -> Opened:
    if settings.overrides_file:
        raise SettingsError(
            "--overrides-file is for counters in memory: in Redis overrides lie beside them"
        )
    store = RedisStore(
        settings.store,
        settings.store_timeout_us,
        stats,
        health,
        layout=Layout(settings.second_store, settings.key_prefix),
    )
    overrides, records = OverridesInRedis(store, health), RedisProcessRecords(store)
    queues = RedisQueues(store, settings.queue_length)
    states = store.shard_states
    behind: Store = store
    known_over: KnownOver = unknown
    if settings.local_cache_bytes:
        cache = LocalCache(store, settings.local_cache_bytes, stats)
        store.tell_of_give_backs(cache.given_back)
        behind, known_over = cache, cache.known_over
    advances = Advances(behind, store, stats, known_over)
    return Opened(
        advances,
        None,
        store.shard_of,
        advances.look,
        store.forget,
        overrides,
        records,
        queues,
        states,
        advances.known_over,
        store.reply_us,
        advances.pay,
        advances.lease,
    )


STORES: dict[str, Callable[[Settings, Stats, Health], Opened]] = {
    "memory": _in_memory,
}
"""By the scheme with its `://`, or the whole name. All else is Redis, which has many schemes."""
