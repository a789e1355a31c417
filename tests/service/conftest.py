"""What tests of decisions share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.service.asking import Asking
from tests.service.deciding import Ask
from tests.stores.conftest import (
    clock,
    cluster_store,
    memory,
    redis_store,
    ring_store,
    ring_url,
    stats,
    store,
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
