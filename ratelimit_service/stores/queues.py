"""Queues of denied requests: the interface. Redis' side of it is `redis.queues`.

What must not live here: which requests go into a queue, and what is said of them there (`service`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

__all__ = ["Queue", "QueueLook", "Queues"]


class Queue(NamedTuple):
    """The queue of one rule: its domain, and its path there."""

    domain: str
    rule: str


class QueueLook(NamedTuple):
    """How a queue stands. Ages are in microseconds, None where it is empty.

    `dropped` counts what processes have lost for it since it is there. It is `there` from its first
    item on, also when it is empty again.
    """

    key: str
    shard: str
    length: int
    oldest_us: int | None
    newest_us: int | None
    dropped: int
    there: bool = True


class Queues(Protocol):
    """Where queues are kept."""

    async def put(self, queue: Queue, items: Sequence[Mapping[str, str]], lost: int) -> int:
        """Adds items in their order, all of them atomically; returns how many old ones made room.

        `lost` are items that were dropped before: they are counted there. Raises StoreError: then
        nobody knows whether the items were added.
        """

    async def look(self, queue: Queue) -> QueueLook:
        """How a queue stands now. Raises StoreError."""

    async def listed(self) -> Sequence[Queue]:
        """All queues that are there, also those of rules that are gone. Raises StoreError.

        A queue that somebody has removed is listed until it is forgotten.
        """

    async def forget(self, queue: Queue) -> None:
        """Lists a queue no longer, unless it is there. Raises StoreError."""
