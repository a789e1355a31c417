"""Decisions for the decision log, in the process that decides.

It hears of decisions after they were answered, and hands them on a few at a time between batches of
requests. What must not live here: what is handed on of a decision (`packets`), and who
makes lines of it (`scribe`).
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from ratelimit_service.decision_log.key import hash_of, read_key
from ratelimit_service.decision_log.packets import DecisionPackets
from ratelimit_service.eventloop.clock import now_us
from ratelimit_service.model import Hit
from ratelimit_service.observability.stats import Stats
from ratelimit_service.service import DecidedBatch, Service
from ratelimit_service.settings import Settings, split_pairs

__all__ = ["DecisionFeed"]

_WAIT_SECONDS: Final = 0.1
"""Fewer decisions wait so long at most, so that many go out at once."""

_AT_ONCE: Final = 100
_BYTES_AT_ONCE: Final = 1 << 14
"""Decisions that are packed in one go, and bytes of their requests: that takes less than a
millisecond. So many are sent at once."""

_MOST_WAITING: Final = 20_000
_MOST_BYTES_WAITING: Final = 1 << 24
"""Decisions that wait to be packed, and bytes of their requests."""

_Chosen = tuple[int, DecidedBatch, Sequence[int], int]
"""Decisions that were chosen: when they were made, their batch, their places in it, and how many
bytes their requests have."""

Send = Callable[[bytes], bool]
"""Takes a packet; False if it is dropped. It must not wait."""

ShardOf = Callable[[Hit], str]
"""Which server has a hit's counter; "" if none has."""


def _nowhere(_: Hit) -> str:
    return ""


def _gap(share: float) -> float:
    """How many decisions to pass over, drawn so that this share is taken; infinity for none."""
    if not 0 < share < 1:
        return 0 if share else math.inf
    return math.log(1 - random.random()) // math.log1p(-share)  # noqa: S311 -- no secret


class DecisionFeed:
    """Listens to a service, and sends packets on."""

    def __init__(
        self, settings: Settings, stats: Stats, send: Send, shard_of: ShardOf = _nowhere
    ) -> None:
        """Raises SettingsError if the key for values cannot be read."""
        sample = split_pairs(settings.decision_log_sample)
        self._denied = float(sample.get("denied", 1))
        self._allowed = float(sample.get("allowed", 1))
        self._stats = stats
        self._send = send
        self._packets = DecisionPackets(
            self._denied,
            self._allowed,
            hash_of(read_key(settings.decision_log_key_file)),
            settings.store.partition(":")[0],
            shard_of,
        )
        self._passed_over = _gap(self._allowed)
        """Decisions that allow, and are not written down before the next one that is."""
        self._waiting: deque[_Chosen] = deque()
        self._count = self._size = 0
        """Decisions that wait, and bytes of their requests."""
        self._packed_size = 0
        """Bytes of the requests of decisions that are packed and not sent."""
        self._due = self._making = False
        """Whether what waits is packed after a while, and whether it is in a moment."""

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
        places = self._chosen(decided)
        if not places:
            return
        at_us, bodies = now_us(), decided.bodies
        if len(places) == len(bodies):
            size = sum(map(len, bodies))
        else:
            size = sum([len(bodies[place]) for place in places])
        if not self._waiting and len(places) <= _AT_ONCE and size <= _BYTES_AT_ONCE:
            # If they waited they would be in the processor's cache no more, and what they were
            # made of could not be used again for the next ones.
            done = self._packets.add_usual(at_us, decided, places)
            if done:
                places = places[done:]
                rest = sum([len(bodies[place]) for place in places])
                self._packed_size += size - rest
                size = rest
                if self._full():
                    self._send_packed()
        if places:
            self._keep(at_us, decided, places, size)
        self._ask_for_turn()

    def _keep(self, at_us: int, decided: DecidedBatch, places: Sequence[int], size: int) -> None:
        """Has them wait to be packed."""
        count = self._count + len(places)
        if count <= _MOST_WAITING and self._size + size <= _MOST_BYTES_WAITING:
            self._waiting.append((at_us, decided, places, size))
            self._count = count
            self._size += size
        else:
            self._fill_up(at_us, decided, places)

    def _fill_up(self, at_us: int, decided: DecidedBatch, places: Sequence[int]) -> None:
        """Takes as many as there is room for, and counts the others."""
        for number, place in enumerate(places):
            if self._count >= _MOST_WAITING or self._size >= _MOST_BYTES_WAITING:
                self._stats.decision_log["dropped_busy"] += len(places) - number
                return
            size = len(decided.bodies[place])
            self._waiting.append((at_us, decided, (place,), size))
            self._count += 1
            self._size += size

    def _chosen(self, decided: DecidedBatch) -> Sequence[int]:
        """The places of the decisions that are written down."""
        size = len(decided.bodies)
        if self._denied == self._allowed == 1:
            return range(size)
        denied = decided.denied_places()
        wanted = denied
        if self._denied != 1:
            wanted = [place for place in denied if self._wants(self._denied)]
        allowed = size - len(denied)
        if allowed <= self._passed_over:
            # Most are allowed, and few of these are written down. So they are not looked at.
            self._passed_over -= allowed
            return wanted
        others = set(range(size)).difference(denied)
        chosen = set(wanted)
        for place in sorted(others):
            if self._passed_over:
                self._passed_over -= 1
            else:
                chosen.add(place)
                self._passed_over = _gap(self._allowed)
        return sorted(chosen)

    def _wants(self, share: float) -> bool:
        return share == 1 or (share > 0 and random.random() < share)  # noqa: S311 -- no secret

    def flush(self) -> None:
        """Sends all that waits."""
        while self._waiting or self._packets.count:
            self._make()

    def _full(self) -> bool:
        """Whether no more is to be packed with what is packed."""
        return self._packets.count >= _AT_ONCE or self._packed_size >= _BYTES_AT_ONCE

    def _ask_for_turn(self) -> None:
        """Has decisions packed: soon if there are many, after a while if there are few."""
        if self._making:
            return
        if self._count >= _AT_ONCE or self._size >= _BYTES_AT_ONCE:
            self._making = True
            asyncio.get_running_loop().call_soon(self._make_some)
        elif not self._due and (self._waiting or self._packets.count):
            self._due = True
            asyncio.get_running_loop().call_later(_WAIT_SECONDS, self._make_rest)

    def _make_rest(self) -> None:
        self._due = False
        if not self._making:
            self._make_some()

    def _make_some(self) -> None:
        self._making = False
        try:
            self._make()
        finally:  # whatever becomes of these, the next ones are packed
            self._ask_for_turn()

    def _make(self) -> None:
        """Packs the oldest decisions, and sends them with those that are packed."""
        waiting, packets = self._waiting, self._packets
        while waiting and not self._full():
            at_us, decided, places, size = waiting.popleft()
            count = len(places)
            room, most = _AT_ONCE - packets.count, _BYTES_AT_ONCE - self._packed_size
            if count > room or size > most:
                whole, count, size = size, 0, 0
                for place in places:
                    count += 1
                    size += len(decided.bodies[place])
                    if count >= room or size >= most:
                        break
                if count < len(places):
                    waiting.appendleft((at_us, decided, places[count:], whole - size))
            self._count -= count
            self._size -= size
            self._packed_size += size
            packets.add(at_us, decided, places[:count])
        self._send_packed()

    def _send_packed(self) -> None:
        count = self._packets.count
        self._packed_size = 0
        if count and not self._send(self._packets.take()):
            self._stats.decision_log["dropped_unsent"] += count
