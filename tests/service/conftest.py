"""What tests of decisions share."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratelimit_service.observability.stats import Stats
from ratelimit_service.stores import Store
from ratelimit_service.stores.local_cache import LocalCache
from tests.service.asking import Asking
from tests.service.deciding import Ask
from tests.stores.conftest import (
    STORES,
    Time,
    clock,
    cluster_store,
    memory,
    redis_store,
    ring_store,
    ring_url,
    stats,
    store,
    store_named,
)

__all__ = [
    "clock",
    "cluster_store",
    "memory",
    "redis_store",
    "ring_store",
    "ring_url",
    "stats",
    "store",
]


@pytest.fixture
def asking(tmp_path: Path) -> Ask:
    return lambda *files, **options: Asking(tmp_path, *files, **options)


@pytest.fixture(params=[*STORES, "cached"])
def any_store(request: pytest.FixtureRequest, clock: Time, stats: Stats) -> Store:
    """Each store, and Redis behind a local cache."""
    if request.param == "cached":
        return LocalCache(store_named("redis", request), 1 << 20, stats, clock)
    return store_named(request.param, request)
