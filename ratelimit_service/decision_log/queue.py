"""The queue of decisions for the log, in the process that decides.

It takes decisions after they were answered, and sends them on in packets, between batches of
requests. It is bounded: what does not fit is dropped and counted. What must not live here: what a
packet has (`packets`), and who makes lines of it (`writer`).
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from ratelimit_service.decision_log.key import hash_of, read_key
from ratelimit_service.decision_log.packets import Group, Packer, packed
from ratelimit_service.eventloop.clock import elapsed_us, now_us
from ratelimit_service.model import Hit
from ratelimit_service.observability.stats import Stats
from ratelimit_service.service import DecidedBatch
from ratelimit_service.settings import Settings, split_pairs

__all__ = ["DecisionQueue"]

_WAIT_SECONDS: Final = 0.02
"""Decisions wait so long, so that many go out at once."""

_AT_ONCE: Final = 100
_BYTES_AT_ONCE: Final = 1 << 14
"""Decisions of a packet, and bytes of their requests; it may be up to twice as many."""

_TURN_US: Final = 1_000
"""After so long no other packet is made until requests have had their turn."""

_MOST_WAITING: Final = 20_000
_MOST_BYTES_WAITING: Final = 1 << 24
"""Decisions that wait, and bytes of their requests."""


def _sample(indexes: Sequence[int], share: float) -> Sequence[int]:
    """Such a part of them, by chance."""
    if share == 1:
        return indexes
    return [index for index in indexes if random.random() < share]  # noqa: S311 -- no secret


class DecisionQueue:
    """Listens to a service, and sends packets on."""

    def __init__(
        self,
        settings: Settings,
        stats: Stats,
        send: Callable[[bytes], bool],
        shard_of: Callable[[Hit], str] = lambda _: "",
    ) -> None:
        """`send` takes a packet, or returns False if it is dropped; it must not wait.

        `shard_of` says which server has a hit's counter. Raises SettingsError for a bad key.
        """
        sample = split_pairs(settings.decision_log_sample)
        self._denied = float(sample.get("denied", 1))
        self._allowed = float(sample.get("allowed", 1))
        self._stats = stats
        self._send = send
        hashed = hash_of(read_key(settings.decision_log_key_file))
        store = settings.store.partition(":")[0]
        self._packer = Packer(self._denied, self._allowed, hashed, store, shard_of)
        self._waiting: deque[tuple[int, DecidedBatch, Sequence[int], int]] = deque()
        """When decisions were made, their batch, their indexes in it, and their requests' bytes."""
        self._count = self._size = 0
        """Decisions that wait, and bytes of their requests."""
        self._timer: asyncio.TimerHandle | None = None
        """Sends them in a while, if there are some."""

    def missed(self, calls: int) -> None:
        """Counts calls that were refused with no time to tell of them."""
        self._stats.decision_log["dropped_overload"] += round(calls * self._denied)

    def hear(self, decided: DecidedBatch) -> None:
        """Takes those decisions that are to be written down."""
        indexes = self._sampled(decided)
        if indexes:
            self._put(now_us(), decided, indexes)
            self._schedule()

    def flush(self) -> None:
        """Sends all that waits."""
        while self._waiting:
            self._send_some()

    def _sampled(self, decided: DecidedBatch) -> Sequence[int]:
        """The indexes of the decisions that are written down."""
        everything = range(len(decided.bodies))
        if self._denied == self._allowed == 1:
            return everything
        denied = decided.denied_indices()
        sampled = _sample(denied, self._denied)
        if self._allowed and len(denied) < len(everything):
            allowed = sorted(set(everything).difference(denied))
            sampled = sorted([*sampled, *_sample(allowed, self._allowed)])
        return sampled

    def _put(self, at_us: int, decided: DecidedBatch, indexes: Sequence[int]) -> None:
        """Has decisions wait, in parts that are small enough to be packed at once."""
        bodies, count = decided.bodies, len(indexes)
        size = sum([len(bodies[index]) for index in indexes])
        if count > 1 and (count > _AT_ONCE or size > _BYTES_AT_ONCE):
            self._put(at_us, decided, indexes[: count // 2])
            self._put(at_us, decided, indexes[count // 2 :])
        elif self._count + count > _MOST_WAITING or self._size + size > _MOST_BYTES_WAITING:
            self._stats.decision_log["dropped_busy"] += count
        else:
            self._waiting.append((at_us, decided, indexes, size))
            self._count += count
            self._size += size

    def _schedule(self) -> None:
        """Has what waits sent: in the next turn of the loop if it is much, else in a while."""
        much = self._count >= _AT_ONCE
        if self._timer is not None and much:
            self._timer.cancel()
        elif self._timer is not None or not self._waiting:
            return
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(0 if much else _WAIT_SECONDS, self._turn)

    def _turn(self) -> None:
        """Sends what waits, a little in each turn of the loop."""
        self._timer = None
        until_us = elapsed_us() + _TURN_US
        try:
            while self._waiting and elapsed_us() < until_us:
                self._send_some()
        finally:  # whatever becomes of these, the next ones are sent
            self._schedule()

    def _send_some(self) -> None:
        """Sends the oldest decisions."""
        groups: list[Group] = []
        count = size = 0
        while self._waiting and count < _AT_ONCE and size < _BYTES_AT_ONCE:
            at_us, decided, indexes, part_size = self._waiting.popleft()
            self._count -= len(indexes)
            self._size -= part_size
            count += len(indexes)
            size += part_size
            groups += self._packer.groups(at_us, decided, indexes)
        if not self._send(packed(count, groups)):
            self._stats.decision_log["dropped_unsent"] += count
