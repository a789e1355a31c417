"""The rules of a management server, followed, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.rules.load import Rules
from ratelimit_service.rules.sources import source_of
from ratelimit_service.rules.watch import watched
from ratelimit_service.settings import Settings
from tests.servers.management import ManagementServer
from tests.waiting import until


class Client:
    """The rules of one server, followed."""

    def __init__(self, server: ManagementServer, **settings: Any) -> None:
        self.health = Health()
        self.stats = Stats()
        self.settings = Settings(rules=server.url, **settings)
        source = source_of(self.settings)
        self.rules = Rules(source, stats=self.stats, health=self.health)

    @property
    def domains(self) -> dict[str, list[str]]:
        snapshot = self.rules.snapshot
        return {name: [rule.path for rule in each.rules] for name, each in snapshot.domains.items()}

    async def until_domains(self, domains: dict[str, list[str]]) -> None:
        await until(lambda: self.domains == domains)

    async def send(self, server: ManagementServer, version: str, *resources: bytes) -> Any:
        return await asyncio.to_thread(server.send, version, *resources)


@asynccontextmanager
async def following(server: ManagementServer, **settings: Any) -> AsyncIterator[Client]:
    client = Client(server, **settings)
    client.rules.load()
    async with watched(client.rules):
        yield client
