"""Overrides in Redis: under keys that lie together in one server, of a ring in all of them.

A hash has the overrides by their ids, a list what is audited, and a third key a stamp, which grows
with each change: so one command finds out that nothing has changed. A second list says of the last
changes between which stamps each lies, and which ids it was about. So who knows an older stamp
reads only these, unless the list does not reach back, or somebody else has changed something
without a word in it: then all is read. Changes are made in the server that
owns these keys. In a ring another shard owns them when shards are added or removed. So each shard
keeps a copy, the newest one counts, and whoever sees an older one replaces it. What must not live
here: which overrides are in force.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain
from os import urandom
from typing import Final

from ratelimit_service.errors import OverrideError, StoreError
from ratelimit_service.eventloop.clock import now_us
from ratelimit_service.model import MAX_OVERRIDES, Override, read_override, too_many_overrides
from ratelimit_service.observability.health import Health
from ratelimit_service.stores.keys import shared_key
from ratelimit_service.stores.overrides import MOST_AUDITED, Audited
from ratelimit_service.stores.redis.audit import audited
from ratelimit_service.stores.redis.connection import Argument, Reply
from ratelimit_service.stores.redis.store import RedisStore
from ratelimit_service.text.display import printable
from ratelimit_service.text.json_slips import json_slip

__all__ = ["OverridesInRedis"]

log = logging.getLogger(__name__)

_NAME: Final = "overrides"
_COMPONENT: Final = "overrides"
"""Their name in health."""

_OVERRIDES: Final = shared_key(_NAME)
_STAMP: Final = shared_key(_NAME, "version")
_AUDIT: Final = shared_key(_NAME, "audit")
_CHANGES: Final = shared_key(_NAME, "changes")
_COPIER: Final = shared_key(_NAME, "copier")

_AT_ONCE: Final = 200
"""So many are read or copied in one command, so that Redis is not held up."""

_CURSOR_AND_PAIRS: Final = 2

_MOST_DIGITS: Final = 16
_STAMP_ENDS: Final = 1 << 52
"""Of a stamp, which is a time in microseconds: it is below that, until 2112. Lua counts to 2^53."""

_MOST_TEXT_BYTES: Final = 1 << 19
"""Of an override. The longest has 32 entries of 2,048 characters."""

_MOST_LOOKS: Final = 10_000
"""So many parts of a copy are asked for: a scan may bring fewer than `_AT_ONCE`, or none."""

_PARSED_AT_ONCE: Final = 20
_MOST_SHOWN: Final = 200
"""Characters of what is wrong with one: it may repeat all of it."""

_MOST_LOGGED: Final = 200
_LOGGED_AT_ONCE: Final = 20
"""So many lost overrides are logged, and so many in a line."""

_MOST_READS: Final = 3
"""They are read at most so often if they change meanwhile; later changes are seen the next time."""

_MOST_ATTEMPTS: Final = 30
_AGAIN_SECONDS: Final = 0.1
"""So often a change is tried while its server has no newest copy, and the pause."""

_MOST_CHANGES: Final = 32
_MOST_CHANGED: Final = 400
"""So many changes are listed, the newest, if each is about so many overrides at most."""

_COPY_MS: Final = 3_000
"""For so long nobody else replaces a shard's copy."""

_TOO_MANY: Final = -1
_OLD: Final = -2

_CHANGE: Final = """\
-- KEYS: the overrides, the stamp, the audit, the changes. ARGV: the time, the newest stamp that is
-- known, the most overrides, the most that is audited, how many changes are listed and how large
-- they may be, how many lines are audited, these, how many ids are removed, these; then an id and
-- an override each. Returns the stamp before and the new one.
local stamp = tonumber(redis.call("GET", KEYS[2]) or "0") or -1
if not (stamp >= 0 and stamp < 2^52) then
  stamp = -1 -- none of ours: whoever looks next reads all
end
if math.max(stamp, 0) < tonumber(ARGV[2]) then
  return -2
end
local audited = 7 + tonumber(ARGV[7])
local removed = audited + 1 + tonumber(ARGV[audited + 1])
local count = redis.call("HLEN", KEYS[1])
for index = audited + 2, removed do
  count = count - redis.call("HEXISTS", KEYS[1], ARGV[index])
end
if count + (#ARGV - removed) / 2 > tonumber(ARGV[3]) then
  return -1
end
for index = audited + 2, removed do
  redis.call("HDEL", KEYS[1], ARGV[index])
end
for index = removed + 1, #ARGV, 2 do
  redis.call("HSET", KEYS[1], ARGV[index], ARGV[index + 1])
end
local after = math.max(stamp + 1, tonumber(ARGV[1]))
if after >= 2^52 then
  after = tonumber(ARGV[1])
end
local changed = string.format("%.0f", after)
redis.call("SET", KEYS[2], changed)
local change = {string.format("%.0f", stamp), changed}
for index = audited + 2, removed do
  change[#change + 1] = ARGV[index]
end
for index = removed + 1, #ARGV, 2 do
  change[#change + 1] = ARGV[index]
end
if #change - 2 > tonumber(ARGV[6]) then
  redis.call("DEL", KEYS[4])
else
  redis.call("LPUSH", KEYS[4], cjson.encode(change))
  redis.call("LTRIM", KEYS[4], 0, ARGV[5] - 1)
end
for index = 8, audited do
  redis.call("LPUSH", KEYS[3], ARGV[index])
end
redis.call("LTRIM", KEYS[3], 0, ARGV[4] - 1)
return string.format("%.0f ", stamp) .. changed
"""

