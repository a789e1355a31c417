"""TLS of connections to Redis: certificates are read from files, and again when these change."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from pathlib import Path

from ratelimit_service.files.renewed import Renewed
from ratelimit_service.observability.health import Health
from ratelimit_service.stores.redis.address import RedisTLSFiles

__all__ = ["Contexts"]


class Contexts:
    """The contexts of a store, by the files that they come from.

    Files are watched once a connection has asked for them. A connection that is open stays as it
    is. The next one gets what the files say then, or what they said when they were last good.
    """

    def __init__(self, component: str, health: Health, reloads: Counter[str]) -> None:
        """`component` is the name in health."""
        self._component = component
        self._health = health
        self._reloads = reloads
        self._contexts: dict[RedisTLSFiles, Renewed[ssl.SSLContext]] = {}
        self._watching: list[asyncio.Task[None]] = []

    async def of(self, files: RedisTLSFiles) -> ssl.SSLContext:
        """The context to connect with now. Raises StoreError if the files were never good."""
        context = self._contexts.get(files)
        if context is None:
            read = await asyncio.to_thread(self._read, files)
            # Another shard may have read them as well.
            context = self._contexts.setdefault(files, read)
            if context is read:
                self._watching.append(asyncio.create_task(context.watch()))
        return context.value

    def close(self) -> None:
        """Stops watching the files."""
        for task in self._watching:
            task.cancel()

    def _read(self, files: RedisTLSFiles) -> Renewed[ssl.SSLContext]:
        paths = [Path(path) for path in (files.ca, files.cert, files.key) if path]
        return Renewed(self._component, paths, files.context, self._health, self._reloads)
