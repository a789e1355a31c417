"""The part of `runtime/stores.py` that the example of a store adds."""

from __future__ import annotations

from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.runtime.stores import Opened
from ratelimit_service.settings import Settings
from ratelimit_service.stores.overrides import OverridesInMemory
from tests.stores.sqlite_store.sqlite import SqliteStore

__all__ = ["_in_sqlite"]


def _in_sqlite(settings: Settings, stats: Stats, health: Health) -> Opened:
    path = settings.store.removeprefix("sqlite://")
    store = SqliteStore(path, settings.store_timeout_us, stats, health)
    overrides = OverridesInMemory(settings.overrides_file)
    return Opened(store, None, lambda _: "", store.look, store.forget, overrides)
