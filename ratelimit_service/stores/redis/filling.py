"""The next script calls to one server, while they are filled with requests of batches.

What must not live here: which batches come first, and what becomes of replies (`batches`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from ratelimit_service.model import Hit
from ratelimit_service.stores import PRIORITIES
from ratelimit_service.stores.redis.batch import Batch
from ratelimit_service.stores.redis.script import MAX_CALL_WEIGHT, Section, weight

__all__ = ["Filling", "ScriptCall", "Slot"]

Slot = Callable[[Sequence[Hit]], int]
"""The slot of a request in a cluster: a script call settles requests of one slot only."""

_ONLY: Final = 0
"""The slot of all requests where there are none."""


class ScriptCall(NamedTuple):
    """What one script call charges, and which requests of which batches that is."""

    sections: list[Section]
    requests: list[Sequence[Hit]]
    indexes: list[tuple[Batch, Sequence[int]]]
    sent_us: int
    number: int
    """The script sends this number back, so that a reply is known to be this call's."""


class Filling:
    """The calls that are sent next: one, but in a cluster one for each slot."""

    __slots__ = (
        "_not_after",
        "_numbers",
        "_slot",
        "_timeout_us",
        "below",
        "calls",
        "full",
        "lowest",
        "now_us",
        "size",
    )

    def __init__(
        self,
        now_us: int,
        below: int,
        slot: Slot | None,
        not_after: Callable[[int], int],
        numbers: Iterator[int],
        timeout_us: int,
    ) -> None:
        """`not_after` makes a deadline one by the server's clock; `numbers` are those of calls.

        The server may take for `timeout_us`, for callers that wait longer than that.
        """
        self._slot = slot
        self._not_after = not_after
        self._numbers = numbers
        self._timeout_us = timeout_us
        self.now_us = now_us
        self.below = below
        """What is of a priority below this may be sent now."""
        self.calls: dict[int, ScriptCall] = {}
        """By the slot of what they charge."""
        self.size = 0
        """The weight of what they charge."""
        self.full = False
        """Whether more waits than fits."""
        self.lowest = PRIORITIES - 1
        """The smallest priority of what they charge."""

    def take(self, batch: Batch) -> None:
        """Takes requests from a batch, as many as fit; drops those that nobody wants any more."""
        requests, numbers, start = batch.requests, batch.indexes, batch.sent
        stop = start if batch.finished else len(requests)
        wanted = batch.wanted
        taken = [at for at in range(start, stop) if wanted(numbers[at])]
        section = [requests[at] for at in taken]
        added = weight(*section)
        if self.size + added > MAX_CALL_WEIGHT:
            count, added = _fitting(section, self.size)
            if count < len(taken):
                stop = taken[count]
            taken, section = taken[:count], section[:count]
        if taken:
            self.add(batch, taken, section)
        batch.sent = stop
        self.size += added
        if len(taken) < stop - start:
            wanted_ones = set(taken)
            batch.dropped([at for at in range(start, stop) if at not in wanted_ones])

    def add(self, batch: Batch, indexes: Sequence[int], requests: Sequence[Sequence[Hit]]) -> None:
        """Adds these requests of a batch to the calls of their slots."""
        self.lowest = min(self.lowest, batch.urgency.priority)
        if self._slot is None:
            self._add(_ONLY, batch, indexes, requests)
            return
        slots = [self._slot(hits) for hits in requests]
        for slot, index, hits in zip(slots, indexes, requests, strict=True):
            self._add(slot, batch, [index], [hits])

    def _add(
        self, slot: int, batch: Batch, indexes: Sequence[int], requests: Sequence[Sequence[Hit]]
    ) -> None:
        call = self.calls.get(slot)
        if call is None:
            call = self.calls[slot] = ScriptCall([], [], [], self.now_us, next(self._numbers))
        call.indexes.append((batch, indexes))
        call.requests.extend(requests)
        deadline_us = batch.urgency.deadline_us
        if deadline_us > batch.urgency.due_us:
            deadline_us = min(deadline_us, self.now_us + self._timeout_us)
        call.sections.append((self._not_after(deadline_us), requests))


def _fitting(requests: Sequence[Sequence[Hit]], size: int) -> tuple[int, int]:
    """How many of the first requests fit beside others of the weight `size`, and their weight.

    If there are no others, the first one fits in any case.
    """
    added = 0
    for count, hits in enumerate(requests):
        more = weight(hits)
        if size + added and size + added + more > MAX_CALL_WEIGHT:
            return count, added
        added += more
    return len(requests), added
