"""What decides in a process, from its start to its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratelimit_service import wire
from ratelimit_service.model import Request
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.runtime.deciding import deciding
from ratelimit_service.settings import Settings
from ratelimit_service.stores.queues import Queue
from tests.servers.cluster import SharedCluster
from tests.servers.redis import SharedRedis
from tests.service.asking import Asking, descriptor
from tests.stores.conftest import ring_url

__all__ = ["ring_url"]  # a fixture

RULES = """
domain: edge
descriptors:
- {key: user, on_limit: enqueue, rate_limit: {unit: day, requests_per_unit: 0}}
"""


@pytest.mark.parametrize("topology", ["redis", "ring", "cluster"])
async def test_queues_over_a_restart(
    topology: str,
    request: pytest.FixtureRequest,
    redis_server: SharedRedis,
    ring_url: str,
    tmp_path: Path,
) -> None:
    """What a process has denied is in the queue when it has ended; the next one goes on there."""
    redis_server.flush()
    url = ring_url if topology == "ring" else redis_server.url
    if topology == "cluster":
        cluster: SharedCluster = request.getfixturevalue("redis_cluster")
        cluster.flush()
        url = cluster.url
    rules = Asking(tmp_path, RULES).rules
    settings = Settings(store=url, store_timeout_us=30_000_000, queue_length=30)
    queue, counts, looks = Queue("edge", "user"), [], []
    for process in range(2):
        stats = Stats()
        async with deciding(settings, lambda: rules.snapshot, stats, Health()) as here:
            assert here.queues is not None
            looks.append(await here.queues.look(queue))
            each = [f"user={process}-{number}" for number in range(20)]
            await here.service.decide(
                [wire.encode_request(Request("edge", (descriptor(text),))) for text in each]
            )
            if process:
                assert here.service.enqueueing is not None
                await here.service.enqueueing.finish()
                looks.append(await here.queues.look(queue))
        counts.append(dict(stats.queued))

    assert counts == [
        {"written": 20, "dropped_oldest": 0},
        {"written": 20, "dropped_oldest": 10},
    ]
    assert [(look.length, look.dropped) for look in looks] == [(0, 0), (20, 0), (30, 10)]


_LEASED = """
domain: edge
descriptors:
- {key: user, rate_limit: {unit: day, requests_per_unit: 100000, sync: leased}}
"""


async def test_a_reload_hands_back_what_is_held_of_other_limits(
    redis_server: SharedRedis, tmp_path: Path
) -> None:
    """Once rules without a leased limit hold, nothing is held any more, and nothing is leased."""
    redis_server.flush()
    asking, stats = Asking(tmp_path, _LEASED), Stats()
    settings = Settings(store=redis_server.url, store_timeout_us=30_000_000)
    body = wire.encode_request(Request("edge", (descriptor("user=bob"),)))
    async with deciding(settings, lambda: asking.rules.snapshot, stats, Health()) as here:
        for _ in range(5):
            await here.service.decide([body] * 40)
        was_leased, spent = here.service.leases, stats.leased_hits["spent"]
        (tmp_path / "0.yaml").write_text(_LEASED.replace(", sync: leased", ""))
        await asking.rules.reload()
        here.rules_changed()
        await here.service.decide([body] * 40)

        assert was_leased
        assert spent > 0
        assert not here.service.leases
        assert stats.leased_sent["hand_back"] == 1
        assert stats.leased_hits["spent"] == spent
