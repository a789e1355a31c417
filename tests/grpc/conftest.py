"""Which event loops the tests of connections run on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop

Factory = Callable[[], asyncio.AbstractEventLoop]


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Factory]:
    """Asyncio's loop, and where sockets are made and lost also the one that serves."""
    factories: dict[str, Factory] = {"asyncio": asyncio.new_event_loop}
    if item.path.name in {"test_connections.py", "test_reads.py"}:
        factories["uvloop"] = uvloop.new_event_loop
    return factories
