"""An admin listener over a service in the test's own process."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from ratelimit_service.decision_log.line import lines_of
from ratelimit_service.http import AdminListener, Operating, feed
from ratelimit_service.metrics import Sources
from ratelimit_service.model import Code
from ratelimit_service.observability.health import Phase
from ratelimit_service.service.caller_history import CallerHistory
from ratelimit_service.service.overrides.following import Overrides
from ratelimit_service.service.questions import Deciding, answered
from ratelimit_service.service.tail import Tail
from ratelimit_service.settings import Settings
from ratelimit_service.stores import ShardState
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.stores.overrides import OverridesInMemory
from ratelimit_service.stores.queues import Queues
from tests.cli.inside import Inside, Printed
from tests.http_client import HTTPAnswer, http
from tests.nearby import Listener
from tests.service.asking import Asking

RULES = """
domain: edge
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 2}}
"""
STEERED_RULES = """
domain: edge
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 2}
  - key: plan
    rate_limits:
      - {name: short, unit: minute, requests_per_unit: 2}
      - {name: long, unit: day, requests_per_unit: 2, algorithm: sliding_log}
"""


class Here:
    """What decides in this process."""

    def __init__(self, deciding: Deciding) -> None:
        self._deciding = deciding

    async def ask(self, question: bytes) -> bytes:
        return await answered(self._deciding, question)

    async def ask_all(self, question: bytes) -> list[bytes]:
        return [await self.ask(question)]


class AdminSite:
    """A running admin listener; `asking` is the service that it is of."""

    def __init__(
        self,
        directory: Path,
        settings: Settings,
        rules: str,
        queues: Queues | None = None,
    ) -> None:
        directory.mkdir(exist_ok=True)
        self._queues = queues
        self.directory = directory
        self.shards: list[ShardState] = []
        self.version = "1"
        self.workers: list[dict[str, object]] = []
        self.asking = asking = Asking(directory, rules, settings=settings)
        self.operating = Operating(
            settings,
            lambda: asking.rules.snapshot,
            asking.stats,
            asking.health,
            Here(self._deciding(asking)),
            Sources(asking.stats, asking.health, lambda: asking.rules.snapshot),
            _nothing,
            lambda: {"pid": 7, "version": self.version, "workers": self.workers},
            asking.rules.problems,
        )
        self.listener = AdminListener(self.operating)

    def _deciding(self, asking: Asking) -> Deciding:
        store = MemoryStore(1_000, asking.stats, asking.health, asking.clock)
        asking.service = asking.served_by(store, asking.settings)
        kept = OverridesInMemory(asking.settings.overrides_file)
        self.overrides = Overrides(kept, asking.service.overrides, asking.stats, asking.clock)
        return Deciding(
            asking.settings,
            asking.service,
            store,
            lambda: asking.rules.snapshot,
            asking.stats,
            asking.health,
            lambda: 0,
            lambda _: "",
            store.look,
            store.forget,
            self.overrides,
            Tail(asking.service.events),
            lines_of(asking.settings.store, lambda _: ""),
            None
            if asking.service.callers is None
            else CallerHistory(asking.service.callers, None, asking.clock),
            self._queues,
            shard_states=lambda: self.shards,
        )

    async def start(self, sockets: Sequence[socket.socket] = ()) -> None:
        """Serves at a listening socket of this process alone, or where others listen."""
        if not sockets:
            self.near = Listener()
            sockets = [self.near]
        first = sockets[0]
        self.port = 0 if first.family == socket.AF_UNIX else first.getsockname()[1]
        await self.listener.start(sockets)
        self.asking.health.enter(Phase.SERVING)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def ask(self, path: str, body: object = None, **headers: str) -> HTTPAnswer:
        """GET, or POST if there is a body; `X_Name="a"` is the header `X-Name: a`."""
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        return await asyncio.to_thread(http, f"{self.url}{path}", body, named)

    async def json_of(self, path: str, body: object = None, **headers: str) -> object:
        """What was answered, if that is 200."""
        answer = await self.ask(path, body, **headers)
        assert answer.status == 200, answer.text
        result: object = json.loads(answer.text)
        return result


async def _nothing() -> None: ...


class Operator:
    """Somebody with a shell on the machine of the service."""

    def __init__(self, admin: AdminSite, ratelimit: Inside) -> None:
        self.admin = admin
        self._ratelimit = ratelimit

    async def types(self, *words: str) -> Printed:
        command, *rest = words
        address = f"127.0.0.1:{self.admin.port}"
        return await asyncio.to_thread(self._ratelimit, command, *rest, "--admin", address)

    async def json_of(self, *words: str) -> Any:
        result = await self.types(*words, "--json")
        assert result.code == 0, result.err
        return json.loads(result.out)

    async def passed(self, times: int, text: str = "user=bob") -> int:
        """How many of so many requests pass."""
        request = [await self.admin.asking.ask(text) for _ in range(times)]
        return sum(each.code is Code.OK for each in request)


StartSite = Callable[..., Awaitable[AdminSite]]


@pytest.fixture
async def start_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[StartSite]:
    """Starts listeners with settings; who watches them is told of more moments than usual."""
    monkeypatch.setattr(feed, "_SECONDS", 0.05)
    monkeypatch.setattr(feed, "_SHARE", 1)
    async with AsyncExitStack() as stack:

        async def start(
            settings: Settings | None = None,
            rules: str = RULES,
            sockets: Sequence[socket.socket] = (),
        ) -> AdminSite:
            site = AdminSite(tmp_path / "rules", settings or Settings(), rules)
            await site.start(sockets)
            stack.push_async_callback(site.listener.close)
            return site

        yield start


@pytest.fixture
async def admin(start_site: StartSite) -> AdminSite:
    """A listener with settings as they are by default."""
    return await start_site()


@pytest.fixture
async def operator(
    start_site: StartSite,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Operator:
    """One whose service has limits of one number and of two, and keeps what is changed."""
    settings = Settings(
        audit_log=str(tmp_path / "audit.jsonl"), overrides_file=str(tmp_path / "overrides.json")
    )
    return Operator(await start_site(settings, STEERED_RULES), Inside(monkeypatch, capsys))
