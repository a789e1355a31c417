"""The worker of docs/how-to/queue.md, on a real Redis, behind a service with its rules."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis

from ratelimit_service.model import Code
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.service.enqueueing import Enqueueing
from ratelimit_service.stores.queues import Queue
from ratelimit_service.stores.redis import RedisStore
from ratelimit_service.stores.redis.queues import RedisQueues
from tests.policies.shipped import TOP
from tests.servers.redis import SharedRedis
from tests.service.asking import Asking
from tests.stores.conftest import Time
from tests.stores.redis_store import started

PAGE = (TOP / "docs" / "how-to" / "queue.md").read_text()
CUSTOMER = Queue("mail", "customer")


class Jobs(NamedTuple):
    """A worker, and the queue that it reads."""

    once: Callable[..., None]
    store: Any
    stream: str
    asking: Asking
    queues: RedisQueues

    async def deny(self, *jobs: str) -> None:
        """Queues these jobs, in this order."""
        for job in jobs:
            await self.asking.ask("customer=acme", f"job={job}", domain="mail")
        assert self.asking.service.enqueueing is not None
        await self.asking.service.enqueueing.finish()

    def work(self, me: str, idle_ms: int, *, fail: str = "") -> list[str]:
        """One round of a worker: the jobs that it has done, until one fails."""
        done: list[str] = []

        def do(request: Any) -> None:
            job = request["descriptors"][1]["entries"][0]["value"]
            if job == fail:
                raise RuntimeError
            done.append(job)

        if fail:
            with pytest.raises(RuntimeError):
                self.once(self.store, self.stream, me, do, idle_ms)
        else:
            self.once(self.store, self.stream, me, do, idle_ms)
        return done


@pytest.fixture
async def jobs(redis_server: SharedRedis, tmp_path: Path) -> AsyncIterator[Jobs]:
    redis_server.flush()
    rules, _ = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {"__name__": "worker"}
    exec(program.replace("block=1_000", "block=1"), names)
    store = RedisStore(redis_server.url, 10_000_000, Stats(), Health(), Time())
    asking = Asking(tmp_path, rules, store=store)
    queues = RedisQueues(store, 1_000)
    asking.service.enqueueing = Enqueueing(queues, asking.stats)
    client = redis.Redis(port=redis_server.port, decode_responses=True, protocol=2)
    async with AsyncExitStack() as stack:
        stack.callback(client.close)
        await started(store)
        stack.push_async_callback(store.close)
        passed = await asking.ask("customer=acme", domain="mail", hits=100)
        assert passed.code is Code.OK
        stream = (await queues.look(CUSTOMER)).key
        client.xgroup_create(stream, names["GROUP"], id="0", mkstream=True)
        yield Jobs(names["once"], client, stream, asking, queues)


async def test_denied_jobs_are_done_once_and_in_order(jobs: Jobs) -> None:
    """Workers do what was denied; what is done is gone from the queue."""
    await jobs.deny("a", "b", "c")

    first, rest = jobs.work("one", 60_000), jobs.work("two", 60_000)

    assert (first, rest) == (["a", "b", "c"], [])
    assert (await jobs.queues.look(CUSTOMER)).length == 0


async def test_failed_jobs_are_tried_again(jobs: Jobs) -> None:
    """What a worker leaves undone another one does, not before its time is over."""
    await jobs.deny("a", "b", "c")

    failed = jobs.work("one", 60_000, fail="b")
    soon = jobs.work("two", 60_000)
    later = jobs.work("two", 0)

    assert (failed, soon, later) == (["a"], [], ["b", "c"])
    assert (await jobs.queues.look(CUSTOMER)).length == 0
    assert jobs.store.xpending(jobs.stream, "workers")["pending"] == 0


async def test_dropped_jobs_are_passed_over(jobs: Jobs) -> None:
    """What was pending and had to make room is acknowledged, and hurts nobody."""
    await jobs.deny("a", "b")
    jobs.work("one", 60_000, fail="a")
    jobs.store.xtrim(jobs.stream, maxlen=1, approximate=False)

    assert jobs.work("two", 0) == ["b"]
    assert jobs.store.xpending(jobs.stream, "workers")["pending"] == 0


async def test_the_page_names_the_stream(jobs: Jobs) -> None:
    """The key of the page is that of its rule."""
    assert f"'{jobs.stream}'" in PAGE
