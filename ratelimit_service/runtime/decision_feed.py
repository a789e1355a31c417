"""From decisions to lines of the decision log, in the process that decides.

It hears of decisions after they were answered, and makes lines of them a few at a time between
batches of requests. What must not live here: what a line says (`service.decision_line`), and where
lines go (`decision_log`).
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from ratelimit_service.clock import now_us
from ratelimit_service.model import Hit
from ratelimit_service.observer import Stats
from ratelimit_service.service import DecisionRecord, Service
from ratelimit_service.service.decision_key import hash_of, read_key
from ratelimit_service.service.decision_line import Circumstances, line_of
from ratelimit_service.settings import Settings, split_pairs
from ratelimit_service.telemetry.parents import parent_of, request_id_of

__all__ = ["DecisionFeed"]

_WAIT_SECONDS: Final = 0.1
"""Decisions wait so long at most, so that many go out at once."""

_AT_ONCE: Final = 50
_BYTES_AT_ONCE: Final = 1 << 13
"""Lines that are made in one go, and bytes of their requests: no request waits longer for these
than for one large line."""

_MOST_WAITING: Final = 20_000
_MOST_BYTES_WAITING: Final = 1 << 24
"""Decisions that wait to become lines, and bytes of their requests."""

Send = Callable[[bytes, int], bool]
"""Takes lines, and their number; False if they are dropped. It must not wait."""

ShardOf = Callable[[Hit], str]
"""Which server has a hit's counter; "" if none has."""


def _nowhere(_: Hit) -> str:
    return ""


class DecisionFeed:
    """Listens to a service, and sends lines on."""

    def __init__(
        self, settings: Settings, stats: Stats, send: Send, shard_of: ShardOf = _nowhere
    ) -> None:
        """Raises SettingsError if the key for values cannot be read."""
        sample = split_pairs(settings.decision_log_sample)
        self._denied = float(sample.get("denied", 1))
        self._allowed = float(sample.get("allowed", 1))
        self._hashed = hash_of(read_key(settings.decision_log_key_file))
        self._stats = stats
        self._send = send
        self._store = settings.store.partition(":")[0]
        self._shard_of = shard_of
        self._waiting: deque[tuple[int, DecisionRecord]] = deque()
        self._size = 0
        """Bytes of requests that wait."""
        self._due = False

    @classmethod
    def attach(
        cls,
        settings: Settings,
        service: Service,
        stats: Stats,
        send: Send,
        shard_of: ShardOf = _nowhere,
    ) -> DecisionFeed:
        """One that listens to this service from now on."""
        feed = cls(settings, stats, send, shard_of)
        service.listener = feed.hear
        service.chosen = feed.chosen
        service.missed = feed.missed
        return feed

    def chosen(self, denied: bool) -> bool:
        """Whether a decision is written down."""
        share = self._denied if denied else self._allowed
        return share == 1 or (share > 0 and random.random() < share)  # noqa: S311 -- no secret

    def missed(self, refused: int) -> None:
        """Counts calls that were refused with no time to tell of them."""
        self._stats.decision_log["dropped_overload"] += round(refused * self._denied)

    def hear(self, records: Sequence[DecisionRecord]) -> None:
        """Takes chosen decisions that were just answered."""
        at_us = now_us()
        for place, record in enumerate(records):
            if len(self._waiting) >= _MOST_WAITING or self._size >= _MOST_BYTES_WAITING:
                self._stats.decision_log["dropped_busy"] += len(records) - place
                break
            self._waiting.append((at_us, record))
            self._size += len(record.body)
        if not self._due and self._waiting:
            self._due = True
            asyncio.get_running_loop().call_later(_WAIT_SECONDS, self._make_some)

    def flush(self) -> None:
        """Sends all that waits."""
        while self._waiting:
            self._make()

    def _make_some(self) -> None:
        try:
            self._make()
        finally:  # whatever becomes of these lines, the next ones are made
            self._due = bool(self._waiting)
            if self._due:
                asyncio.get_running_loop().call_soon(self._make_some)

    def _make(self) -> None:
        """Makes lines of the oldest decisions."""
        some: list[tuple[int, DecisionRecord]] = []
        size = 0
        while self._waiting and len(some) < _AT_ONCE and size < _BYTES_AT_ONCE:
            some.append(self._waiting.popleft())
            size += len(some[-1][1].body)
        self._size -= size
        lines = [
            line_of(
                record,
                at_us,
                self._denied if record.denied else self._allowed,
                self._hashed,
                self._circumstances(record),
            )
            for at_us, record in some
        ]
        data = "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")
        if not self._send(data, len(lines)):
            self._stats.decision_log["dropped_unsent"] += len(lines)

    def _circumstances(self, record: DecisionRecord) -> Circumstances:
        peer = request_id = trace_id = shard = ""
        if record.caller is not None:
            peer, headers = record.caller.peer, record.caller.headers
            if headers:
                request_id, trace_id = request_id_of(headers), parent_of(headers).trace_id
        if record.hit is not None:
            shard = self._shard_of(record.hit)
        return Circumstances(peer, request_id, trace_id, self._store, shard)
