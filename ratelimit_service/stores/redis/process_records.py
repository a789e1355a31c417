"""Records that processes leave for each other in Redis, beside the counters.

All records lie in one shard, in hashes that expire; a server that is away has none. What must not
live here: what a record says.
"""

from __future__ import annotations

from typing import Final

from ratelimit_service.errors import StoreError
from ratelimit_service.stores.keys import shared_key
from ratelimit_service.stores.redis.connection import Argument, Reply
from ratelimit_service.stores.redis.store import RedisStore

__all__ = ["RedisProcessRecords"]

_MOST_PROCESSES: Final = 200


class RedisProcessRecords:
    """The records of all processes that count in the same servers."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store

    async def leave(self, name: str, process: str, record: bytes, life_us: int) -> None:
        """Leaves a process's record under a name, in the place of its last one."""
        if await self._asked("HSET", name, process, record) is not None:
            await self._asked("PEXPIRE", name, life_us // 1_000)

    async def read(self, name: str) -> dict[str, bytes]:
        """The records under a name, by process; none if there are too many processes."""
        count = await self._asked("HLEN", name)
        if not isinstance(count, int) or not 0 < count <= _MOST_PROCESSES:
            return {}
        reply = await self._asked("HGETALL", name)
        if not isinstance(reply, list):
            return {}
        pairs = zip(reply[::2], reply[1::2], strict=False)
        return {
            process.decode("utf-8", "replace"): record
            for process, record in pairs
            if isinstance(process, bytes) and isinstance(record, bytes)
        }

    async def _asked(self, command: str, name: str, *rest: Argument) -> Reply:
        """The reply; None if there was none in time, or an error."""
        key = shared_key("callers", name)
        try:
            return await self._store.command(key, command, self._store.key(key), *rest)
        except StoreError:
            return None
