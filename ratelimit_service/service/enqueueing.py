"""Denied requests on their way into the queues of their rules (`on_limit: enqueue`).

They are taken after they were answered, and wait here, bounded in number and bytes, until a task
hands them on in batches. No answer ever waits for that. What does not fit is counted. Each is
handed on at most once: what Redis did not confirm is not sent again. What must not live here: which
requests are taken (`limiter.queue_of`), and where queues are (`stores`).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from contextlib import suppress
from typing import Final

from ratelimit_service import wire
from ratelimit_service.errors import StoreError
from ratelimit_service.observability.bugs import Bugs
from ratelimit_service.observability.stats import Stats
from ratelimit_service.rules.tree import Rule
from ratelimit_service.stores.queues import Queue, Queues
from ratelimit_service.wire.request_json import request_to_json

__all__ = ["MOST_BYTES", "Enqueueing", "nowhere_to_queue"]

log = logging.getLogger(__name__)

MOST_BYTES: Final = 4_096
"""Of a request that is queued: it is somebody else's data, and stays in Redis until it is taken."""

_MOST_WAITING: Final = 10_000
_MOST_BYTES_WAITING: Final = 1 << 23
"""Requests that wait here, and their bytes."""

_WAIT_SECONDS: Final = 0.02
"""For so long they wait before each batch, so that many go out at once, and a flood of denied
requests leaves the process its time: 5,000 a second take a sixth of it."""

_FINISH_SECONDS: Final = 1.5
"""How long the end of a process waits for them."""

_AT_ONCE: Final = 100
_BYTES_AT_ONCE: Final = 1 << 15
"""Requests that are under way at a time, and their bytes: counters share the connection."""

_MADE_BYTES_AT_ONCE: Final = 1_024
"""Of so many bytes items are made in one go, or of one request: in a millisecond or so."""

Item = dict[str, str]
"""The fields of a stream's entry."""


class Enqueueing:
    """Takes denied requests, and hands them to queues."""

    def __init__(self, queues: Queues | None, stats: Stats) -> None:
        """Without queues, as in memory, requests are only counted."""
        self._queues = queues
        self._stats = stats
        self._bugs = Bugs()
        self._waiting: deque[tuple[Rule, bytes]] = deque()
        self._size = 0
        self._lost: dict[Queue, int] = {}
        """What was dropped for queues, and they have not been told yet."""
        self._sending: asyncio.Task[None] | None = None
        self._finishing = asyncio.Event()
        """No batch waits any more, since the process ends."""
        self._told_of_none = False

    def take(self, rule: Rule, body: bytes) -> None:
        """Takes a request, as it came, that was denied by a rule. It never waits."""
        if self._queues is None:
            self._drop(rule, "dropped_no_redis", 1)
            if not self._told_of_none:
                self._told_of_none = True
                log.warning("%s", nowhere_to_queue([rule]))
            return
        if len(body) > MOST_BYTES:
            self._drop(rule, "dropped_large", 1)
            return
        if len(self._waiting) < _MOST_WAITING and self._size + len(body) <= _MOST_BYTES_WAITING:
            self._waiting.append((rule, body))
            self._size += len(body)
        else:
            self._drop(rule, "dropped_busy", 1)
        if self._sending is None:
            self._sending = asyncio.get_running_loop().create_task(self._send())

    async def finish(self) -> None:
        """Hands on all that waits, in bounded time; what its queue does not take is dropped."""
        if self._sending is None:
            return
        self._finishing.set()
        await asyncio.wait([self._sending], timeout=_FINISH_SECONDS)
        self._finishing.clear()
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.wait([self._sending])
        while self._waiting:
            self._drop(self._waiting.popleft()[0], "dropped_error", 1)
        self._size = 0

    def _drop(self, rule: Rule, outcome: str, count: int) -> None:
        self._stats.queued[outcome] += count
        if self._queues is not None:
            queue = Queue(rule.domain, rule.path)
            if queue in self._lost or len(self._lost) < _MOST_WAITING:
                self._lost[queue] = self._lost.get(queue, 0) + count

    async def _send(self) -> None:
        try:
            while self._waiting:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._finishing.wait(), _WAIT_SECONDS)
                await self._send_some()
        finally:
            self._sending = None

    async def _send_some(self) -> None:
        """Hands on the oldest, each queue's together."""
        queues: dict[Queue, tuple[Rule, list[Item]]] = {}
        try:
            await self._make_some(queues)
        except asyncio.CancelledError:
            for rule, items in queues.values():
                self._drop(rule, "dropped_error", len(items))
            raise
        await asyncio.gather(
            *[self._put(queue, rule, items) for queue, (rule, items) in queues.items()]
        )

    async def _make_some(self, queues: dict[Queue, tuple[Rule, list[Item]]]) -> None:
        """Makes items of the oldest requests, a few at a time."""
        count = size = made = 0
        while self._waiting and count < _AT_ONCE and size < _BYTES_AT_ONCE:
            rule, body = self._waiting.popleft()
            self._size -= len(body)
            count += 1
            size += len(body)
            try:
                item = _item(rule, body)
            except Exception as error:
                self._stats.queued["dropped_error"] += 1
                self._bugs.note("a request could not be queued", error)
                continue
            queues.setdefault(Queue(rule.domain, rule.path), (rule, []))[1].append(item)
            made += len(body)
            if made >= _MADE_BYTES_AT_ONCE:
                made = 0
                await asyncio.sleep(0)

    async def _put(self, queue: Queue, rule: Rule, items: list[Item]) -> None:
        assert self._queues is not None  # noqa: S101 -- nothing waits without them
        lost = self._lost.pop(queue, 0)
        made_room = -1
        try:
            made_room = await self._queues.put(queue, items, lost)
        except StoreError:
            pass  # health says that the store is away; what was dropped is counted
        except Exception as error:
            self._bugs.note("requests could not be queued", error)
        finally:  # also where nobody waits any more
            if made_room < 0:
                self._drop(rule, "dropped_error", len(items))
                self._lost[queue] = self._lost.get(queue, 0) + lost
        if made_room < 0:
            return
        self._stats.queued["written"] += len(items)
        self._stats.queued["dropped_oldest"] += made_room


def nowhere_to_queue(rules: list[Rule]) -> str:
    """What is said of rules with a queue where counters are not in Redis."""
    named = ", ".join(f"{rule.path} of {rule.domain}" for rule in rules)
    return (
        f"nothing is queued (on_limit: enqueue in {named}): queues are in Redis, and counters are "
        "not; give a Redis as --store, or remove on_limit"
    )


def _item(rule: Rule, body: bytes) -> Item:
    """What is said of a request in its queue. Refunds are not: they were given back already."""
    request = wire.decode_request(body)
    kept = [each for each in request.descriptors if not each.is_negative_hits]
    item = {
        "request": request_to_json(request._replace(descriptors=tuple(kept))),
        "rule": rule.path,
    }
    if rule.metadata:
        item["metadata"] = json.dumps(rule.metadata)
    return item