_BEGIN: Final = """\
-- KEYS: who copies. ARGV: for how many milliseconds nobody else may.
return redis.call("SET", KEYS[1], "1", "NX", "PX", ARGV[1]) and 1 or 0
"""

_REPLACE: Final = """\
-- KEYS: the overrides, the stamp, a newer copy of the overrides, who copies. ARGV: its stamp.
redis.call("DEL", KEYS[4])
local stamp = tonumber(redis.call("GET", KEYS[2]) or "0") or 0
if stamp >= tonumber(ARGV[1]) and stamp < 2^52 then
  redis.call("UNLINK", KEYS[3])
  return 0
end
redis.call("UNLINK", KEYS[1])
if redis.call("EXISTS", KEYS[3]) == 1 then
  redis.call("RENAME", KEYS[3], KEYS[1])
  redis.call("PERSIST", KEYS[1])
end
redis.call("SET", KEYS[2], ARGV[1])
return 1
"""


class OverridesInRedis:
    """Keeps overrides for all processes that count in a store."""

    def __init__(self, store: RedisStore, health: Health) -> None:
        self._store = store
        self._health = health
        self._turn = asyncio.Lock()
        self._stamp = 0
        """Of what was read last."""
        self._whole = True
        """Whether nothing was changed while that was read."""
        self._read: dict[bytes, tuple[bytes, Override | None]] = {}
        """What was read last, by id, and what that says; None for what cannot be read."""
        self._reported: int | None = None
        """The stamp of what was told last."""
        self._looked_at = -1
        """The stamp of what was looked through for what cannot be read."""
        self._unread: list[bytes] = []
        """The ids of that."""

    async def changed(self) -> Mapping[str, Override] | None:
        """As `OverrideStore`."""
        async with self._turn:
            await self._look()
            if self._stamp == self._reported:
                return None
            self._reported = self._stamp
            overrides = [override for _, override in self._read.values() if override is not None]
            return {override.id: override for override in overrides}

    async def change(self, added: Sequence[Override], removed: Sequence[str], *audit: str) -> None:
        """As `OverrideStore`, by one script, in a server that has the newest copy."""
        keys = [self._store.key(key) for key in (_OVERRIDES, _STAMP, _AUDIT, _CHANGES)]
        rest: list[Argument] = [MAX_OVERRIDES, MOST_AUDITED, _MOST_CHANGES, _MOST_CHANGED]
        rest += [len(audit), *audit, len(removed), *removed]
        texts = {each.id.encode(): json.dumps(each.fields()).encode() for each in added}
        rest += chain.from_iterable(texts.items())
        async with self._turn:
            for _ in range(_MOST_ATTEMPTS):
                await self._look()
                command = ("EVAL", _CHANGE, len(keys), *keys, now_us(), self._stamp, *rest)
                reply = await self._store.command(_OVERRIDES, *command)
                if reply == _TOO_MANY:
                    raise too_many_overrides()
                if isinstance(reply, bytes):
                    before, stamp = map(int, reply.split())
                    if before == self._stamp and self._whole:
                        self._know(stamp, texts, removed)
                    return
                if reply != _OLD:
                    raise StoreError("Redis does not say whether the overrides were changed")
                await asyncio.sleep(_AGAIN_SECONDS)
        raise StoreError("Redis has only an old copy of the overrides: try again")

    def _know(self, stamp: int, added: Mapping[bytes, bytes], removed: Sequence[str]) -> None:
        """Takes over a change that was made to what was read last: so that is not read again."""
        for name in removed:
            self._read.pop(name.encode(), None)
        for id_, text in added.items():
            self._read[id_] = text, _override(text)
        self._stamp = stamp

    async def audited(self, most: int, after: str = "") -> Audited:
        """As `OverrideStore`. Each change stands in the server that was asked to make it."""
        return await audited(self._keepers(), self._lines, most, after)

    async def _look(self) -> None:
        """Reads the newest copy, and replaces older ones. Raises StoreError if nobody can say.

        An older copy than the one that is known counts only if there is no newer one any more.
        """
        keepers = self._keepers()
        stamps = await asyncio.gather(*(self._stamp_or_error(name) for name in keepers))
        known = {
            name: stamp
            for name, stamp in zip(keepers, stamps, strict=True)
            if isinstance(stamp, int)
        }
        if not known:
            raise next(stamp for stamp in stamps if isinstance(stamp, StoreError))
        first = max(known, key=lambda name: known[name])
        if known[first] > self._stamp:
            if not await self._read_changed(first, known[first]):
                await self._read_all(first, known[first])
        elif known[first] < self._stamp and len(known) == len(stamps):
            await self._read_all(first, known[first])
        for name, stamp in known.items():
            if stamp < self._stamp and self._whole:
                with suppress(StoreError):  # that server's health says so
                    await self._copy_to(name)
        self._tell_unread()

    def _tell_unread(self) -> None:
        """Says in health which of those that were read last are not in force, if any."""
        if self._looked_at != self._stamp:
            self._looked_at = self._stamp
            self._unread = [id_ for id_, (_, override) in self._read.items() if override is None]
        if not self._unread:
            self._health.recover(_COMPONENT)
            return
        first = printable(self._unread[0][:_MOST_SHOWN].decode("utf-8", "backslashreplace"))
        self._health.degrade(
            _COMPONENT,
            f"{len(self._unread)} of the overrides in Redis cannot be read, so they are not in "
            f"force (the log says why): update this program if a newer one has written them, or "
            f"remove them from the hash {self._hash}; the first one is {first}",
        )

    @property
    def _hash(self) -> str:
        """The key of the overrides, for people."""
        return printable(self._store.key(_OVERRIDES).decode("utf-8", "backslashreplace"))

    async def _copy_to(self, name: str) -> None:
        """Replaces a shard's copy by what was read, at once and as a whole."""
        if await self._run(name, _BEGIN, [_COPIER], _COPY_MS) != 1:
            return  # another process is at it
        copy = shared_key(_NAME, f"copy.{urandom(8).hex()}")
        pairs = [(each, text) for each, (text, _) in self._read.items()]
        for start in range(0, len(pairs), _AT_ONCE):
            some = pairs[start : start + _AT_ONCE]
            await self._ask(name, "HSET", copy, *chain.from_iterable(some))
            await self._ask(name, "PEXPIRE", copy, _COPY_MS)
        await self._run(name, _REPLACE, [_OVERRIDES, _STAMP, copy, _COPIER], self._stamp)

    def _keepers(self) -> list[str]:
        return self._store.keepers(_OVERRIDES)

    async def _stamp_or_error(self, name: str) -> int | StoreError:
        try:
            return await self._stamp_at(name)
        except StoreError as error:
            return error

    async def _stamp_at(self, name: str) -> int:
        """The stamp of a copy, 0 if there is none.

        GET would say nothing where there is none, as a lost connection does.
        """
        reply = await self._ask(name, "GETRANGE", _STAMP, 0, -1)
        fits = isinstance(reply, bytes) and reply.isdigit() and len(reply) <= _MOST_DIGITS
        stamp = int(reply) if fits and isinstance(reply, bytes) else 0
        return stamp if stamp < _STAMP_ENDS else 0

    async def _lines(self, name: str, skip: int, most: int) -> list[bytes]:
        reply = await self._ask(name, "LRANGE", _AUDIT, skip, skip + most - 1)
        lines = reply if isinstance(reply, list) else []
        return [line for line in lines if isinstance(line, bytes)]

    async def _ask(self, name: str, command: str, key: bytes, *arguments: Argument) -> Reply:
        return await self._store.command(key, command, self._store.key(key), *arguments, at=name)

    async def _run(self, name: str, script: str, keys: Sequence[bytes], *rest: Argument) -> Reply:
        named = [self._store.key(key) for key in keys]
        return await self._store.command(
            _OVERRIDES, "EVAL", script, len(named), *named, *rest, at=name
        )

    async def _read_changed(self, name: str, stamp: int) -> bool:
        """Reads what has changed in a copy, which has this stamp; false if nobody can say what."""
        lines = await self._ask(name, "LRANGE", _CHANGES, 0, -1)
        changes = _since(lines if isinstance(lines, list) else [], self._stamp, stamp)
        if changes is None:
            return False
        newest, ids = changes
        read = dict(self._read)
        for start in range(0, len(ids), _AT_ONCE):
            some = ids[start : start + _AT_ONCE]
            texts = await self._ask(name, "HMGET", _OVERRIDES, *some)
            if not isinstance(texts, list) or len(texts) != len(some):
                raise StoreError("Redis does not tell the overrides")
            for number, (id_, text) in enumerate(zip(some, texts, strict=True)):
                if number % _PARSED_AT_ONCE == 0:
                    await asyncio.sleep(0)
                if isinstance(text, bytes):
                    read[id_] = text, _override(text)
                else:
                    read.pop(id_, None)
        if len(read) > MAX_OVERRIDES:
            raise self._too_many()
        self._whole = await self._stamp_at(name) == newest
        self._stamp, self._read = newest, read
        return True

    def _too_many(self) -> StoreError:
        """Says so in health, because the server itself is well."""
        why = f"Redis has more overrides than {MAX_OVERRIDES}"
        self._health.degrade(
            _COMPONENT,
            f"{why}, so none of them is read, and what was known stays in force: remove some from "
            f"the hash {self._hash}",
        )
        return StoreError(why)

    async def _read_all(self, name: str, stamp: int) -> None:
        """Reads a copy, whose stamp is known; reads it again if it changes meanwhile."""
        for _ in range(_MOST_READS):
            copy = await self._copy_at(name)
            before, stamp = stamp, await self._stamp_at(name)
            if stamp == before:
                break
        lost = self._read.keys() - copy.keys() if before < self._stamp else set()
        if lost:
            _log_lost([self._read[each][1] for each in sorted(lost)])
        self._stamp, self._whole, self._read = before, stamp == before, copy

    async def _copy_at(self, name: str) -> dict[bytes, tuple[bytes, Override | None]]:
        """All of a copy, a few at a time; those that are as they were are not parsed again.

        Raises StoreError if it has no end, or more than we would ever put there.
        """
        cursor, copy = b"0", dict[bytes, tuple[bytes, Override | None]]()
        for _ in range(_MOST_LOOKS):
            reply = await self._ask(name, "HSCAN", _OVERRIDES, cursor, "COUNT", _AT_ONCE)
            cursor, pairs = _part(reply)
            for number, (id_, text) in enumerate(pairs):
                if number % _PARSED_AT_ONCE == 0:
                    await asyncio.sleep(0)
                known = self._read.get(id_)
                copy[id_] = known if known and known[0] == text else (text, _override(text))
            if len(copy) > MAX_OVERRIDES:
                raise self._too_many()
            if cursor == b"0":
                return copy
        raise StoreError("Redis does not come to an end with the overrides")


