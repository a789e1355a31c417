"""Queues of denied requests in Redis: a stream for each rule, and beside it what was dropped.

A queue lies in the server that owns its key. What must not live here: what an item says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ratelimit_service.errors import StoreError
from ratelimit_service.stores.keys import queue_key
from ratelimit_service.stores.queues import Queue, QueueLook
from ratelimit_service.stores.redis.connection import Argument
from ratelimit_service.stores.redis.store import RedisStore

__all__ = ["RedisQueues"]

_PUT: Final = """\
-- KEYS: the stream, and the number of what was dropped. ARGV: the most items of the stream, how
-- many were lost before, and for each item the number of its words, then these.
local before = redis.call("XLEN", KEYS[1])
local place, added = 3, 0
while place <= #ARGV do
  local words = tonumber(ARGV[place])
  redis.call("XADD", KEYS[1], "MAXLEN", ARGV[1], "*", unpack(ARGV, place + 1, place + words))
  place = place + words + 1
  added = added + 1
end
local trimmed = before + added - redis.call("XLEN", KEYS[1])
local dropped = trimmed + tonumber(ARGV[2])
if dropped > 0 then
  redis.call("INCRBY", KEYS[2], dropped)
end
return trimmed
"""

_LOOK: Final = """\
-- KEYS: as above. Returns the length, the first and the last id, what was dropped, and the time in
-- milliseconds.
local first = redis.call("XRANGE", KEYS[1], "-", "+", "COUNT", 1)
local last = redis.call("XREVRANGE", KEYS[1], "+", "-", "COUNT", 1)
local now = redis.call("TIME")
return {
  redis.call("XLEN", KEYS[1]),
  first[1] and first[1][1] or "",
  last[1] and last[1][1] or "",
  tonumber(redis.call("GET", KEYS[2]) or 0),
  now[1] * 1000 + math.floor(now[2] / 1000),
}
"""

_LOOKED: Final = 5


class RedisQueues:
    """The queues of all processes that count in a store."""

    def __init__(self, store: RedisStore, most: int) -> None:
        """A queue holds so many items at most."""
        self._store = store
        self._most = most

    async def put(self, queue: Queue, items: Sequence[Mapping[str, str]], lost: int) -> int:
        """As `Queues`, by one script."""
        command: list[Argument] = [*self._script(_PUT, queue), self._most, lost]
        for item in items:
            command.append(2 * len(item))
            for name, value in item.items():
                command += [name, value]
        reply = await self._store.command(queue_key(*queue), *command)
        if not isinstance(reply, int):
            raise StoreError("Redis does not say whether it has queued a request")
        return reply

    async def look(self, queue: Queue) -> QueueLook:
        """As `Queues`; ages are by Redis' clock."""
        key = queue_key(*queue)
        reply = await self._store.command(key, *self._script(_LOOK, queue))
        if not isinstance(reply, list) or len(reply) != _LOOKED:
            raise StoreError("Redis does not tell how a queue stands")
        length, first, last, dropped, now_ms = reply
        return QueueLook(
            self._store.key(key).decode("utf-8", "backslashreplace"),
            self._store.shard_of_key(key),
            length,
            _age_us(first, now_ms),
            _age_us(last, now_ms),
            dropped,
        )

    def _script(self, script: str, queue: Queue) -> list[Argument]:
        key = self._store.key(queue_key(*queue))
        return ["EVAL", script, 2, key, key + b".dropped"]


def _age_us(item: bytes, now_ms: int) -> int | None:
    """The age of an item by its id, which begins with the milliseconds at which it was added."""
    at_ms = item.partition(b"-")[0]
    return max(0, now_ms - int(at_ms)) * 1_000 if at_ms else None
