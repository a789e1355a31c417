"""The store over Redis: which shard gets which hits, and how long they may take.

Redis' own clock is the clock of record, so processes with skewed clocks agree.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from ratelimit_service.algorithms import spec_of
from ratelimit_service.errors import StoreError
from ratelimit_service.eventloop.clock import Clock, elapsed_us
from ratelimit_service.eventloop.scheduler import TURN_US
from ratelimit_service.model import SECOND_US, Hit, Limit, Outcome, Unit
from ratelimit_service.observability.bugs import Bugs
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.stores import (
    NEVER,
    Done,
    HoldingNow,
    Look,
    Outcomes,
    Settled,
    ShardState,
    Wanted,
    always,
)
from ratelimit_service.stores.redis.address import Cluster, parse_store
from ratelimit_service.stores.redis.advance import AdvanceAsked
from ratelimit_service.stores.redis.batch import Background, Urgency
from ratelimit_service.stores.redis.charge import Charge
from ratelimit_service.stores.redis.cluster import ClusterOfNodes
from ratelimit_service.stores.redis.config import Layout, ShardConfig
from ratelimit_service.stores.redis.connection import Argument, Reply
from ratelimit_service.stores.redis.contexts import Contexts
from ratelimit_service.stores.redis.divided import DividedCharge
from ratelimit_service.stores.redis.give_back import GivenBack
from ratelimit_service.stores.redis.script import HELD_KEYS
from ratelimit_service.stores.redis.shard import Home, Shard
from ratelimit_service.stores.redis.topology import RingOfShards, Topology

__all__ = ["RedisStore"]

_LONGEST_US: Final = 10_000_000
"""The most that a caller may wait. Who names no deadline waits for a server that is well, and that
answers or is late long before. This is for a fault of ours."""

_LOOK_US: Final = 1_000
"""The least time until it is looked again whether the server of a waiting charge is late."""

_ASK_US: Final = 1_000_000
_ASK_AGAIN_SECONDS: Final = 0.1
_MOST_ATTEMPTS: Final = 15
_ELSEWHERE: Final = ("MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN")
"""How a node begins to say that another one is to be asked, or later."""

_ANY_SPEC: Final = spec_of(Limit(1, Unit.SECOND))
"""The spec of hits that are never counted: they only say where a key lies."""


_MOST_LOOKS = 10
_LOOK_AGAIN_SECONDS = 0.05
"""A look at a counter asks its server so often at most, with this pause in between."""

_PAGE: Final = 1_000
_MOST_PAGES: Final = 100
"""So many ids are read at once, and so often: of a busy counter most of them are settled ones."""


def _topology(url: str, config: ShardConfig) -> Topology:
    """The servers of a store URL, or of the file that `file:` names."""
    if url.startswith("file:"):
        # Imported late: a process that needs no YAML should not have it in memory.
        from ratelimit_service.stores.redis.shards_file import read_shards  # noqa: PLC0415

        path = Path(url.removeprefix("file:").removeprefix("//"))
        return RingOfShards(read_shards(path, parse_store), config)
    servers = parse_store(url)
    if isinstance(servers, Cluster):
        return ClusterOfNodes(servers, config)
    return RingOfShards(servers, config)


_PLAIN: Final = Layout()


class RedisStore:
    """Counters in Redis servers (6.2 or later), each counter in one of them.

    A hit has no outcome (None) when its server is away, refuses, or is slower than its URL or
    `timeout_us` says. A request whose counters lie in several shards counts in all or in none.
    """

    def __init__(
        self,
        url: str,
        timeout_us: int,
        stats: Stats,
        health: Health,
        clock: Clock | None = None,
        layout: Layout = _PLAIN,
    ) -> None:
        """Reads the URLs; raises SettingsError if they cannot be used.

        With a `clock` its time counts instead of Redis' own.
        """
        self._key_prefix = layout.key_prefix.encode()
        self._stats = stats
        self._bugs = Bugs()
        self._given_back: GivenBack = _ignore
        self._loop = asyncio.get_running_loop()
        self._contexts = Contexts("store tls", health, stats.tls_reloads)
        config = ShardConfig(
            timeout_us, stats, health, self._contexts, clock=clock, key_prefix=layout.key_prefix
        )
        self._first = _topology(url, config)
        self.topologies = [self._first]
        self._find, self._find_all = self._first.find, self._first.find_all
        self._only: Shard | None = None
        if layout.second_url:
            self._second = _topology(layout.second_url, replace(config, component="second store"))
            self.topologies.append(self._second)
            self._find, self._find_all = self._find_by_window, self._find_all_by_window
        elif isinstance(self._first, RingOfShards) and len(self._first.shards) == 1:
            (self._only,) = self._first.shards
        self._timeout_us = min([shard.server.timeout_us for shard in self.shards])
        """How long the least patient server may take."""
        self._waiting: list[tuple[int, int, Charge | DividedCharge]] = []
        """A heap of deadlines; the numbers make them differ."""
        self._number = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_us = 0
        """When the timer rings, if there is one: at the first deadline, or before it."""

    @property
    def shards(self) -> Sequence[Shard]:
        """All that are known now."""
        return [shard for topology in self.topologies for shard in topology.shards]

    def shard_states(self) -> list[ShardState]:
        """How each server stands."""
        states = []
        for topology in self.topologies:
            kind = topology.kind if topology is self._first else f"{topology.kind}, second store"
            states += [shard.state(kind) for shard in topology.shards]
        return states

    def shard_of(self, hit: Hit) -> str:
        """The name of the shard that a hit's counter lies in now."""
        return self._find(hit)[0].name

    def shard_of_key(self, key: bytes) -> str:
        """The same of what is no counter; `command` asks it there."""
        return self._first.find(Hit(key, _ANY_SPEC))[0].name

    def tell_of_give_backs(self, given_back: GivenBack) -> None:
        """Calls `given_back` with the keys of counters whenever hits on them were given back."""
        self._given_back = given_back

    def key(self, key: bytes) -> bytes:
        """A key as it stands in the server."""
        return self._key_prefix + key

    def keepers(self, key: bytes) -> list[str]:
        """The servers that should each have a copy of what all processes share, by their names.

        The one in which this key lies is the first. In a ring another shard has the key if shards
        are added or removed, so all keep copies. In a cluster keys move with their slot.
        """
        home = self._first.find(Hit(key, _ANY_SPEC))[0].name
        if not isinstance(self._first, RingOfShards):
            return [""]
        return [home, *(shard.name for shard in self._first.shards if shard.name != home)]

    async def command(self, key: bytes, *command: Argument, at: str = "") -> Reply:
        """Asks the server in which this key lies; raises StoreError if it does not answer.

        With `at` it asks the shard of that name. This is for what operators do, not for
        decisions: it waits for a second or two.
        """
        hit = Hit(key, _ANY_SPEC)
        if not at:
            return await self._command(self._first.find, hit, command)
        named = next(shard for shard in self._first.shards if shard.name == at)
        return await self._command(lambda _: (named, 0), hit, command)

    async def forget(self, hits: Sequence[Hit]) -> None:
        """Lets these counters start again from nothing, each atomically.

        Raises StoreError at the first one that cannot be reached; those before it have been reset.
        """
        for hit in hits:
            # What is held, or was settled, may be of a time when the limit was another one.
            keys = [hit.key, *(hit.key + behind for behind in HELD_KEYS)]
            await self._command(self._find, hit, ("DEL", *map(self.key, keys)))
        self._given_back([hit.key for hit in hits])

    async def _command(
        self, find: Callable[[Hit], Home], hit: Hit, command: Sequence[Argument]
    ) -> Reply:
        why = ""
        target: Shard | None = None
        for _ in range(_MOST_ATTEMPTS):
            shard = target or find(hit)[0]
            if target is not None:
                target.call("ASKING")
            reply_to_come = shard.call(*command)
            if reply_to_come is None and target is None:
                raise StoreError(f"Redis ({shard.name}) is away: try again when it is back")
            if reply_to_come is not None:
                reply = await _reply(shard, reply_to_come)
                if not isinstance(reply, Exception):
                    return reply
                why = str(reply)
                if why.partition(" ")[0] not in _ELSEWHERE:
                    break
                if target is None:
                    target = self._follow(shard, why)
                    if target is not None:
                        continue
            target = None
            await asyncio.sleep(_ASK_AGAIN_SECONDS)
        raise StoreError(f"Redis refused {command[0]!s}: {why}")

    def _follow(self, shard: Shard, error: str) -> Shard | None:
        """Which server takes a command that one has sent elsewhere; None if that will turn out."""
        for topology in self.topologies:
            if shard in topology.shards:
                return topology.follow(shard, error)
        return None

    @property
    def waits(self) -> bool:
        """For Redis."""
        return True

    async def start(self) -> None:
        """Tries every server once, in bounded time, and keeps trying in the background."""
        await asyncio.gather(*(topology.start() for topology in self.topologies))

    def wait_us(self, priority: int) -> int:
        """How long a new request of this priority would wait where that is longest."""
        return max([shard.wait_us(priority) for shard in self.shards if shard.available], default=0)

    def reply_us(self) -> int:
        """How long a server takes to reply lately, with the way, where that is longest."""
        return max([shard.reply_us() for shard in self.shards if shard.available], default=0)

    async def close(self) -> None:
        """Disconnects for good."""
        await asyncio.gather(*(topology.close() for topology in self.topologies))
        self._contexts.close()
        if self._timer is not None:
            self._timer.cancel()

    def charge(
        self,
        requests: Sequence[Sequence[Hit]],
        done: Done,
        wanted: Wanted = always,
        deadline_us: int = NEVER,
        priority: int = 0,
    ) -> None:
        """Charges each request in the shards of its counters; in all of them or in none.

        Each shard's part is atomic. Between them others can see a charge that is then given
        back, and be denied by it.
        """
        if not requests:
            done([])
            return
        now = elapsed_us()
        # There is one in any case: NEVER is for what is held while a server is away.
        deadline_us = min(deadline_us, now + _LONGEST_US)
        look_us = min(deadline_us, now + self._timeout_us)
        urgency = Urgency(deadline_us, now, priority)
        only, is_late = self._only, deadline_us <= now
        charge: Charge | DividedCharge
        # If it is late already the caller is to be answered at once. No server is to blame.
        if only is not None and not only.by_slot:
            charge = Charge(only, requests, done, wanted, urgency, self._given_back)
            if is_late:
                charge.failed(range(len(requests)), "overloaded")
            else:
                only.charge(charge)
        else:
            charge = DividedCharge(requests, done, wanted, urgency, self._stats, self._given_back)
            if is_late:
                charge.give_up(self._find_all, "overloaded")
            else:
                charge.start(self._find_all)
        if charge.finished:
            return
        waiting = self._waiting
        while waiting and waiting[0][2].finished:
            heapq.heappop(waiting)
        self._number += 1
        heapq.heappush(waiting, (look_us, self._number, charge))
        if self._timer is None or look_us < self._timer_due_us:
            self._wait_until(look_us, now)

    def advance(
        self, hit: Hit, heard: Callable[[Outcome | None, int], None], priority: int
    ) -> None:
        """Asks for an advance, behind what was charged before it in this turn.

        `heard` gets the outcome and the server's time; None if there is no answer.
        """
        self._find(hit)[0].charge(AdvanceAsked(hit, heard, priority))

    def hand_back(self, hit: Hit, told: Callable[[Outcomes | None], None]) -> None:
        """Gives hits back as soon as their server is there, and at most once."""
        self._find(hit)[0].charge(Background([[hit]], partial(self._handed_back, hit, told)))

    def _handed_back(
        self, hit: Hit, told: Callable[[Outcomes | None], None], found: Outcomes | None
    ) -> None:
        self._given_back([hit.key])
        told(found)

    def processes(self, hit: Hit) -> int:
        """How many processes count where this counter lies; 0 while its server is away."""
        shard = self._find(hit)[0]
        return shard.processes if shard.available else 0

    async def look(self, peeks: Sequence[Hit]) -> list[Look | None]:
        """How these counters stand, by what their servers say to peeks, and keep."""
        return [await self._look(peek) for peek in peeks]

    async def _look(self, peek: Hit) -> Look | None:
        for _ in range(_MOST_LOOKS):
            result: asyncio.Future[list[Settled]] = self._loop.create_future()
            self.charge([[peek]], result.set_result)
            (settled,) = await result
            at_us = self._find(peek)[0].server.clock.now_us()
            if settled.outcomes and (outcome := settled.outcomes[0]) is not None:
                if peek.spec.holds:
                    return Look(outcome, None, at_us, holds=await self._holds(peek, at_us))
                if peek.spec.algorithm.held is None:
                    return Look(outcome, None, at_us)
                state = await self._state(peek)
                if state or outcome.remaining == peek.spec.limit:
                    return Look(outcome, state or None, at_us)
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)
        return None

    async def _state(self, hit: Hit) -> bytes:
        """What is kept of a hit's counter; empty if nothing is, or nobody can say."""
        try:  # GET would say nothing where there is none, as a lost connection does
            state = await self._command(self._find, hit, ("GETRANGE", self.key(hit.key), 0, -1))
        except StoreError:
            return b""
        return state if isinstance(state, bytes) else b""

    async def _holds(self, hit: Hit, at_us: int) -> list[HoldingNow] | None:
        """What is held beside a hit's counter; None if nobody can say, or it is too much to read.

        It is read page by page, so that other calls come in between.
        """
        ends, amounts = (self.key(hit.key + behind) for behind in HELD_KEYS)
        found: list[HoldingNow] = []
        for page in range(_MOST_PAGES):
            limit = ("LIMIT", page * _PAGE, _PAGE)
            command = ("ZRANGEBYSCORE", ends, f"({at_us}", "+inf", "WITHSCORES", *limit)
            try:
                read = await self._command(self._find, hit, command)
                if not isinstance(read, list) or not read:
                    return found
                ids = read[::2]
                hits = await self._command(self._find, hit, ("HMGET", amounts, *ids))
            except StoreError:
                return None
            if not isinstance(hits, list):
                return None
            found += [
                HoldingNow(int(float(end)), hold_id, int(held))
                for hold_id, end, held in zip(ids, read[1::2], hits, strict=True)
                if held is not None and int(held) > 0  # else it was settled
            ]
        return None

    def _find_by_window(self, hit: Hit) -> Home:
        topology = self._second if hit.spec.window_us == SECOND_US else self._first
        return topology.find(hit)

    def _find_all_by_window(self, hits: Sequence[Hit]) -> list[Home]:
        return [self._find_by_window(hit) for hit in hits]

    def _wait_until(self, deadline_us: int, now_us: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due_us = max(deadline_us, now_us)
        wait = (self._timer_due_us - now_us) / 1_000_000
        self._timer = self._loop.call_later(wait, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        held_us = elapsed_us() - self._timer_due_us
        if held_us > TURN_US:  # else the loop only had something else to do
            for shard in self.shards:
                shard.server.held_up(held_us)
        # As in `all_read`: after two more rounds everything that had come by now has been read.
        self._loop.call_soon(self._loop.call_soon, self._all_read, elapsed_us())

    def _all_read(self, read_us: int) -> None:
        self._hand_on_then_expire(list(self.shards), read_us)

    def _hand_on_then_expire(self, shards: list[Shard], read_us: int) -> None:
        """Has all that was read from these shards handed on; then no reply is waited for longer."""
        try:
            while shards:
                then = partial(self._hand_on_then_expire, shards, read_us)
                if shards.pop().server.when_handed_on(then):
                    return
        except Exception as error:
            self._bugs.note("replies that had come were not handed on", error)
        self._expire(read_us)

    def _expire(self, read_us: int) -> None:
        """Ends the charges whose time is over. All that had come by `read_us` has been read.

        Who waits longer than a server may take is looked at again, unless the server is late. Then
        all who have waited for so long hear it at once.
        """
        waiting, now, is_late = self._waiting, elapsed_us(), False
        while waiting and (waiting[0][2].finished or waiting[0][0] <= now):
            _, number, charge = heapq.heappop(waiting)
            if charge.finished:
                continue
            left_us = 0 if charge.urgency.deadline_us <= now else charge.left_us(read_us)
            if left_us > 0:
                heapq.heappush(waiting, (now + max(left_us, _LOOK_US), number, charge))
            else:
                is_late = is_late or now < charge.urgency.deadline_us
                self._end(charge, read_us)
        if is_late:
            for _, _, charge in list(waiting):
                if charge.left_us(read_us) <= 0:
                    self._end(charge, read_us)
        if waiting:
            self._wait_until(waiting[0][0], elapsed_us())

    def _end(self, charge: Charge | DividedCharge, read_us: int) -> None:
        """Ends a charge without an answer of its servers."""
        try:
            charge.expire(read_us)
        except Exception as error:
            self._bugs.note("hits without an answer could not be decided", error)
            charge.abandon()


async def _reply(shard: Shard, reply_to_come: asyncio.Future[Reply]) -> Reply:
    """What a server replies, which may be an error. Raises StoreError if there is no reply."""
    if not await shard.server.answers(reply_to_come, _ASK_US):
        seconds = _ASK_US / 1_000_000
        raise StoreError(f"Redis ({shard.name}) gave no answer within {seconds:g} s: try again")
    reply = reply_to_come.result()
    if reply is None:
        raise StoreError(f"Redis ({shard.name}) hung up: try again")
    return reply


def _ignore(_keys: Sequence[bytes]) -> None: ...
