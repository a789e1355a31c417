"""Services over a directory with one rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.servers.redis import RedisServer
from tests.servers.service import ServiceProcess

RULES = """
domain: edge
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: %d}}
"""
Start = Callable[..., ServiceProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts services over a directory with one rule; a path for `--rules` is `tmp_path`."""
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "edge.yaml").write_text(RULES % 2)
    started = []

    def start(*flags: str, **environment: str) -> ServiceProcess:
        rules = ["--rules", str(tmp_path / "rules")]
        process = ServiceProcess(tmp_path, *rules, *flags, environment=environment)
        started.append(process)
        process.start()
        return process

    yield start
    for process in started:
        process.kill()


@pytest.fixture
def two(start: Start, own_redis: RedisServer) -> ServiceProcess:
    """A service with two workers."""
    return start("--store", own_redis.url, "--workers", "2")
