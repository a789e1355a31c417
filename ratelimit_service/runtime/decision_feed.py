"""From decisions to lines of the decision log, in the process that decides.

It hears of decisions after they were answered, and makes lines of them a few at a time between
batches of requests. What must not live here: what a line says (`decision_lines`), and where lines
go (`decision_log`).
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Final

from ratelimit_service.clock import now_us
from ratelimit_service.model import Hit
from ratelimit_service.observer import Stats
from ratelimit_service.runtime.decision_lines import DecisionLines
from ratelimit_service.service import DecidedBatch, DecisionRecord, Service
from ratelimit_service.service.decision_key import hash_of, read_key
from ratelimit_service.settings import Settings, split_pairs

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
        self._stats = stats
        self._send = send
        self._lines = DecisionLines(
            self._denied,
            self._allowed,
            hash_of(read_key(settings.decision_log_key_file)),
            settings.store.partition(":")[0],
            shard_of,
        )
        self._waiting: deque[tuple[int, DecidedBatch, int]] = deque()
        """Decisions: when, with which others, and their places among them."""
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
        service.telling.add(feed)
        return feed

    def missed(self, calls: int) -> None:
        """Counts calls that were refused with no time to tell of them."""
        self._stats.decision_log["dropped_overload"] += round(calls * self._denied)

    def hear(self, decided: DecidedBatch) -> None:
        """Takes those decisions that are to be written down."""
        if decided.records is not None:
            decided = DecidedBatch.of(self._some_of(decided.records))
            places: Sequence[int] = range(len(decided.bodies))
        else:
            places = self._chosen(decided)
        if not places:
            return
        at_us, waiting, bodies = now_us(), self._waiting, decided.bodies
        size = sum(map(len, bodies))
        if len(waiting) + len(places) <= _MOST_WAITING and self._size + size <= _MOST_BYTES_WAITING:
            if len(places) < len(bodies):
                size = sum([len(bodies[place]) for place in places])
            waiting.extend(zip(repeat(at_us), repeat(decided), places))
            self._size += size
        else:
            self._fill_up(at_us, decided, places)
        if not self._due and waiting:
            self._due = True
            asyncio.get_running_loop().call_later(_WAIT_SECONDS, self._make_some)

    def _fill_up(self, at_us: int, decided: DecidedBatch, places: Sequence[int]) -> None:
        """Takes as many as there is room for, and counts the others."""
        for number, place in enumerate(places):
            if len(self._waiting) >= _MOST_WAITING or self._size >= _MOST_BYTES_WAITING:
                self._stats.decision_log["dropped_busy"] += len(places) - number
                return
            self._waiting.append((at_us, decided, place))
            self._size += len(decided.bodies[place])

    def _chosen(self, decided: DecidedBatch) -> Sequence[int]:
        """The places of the decisions that are written down."""
        if self._denied == self._allowed == 1:
            return range(len(decided.bodies))
        # Most are allowed, and of these hardly any is written down.
        return [
            place
            for place in range(len(decided.bodies))
            if self._wants(self._denied if decided.denied(place) else self._allowed)
        ]

    def _some_of(self, records: Sequence[DecisionRecord]) -> list[DecisionRecord]:
        """The records that are written down, each for as many decisions as are."""
        found = []
        for record in records:
            share, times = self._denied if record.denied else self._allowed, record.times
            wanted = times if share == 1 else sum([self._wants(share) for _ in range(times)])
            if wanted:
                found.append(record if wanted == times else record._replace(times=wanted))
        return found

    def _wants(self, share: float) -> bool:
        return share == 1 or (share > 0 and random.random() < share)  # noqa: S311 -- no secret

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
        some: list[tuple[int, DecidedBatch, int]] = []
        waiting, size = self._waiting, 0
        while waiting and len(some) < _AT_ONCE and size < _BYTES_AT_ONCE:
            each = waiting.popleft()
            some.append(each)
            size += len(each[1].bodies[each[2]])
        self._size -= size
        data = self._lines.of(some).encode("utf-8", "replace")
        if not self._send(data, len(some)):
            self._stats.decision_log["dropped_unsent"] += len(some)
