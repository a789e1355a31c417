"""Overrides in Redis: all of them in one server, under keys that lie together.

A hash has the overrides by their ids, a list the changes, and a third key a word that is another
one after each change: so one command finds out that nothing has changed. What must not live
here: which of them are in force.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from os import urandom
from typing import Final

from ratelimit_service.errors import OverrideError, StoreError
from ratelimit_service.model import MAX_OVERRIDES, Override, read_override
from ratelimit_service.stores.keys import shared_key
from ratelimit_service.stores.overrides import MOST_AUDITED, too_many
from ratelimit_service.stores.redis.connection import Argument, Reply
from ratelimit_service.stores.redis.store import RedisStore

__all__ = ["OverridesInRedis"]

log = logging.getLogger(__name__)

_OVERRIDES: Final = shared_key("overrides")
_VERSION: Final = shared_key("overrides", "version")
_AUDIT: Final = shared_key("overrides", "audit")

_AT_ONCE: Final = 200
"""So many are read in one command, so that Redis is not held up."""

_CURSOR_AND_PAIRS: Final = 2

_MOST_READS: Final = 3
"""So often they are read anew if they change meanwhile; what comes later is seen the next time."""

_SCRIPT: Final = """\
-- KEYS: the overrides, the version, the audit. ARGV: the next version, the most overrides, the
-- most that is audited, what is to be audited ("" for nothing), how many ids are removed, these;
-- then an id and an override each.
local removed = tonumber(ARGV[5])
local count = redis.call("HLEN", KEYS[1])
for place = 6, 5 + removed do
  count = count - redis.call("HEXISTS", KEYS[1], ARGV[place])
end
if count + (#ARGV - 5 - removed) / 2 > tonumber(ARGV[2]) then
  return -1
end
for place = 6, 5 + removed do
  redis.call("HDEL", KEYS[1], ARGV[place])
end
for place = 6 + removed, #ARGV, 2 do
  redis.call("HSET", KEYS[1], ARGV[place], ARGV[place + 1])
end
redis.call("SET", KEYS[2], ARGV[1])
if ARGV[4] ~= "" then
  redis.call("LPUSH", KEYS[3], ARGV[4])
  redis.call("LTRIM", KEYS[3], 0, ARGV[3] - 1)
end
return 1
"""


class OverridesInRedis:
    """Keeps overrides for all processes that count in a store."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._version: Reply = _UNKNOWN
        self._read: dict[bytes, tuple[bytes, Override | None]] = {}
        """What was read last, by id, and what that says; None for what cannot be read."""

    async def changed(self) -> Mapping[str, Override] | None:
        """As `KeptOverrides`."""
        version = await self._now()
        if version == self._version:
            return None
        if not version and self._read:
            log.warning(
                "Redis has lost the overrides that were in force (%d): make them again",
                len(self._read),
            )
        for _ in range(_MOST_READS):
            await self._read_all()
            before, version = version, await self._now()
            if version == before:
                break
        self._version = before
        found = [override for _, override in self._read.values() if override is not None]
        return {override.id: override for override in found}

    async def change(
        self, added: Sequence[Override], removed: Sequence[str], audit: str | None
    ) -> None:
        """As `KeptOverrides`, by one script."""
        keys = [self._store.key(key) for key in (_OVERRIDES, _VERSION, _AUDIT)]
        command: list[Argument] = ["EVAL", _SCRIPT, len(keys), *keys]
        command += [urandom(8).hex(), MAX_OVERRIDES, MOST_AUDITED, audit or ""]
        command += [len(removed), *removed]
        for each in added:
            command += [each.id, json.dumps(each.fields())]
        reply = await self._store.command(_OVERRIDES, *command)
        if reply == -1:
            raise too_many()

    async def audited(self, most: int) -> Sequence[str]:
        """As `KeptOverrides`."""
        reply = await self._ask("LRANGE", _AUDIT, 0, most - 1)
        lines = reply if isinstance(reply, list) else []
        return [line.decode("utf-8", "replace") for line in lines if isinstance(line, bytes)]

    async def _now(self) -> Reply:
        """The version; GET would say nothing where there is none, as a lost connection does."""
        return await self._ask("GETRANGE", _VERSION, 0, -1)

    async def _ask(self, command: str, key: bytes, *arguments: str | int) -> Reply:
        return await self._store.command(key, command, self._store.key(key), *arguments)

    async def _read_all(self) -> None:
        """Reads all of them, a few at a time; those that are as they were are not read again."""
        cursor, found = b"0", dict[bytes, tuple[bytes, Override | None]]()
        while True:
            reply = await self._ask("HSCAN", _OVERRIDES, cursor.decode(), "COUNT", _AT_ONCE)
            if not isinstance(reply, list) or len(reply) != _CURSOR_AND_PAIRS:
                raise StoreError("Redis does not tell the overrides")
            cursor, pairs = reply
            for name, text in zip(pairs[::2], pairs[1::2], strict=True):
                known = self._read.get(name)
                found[name] = known if known and known[0] == text else (text, _override(text))
            if cursor == b"0":
                break
        self._read = found


_UNKNOWN: Final[Reply] = object()


def _override(text: bytes) -> Override | None:
    try:
        fields = json.loads(text)
        if isinstance(fields, dict):
            return read_override(fields)
        error: Exception = OverrideError("it is no JSON object")
    except (ValueError, RecursionError, OverrideError) as cause:
        error = cause
    log.warning("an override in Redis is not in force, because it cannot be read: %s", error)
    return None
