"""Queues of denied requests in Redis: a stream for each rule, and beside it what was dropped.

A queue lies in the server that owns its key. A set names all queues, so that those of rules that
are gone can be found. A process adds a queue to it before it puts its first items there, and again
when the stream had been removed. What must not live here: what an item says.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Final

from ratelimit_service.errors import StoreError
from ratelimit_service.stores.keys import queue_key, shared_key
from ratelimit_service.stores.queues import Queue, QueueLook
from ratelimit_service.stores.redis.connection import Argument
from ratelimit_service.stores.redis.store import RedisStore

__all__ = ["RedisQueues"]

_PUT: Final = """\
-- KEYS: the stream, and the number of what was dropped. ARGV: the most items of the stream, how
-- many were lost before, and for each item the number of its words, then these.
-- Returns how many old items made room, and whether the stream was there before.
local all_of = table.unpack or unpack
local there = redis.call("EXISTS", KEYS[1])
local before = redis.call("XLEN", KEYS[1])
local index, added = 3, 0
while index <= #ARGV do
  local words = tonumber(ARGV[index])
  redis.call("XADD", KEYS[1], "MAXLEN", ARGV[1], "*", all_of(ARGV, index + 1, index + words))
  index = index + words + 1
  added = added + 1
end
local trimmed = before + added - redis.call("XLEN", KEYS[1])
local dropped = trimmed + tonumber(ARGV[2])
if dropped > 0 then
  redis.call("INCRBY", KEYS[2], dropped)
end
return {trimmed, there}
"""

_LOOK: Final = """\
-- KEYS: as above. Returns the length, the first and the last id, what was dropped, the time in
-- milliseconds, and whether the stream is there.
local first = redis.call("XRANGE", KEYS[1], "-", "+", "COUNT", 1)
local last = redis.call("XREVRANGE", KEYS[1], "+", "-", "COUNT", 1)
local now = redis.call("TIME")
return {
  redis.call("XLEN", KEYS[1]),
  first[1] and first[1][1] or "",
  last[1] and last[1][1] or "",
  tonumber(redis.call("GET", KEYS[2]) or 0),
  now[1] * 1000 + math.floor(now[2] / 1000),
  redis.call("EXISTS", KEYS[1]),
}
"""

_PUT_REPLY: Final = 2
_LOOKED: Final = 6
_LIST: Final = shared_key("queues")
_MOST_LISTED: Final = 10_000
"""Queues of which a process remembers that they are listed."""


class RedisQueues:
    """The queues of all processes that count in a store."""

    def __init__(self, store: RedisStore, most: int) -> None:
        """A queue holds so many items at most."""
        self._store = store
        self._most = most
        self._listed: set[Queue] = set()
        """Those that this process has added to the list."""

    async def put(self, queue: Queue, items: Sequence[Mapping[str, str]], lost: int) -> int:
        """As `Queues`, by one script, and another command for the first items of a queue."""
        is_new = queue not in self._listed
        if is_new:
            await self._list(queue)
        command: list[Argument] = [*self._script(_PUT, queue), self._most, lost]
        for item in items:
            command.append(2 * len(item))
            for name, value in item.items():
                command += [name, value]
        reply = await self._store.command(queue_key(*queue), *command)
        if not isinstance(reply, list) or len(reply) != _PUT_REPLY:
            raise StoreError("Redis does not say whether it has queued a request")
        trimmed, there = reply
        if not there and not is_new:
            await self._list(queue)
        return int(trimmed)

    async def look(self, queue: Queue) -> QueueLook:
        """As `Queues`; ages are by Redis' clock."""
        key = queue_key(*queue)
        reply = await self._store.command(key, *self._script(_LOOK, queue))
        if not isinstance(reply, list) or len(reply) != _LOOKED:
            raise StoreError("Redis does not tell how a queue stands")
        length, first, last, dropped, now_ms, there = reply
        return QueueLook(
            self._store.key(key).decode("utf-8", "backslashreplace"),
            self._store.shard_of_key(key),
            length,
            _age_us(first, now_ms),
            _age_us(last, now_ms),
            dropped,
            bool(there),
        )

    async def listed(self) -> Sequence[Queue]:
        """As `Queues`."""
        reply = await self._store.command(_LIST, "SMEMBERS", self._store.key(_LIST))
        if not isinstance(reply, list):
            raise StoreError("Redis does not tell which queues there are")
        queues = []
        for name in reply:
            with contextlib.suppress(ValueError, TypeError, RecursionError):  # else it is not ours
                domain, rule = json.loads(name)
                if isinstance(domain, str) and isinstance(rule, str):
                    queues.append(Queue(domain, rule))
        return sorted(queues)

    async def forget(self, queue: Queue) -> None:
        """As `Queues`."""
        await self._store.command(_LIST, "SREM", self._store.key(_LIST), _name(queue))
        self._listed.discard(queue)
        if (await self.look(queue)).there:  # somebody has put items there in between
            await self._list(queue)

    async def _list(self, queue: Queue) -> None:
        """Adds a queue to the list. Where that fails the next items try it again."""
        if len(self._listed) >= _MOST_LISTED:
            self._listed.clear()
        try:
            await self._store.command(_LIST, "SADD", self._store.key(_LIST), _name(queue))
        except StoreError:
            self._listed.discard(queue)
        else:
            self._listed.add(queue)

    def _script(self, script: str, queue: Queue) -> list[Argument]:
        key = self._store.key(queue_key(*queue))
        return ["EVAL", script, 2, key, key + b".dropped"]


def _name(queue: Queue) -> str:
    """A queue's name in the list: JSON in ASCII, whatever is in it."""
    return json.dumps(list(queue))


def _age_us(item: bytes, now_ms: int) -> int | None:
    """The age of an item by its id, which begins with the milliseconds at which it was added."""
    at_ms = item.partition(b"-")[0]
    return max(0, now_ms - int(at_ms)) * 1_000 if at_ms else None