def _log_lost(lost: Sequence[Override | None]) -> None:
    """Logs them as `overrides import` reads them. Written back, they might revive removed ones."""
    log.warning(
        "Redis has lost the overrides that were in force (%d): make them again; the next lines "
        "have them, and `ratelimit overrides import` reads each from its { on",
        len(lost),
    )
    readable = [each.fields() for each in lost if each is not None][:_MOST_LOGGED]
    for start in range(0, len(readable), _LOGGED_AT_ONCE):
        some = readable[start : start + _LOGGED_AT_ONCE]
        log.warning("lost overrides: %s", json.dumps({"overrides": some}))
    if len(lost) > len(readable):
        log.warning("%d more lost overrides are not told", len(lost) - len(readable))


def _part(reply: Reply) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """The next cursor, and ids with their texts. Raises StoreError if this is something else."""
    if isinstance(reply, list) and len(reply) == _CURSOR_AND_PAIRS:
        cursor, texts = reply
        if isinstance(cursor, bytes) and isinstance(texts, list) and len(texts) % 2 == 0:
            pairs = list(zip(texts[::2], texts[1::2], strict=True))
            if all(isinstance(each, bytes) for each in texts):
                return cursor, pairs
    raise StoreError("Redis does not tell the overrides")


def _since(lines: Sequence[Reply], known: int, stamp: int) -> tuple[int, list[bytes]] | None:
    """The newest stamp in a list of changes, and the ids that have changed since a known one.

    None if the list does not say it: each change must follow on the one before, up to `stamp`.
    """
    newest, at, ids = 0, 0, dict[bytes, None]()
    for line in lines:
        try:
            before, after, *names = json.loads(line if isinstance(line, bytes) else b"")
            first, last = int(before), int(after)
            changed = [name.encode() for name in names]
        except (ValueError, TypeError, AttributeError, RecursionError):
            return None
        if not newest:
            newest = at = last
        if last != at or newest < stamp:
            return None
        ids.update(dict.fromkeys(changed))
        if first == known:
            return newest, list(ids)
        at = first
    return None


def _override(text: bytes) -> Override | None:
    try:
        fields = json.loads(text) if len(text) <= _MOST_TEXT_BYTES else None
        if isinstance(fields, dict):
            return read_override(fields)
        why = "it is no JSON object, or a very long one"
    except (ValueError, RecursionError) as error:
        why = f"it is no JSON: {json_slip(error)}"
    except OverrideError as error:
        why = str(error)
    why = printable(why[:_MOST_SHOWN])
    log.warning("an override in Redis is not in force, because it cannot be read: %s", why)
    return None
