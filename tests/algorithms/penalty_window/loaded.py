"""What is asked of the example where it is built: see `tests/docs/test_walked_examples.py`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ratelimit_service.model import Code
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.rules.dump import dump
from ratelimit_service.rules.schema import parse
from ratelimit_service.rules.texts import limit_text
from ratelimit_service.rules.tree import Domain, Level, Snapshot
from ratelimit_service.stores.redis import RedisStore
from tests.servers.redis import SharedRedis
from tests.service.asking import Asking
from tests.stores.cases import MINUTE, SECOND
from tests.stores.conftest import Time
from tests.stores.redis_store import started

RULES = """
domain: edge
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 2, algorithm: penalty_window, penalty: 90s}
"""


@pytest.fixture
def clock() -> Time:
    return Time()


@pytest.fixture(params=["memory", "redis"])
async def service(
    tmp_path: Path, request: pytest.FixtureRequest, clock: Time, redis_server: SharedRedis
) -> AsyncIterator[Asking]:
    if request.param == "memory":
        yield Asking(tmp_path, RULES, clock=clock)
        return
    redis_server.flush()
    store = RedisStore(redis_server.url, 10_000_000, Stats(), Health(), clock)
    await started(store)
    yield Asking(tmp_path, RULES, store=store, clock=clock)
    await store.close()


async def test_penalty(service: Asking, clock: Time) -> None:
    """Who was denied stays denied for the penalty, in the next window too."""
    codes = [(await service.ask("user=ann")).code for _ in range(3)]
    clock.now_us += MINUTE
    codes.append((await service.ask("user=ann")).code)
    other = await service.ask("user=bob")
    clock.now_us += 30 * SECOND
    codes.append((await service.ask("user=ann")).code)

    assert codes == [Code.OK, Code.OK, Code.OVER_LIMIT, Code.OVER_LIMIT, Code.OK]
    assert other.code is Code.OK


def test_texts() -> None:
    """The reader, its messages, `/rlconfig` and `explain` know the parameter from its row."""
    file = parse("f", RULES.encode())
    rule = file.nodes[0].rule
    assert rule is not None
    lines = list(dump(Snapshot(1, {"edge": Domain("edge", Level.of(file.nodes))})))
    wrong = parse("f", RULES.replace("penalty_window", "sliding_log").encode())
    bad = parse("f", RULES.replace("90s", "long").encode())

    assert file.problems == ()
    assert limit_text(rule.limits[0]) == "2 per minute, penalty_window, a penalty of 90 s"
    assert "algorithm: penalty_window, penalty: 90000ms, at f:5:5" in lines[0]
    assert [problem.message for problem in wrong.problems] == [
        "penalty means nothing with sliding_log, only with penalty_window: other algorithms let "
        "hits in as soon as there is room"
    ]
    assert "penalty 'long' is none: write a number above 0 with ms" in bad.problems[0].message
