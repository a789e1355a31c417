"""`ratelimit queue`, against an admin listener in this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from ratelimit_service.errors import StoreError
from ratelimit_service.settings import Settings
from ratelimit_service.stores.queues import Queue, Queues
from tests.cli.inside import Inside, Printed
from tests.http.conftest import AdminSite
from tests.service.test_enqueueing import Kept

LIMIT = "rate_limit: {unit: day, requests_per_unit: 1}"
RULES = f"""
domain: mail
descriptors:
- {{key: customer, on_limit: enqueue, {LIMIT}}}
- {{key: path, {LIMIT}}}
- {{key: "\u202e", on_limit: enqueue, {LIMIT}}}
"""


class Asking:
    """The command, and what it asks."""

    def __init__(self, ratelimit: Inside, directory: Path, stack: AsyncExitStack) -> None:
        self._ratelimit = ratelimit
        self._directory = directory
        self._stack = stack

    async def start(self, queues: Queues | None, rules: str = RULES) -> None:
        site = AdminSite(self._directory / "site", Settings(), rules, queues)
        await site.start()
        self._stack.push_async_callback(site.listener.close)
        self._at = f"127.0.0.1:{site.port}"
        self.source = f"{site.directory}/0.yaml"

    async def ask(self, *arguments: object) -> Printed:
        return await asyncio.to_thread(self._ratelimit, "queue", *arguments, "--admin", self._at)


@pytest.fixture
async def asking(ratelimit: Inside, tmp_path: Path) -> AsyncIterator[Asking]:
    async with AsyncExitStack() as stack:
        yield Asking(ratelimit, tmp_path, stack)


async def test_how_queues_stand(asking: Asking) -> None:
    """Each queue has its length, its ages, what was dropped, and where its stream is."""
    queues = Kept()
    await queues.put(Queue("mail", "customer"), [{}, {}], 3)
    await asking.start(queues)

    result = await asking.ask()

    assert (result.code, result.err) == (0, "")
    assert result.out.replace(asking.source, "mail.yaml").splitlines() == [
        "mail: rule customer (mail.yaml:4:38)",
        "  2 of 10000 requests at most, the oldest 67 min old, the newest 90 s; 3 dropped",
        "  stream key of customer in here",
        r'mail: rule "\u202e" (mail.yaml:6:33)',
        "  0 of 10000 requests at most; 0 dropped",
        r'  stream key of "\u202e" in here',
    ]


async def test_queues_of_no_rule(asking: Asking) -> None:
    """A queue whose rule or domain is gone is shown, with what removes it, until it is removed."""
    queues = Kept()
    await queues.put(Queue("mail", "it's"), [{}], 0)
    await queues.put(Queue("post", "user"), [], 0)
    queues.removed = {Queue("mail", "old")}
    await asking.start(queues)

    mail, post = await asking.ask("mail"), await asking.ask("post")

    assert mail.out.splitlines()[6:] == [
        "mail: rule it's (no rule has it any more)",
        "  1 of 10000 requests at most, the oldest 67 min old, the newest 90 s; 0 dropped",
        "  stream key of it's in here",
        "  let workers empty it, then remove it: redis-cli DEL "
        """'key of it'"'"'s' 'key of it'"'"'s.dropped'""",
    ]
    assert post.out.splitlines()[:2] == [
        "post: rule user (no rule has it any more)",
        "  0 of 10000 requests at most; 0 dropped",
    ]
    assert not queues.removed


async def test_for_programs(asking: Asking) -> None:
    """--json is what the listener answers."""
    queues = Kept()
    await queues.put(Queue("mail", "customer"), [{}], 0)
    await asking.start(queues)

    answer = json.loads((await asking.ask("mail", "--json")).out)

    assert (answer["most"], answer["left_out"], len(answer["queues"])) == (10_000, 0, 2)
    assert answer["queues"][0] == {
        "domain": "mail",
        "rule": "customer",
        "source": f"{asking.source}:4:38",
        "key": "key of customer",
        "shard": "here",
        "length": 1,
        "oldest_seconds": 4000,
        "newest_seconds": 90,
        "dropped": 0,
    }


async def test_what_cannot_be_told(asking: Asking) -> None:
    """A domain that is not there, and a Redis that is away, are said in a sentence."""
    queues = Kept()
    queues.fault = StoreError("Redis (a:1) is away: try again when it is back")
    await asking.start(queues)

    unknown, away = await asking.ask("mial"), await asking.ask("mail")

    assert (unknown.code, "there is no domain 'mial': there are mail" in unknown.err) == (2, True)
    assert (away.code, "Redis (a:1) is away" in away.err) == (2, True)


async def test_counters_in_memory(asking: Asking) -> None:
    """Where counters are in memory it says that queues are not, and what to do."""
    await asking.start(None)

    result = await asking.ask()

    assert (result.code, "give a Redis as --store" in result.err) == (2, True)


async def test_no_queues(asking: Asking) -> None:
    """Where no rule has a queue it says how one gets one."""
    await asking.start(None, RULES.replace("on_limit: enqueue", "on_limit: deny"))

    result = await asking.ask()

    assert (result.code, result.out.strip()) == (
        0,
        "no rule has a queue: write on_limit: enqueue beside its rate_limit",
    )
