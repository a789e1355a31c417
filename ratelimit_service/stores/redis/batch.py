"""What a shard is handed: a batch of requests, and who hears of their outcomes.

What must not live here: connections, and how a request in several shards is settled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, Protocol

from ratelimit_service.model import Hit
from ratelimit_service.stores import NEVER, Outcomes, Wanted, always
from ratelimit_service.stores.keys import slot_of

__all__ = ["Background", "Batch", "Resync", "Retry", "Urgency"]


class Urgency:
    """By when a batch is to be sent and answered; times are by `elapsed_us`. Nobody changes it."""

    __slots__ = ("deadline_us", "due_us", "patience_us", "priority")

    def __init__(
        self, deadline_us: int, due_us: int = NEVER, patience_us: int = NEVER, priority: int = 0
    ) -> None:
        self.deadline_us = deadline_us
        """From then on nobody waits for an answer.

        With NEVER a batch is held while its server is away, as what is given back must be.
        """
        self.due_us = due_us
        """When it has waited for as long as a server may take."""
        self.patience_us = patience_us
        """If the server took so long by its own time, it is to blame for an answer too late."""
        self.priority = priority
        """Those of a smaller priority are sent first (`Store.charge`)."""


class Batch(Protocol):
    """What goes to one shard: whole requests, and parts of those that have other homes too."""

    sent: int
    """How many requests have been sent, or were not wanted any more."""

    @property
    def requests(self) -> Sequence[Sequence[Hit]]:
        """What is to be charged, each on its own."""

    @property
    def urgency(self) -> Urgency:
        """By when it is to be sent and answered."""

    @property
    def finished(self) -> bool:
        """Whether nobody waits for any of it."""

    @property
    def indexes(self) -> Sequence[int]:
        """The number of each request, as `wanted` takes it."""

    @property
    def wanted(self) -> Wanted:
        """Whether somebody waits for a request, asked just before it is sent."""

    def dropped(self, indexes: Sequence[int]) -> None:
        """These requests were not sent, since they are not wanted."""

    def answered(
        self, indexes: Sequence[int], answers: Iterator[Outcomes], at_us: int, within: bool
    ) -> None:
        """Takes these requests' outcomes from `answers`; `at_us` is the server's time.

        `within`: no hit of these is over, and each has an outcome.
        """

    def failed(self, indexes: Sequence[int], reason: str) -> None:
        """These requests get no answer."""

    def divided_by_slot(self, indexes: Sequence[int]) -> list[Batch] | None:
        """These requests once more, each slot of their counters apart; None if that cannot be.

        The server enforces slots, and has counted nothing of these.
        """


_NO_DEADLINE: Final = Urgency(NEVER)


class Background:
    """A batch that no caller waits for: what is given back, or told to a server that was away."""

    __slots__ = (
        "_done",
        "finished",
        "indexes",
        "requests",
        "sent",
        "urgency",
        "wanted",
    )

    def __init__(
        self,
        requests: Sequence[Sequence[Hit]],
        done: Callable[[Outcomes | None], None] = lambda _: None,
        urgency: Urgency = _NO_DEADLINE,
    ) -> None:
        """`done` gets the outcomes of each request, or None if there are none."""
        self.requests = requests
        self.indexes = range(len(requests))
        self.wanted: Wanted = always
        self.urgency = urgency
        self.finished = False
        self.sent = 0
        self._done = done

    def dropped(self, indexes: Sequence[int]) -> None:
        """Never: it is always wanted."""

    def answered(
        self, indexes: Sequence[int], answers: Iterator[Outcomes], _at_us: int, _within: bool
    ) -> None:
        """Tells the outcomes."""
        for _ in indexes:
            self._done(next(answers))

    def failed(self, indexes: Sequence[int], _reason: str) -> None:
        """Tells that there are none."""
        for _ in indexes:
            self._done(None)

    def divided_by_slot(self, indexes: Sequence[int]) -> list[Batch] | None:
        """A batch for each slot of each request: nothing of these counts together only."""
        return [
            batch
            for index in indexes
            for batch in _divided(self.requests[index], self._done, self.urgency)
        ]


def _divided(
    hits: Sequence[Hit], done: Callable[[Outcomes | None], None], urgency: Urgency
) -> list[Batch]:
    """A request as a batch for each of its slots; once all of them are told, the request is."""
    slots: dict[int, list[int]] = {}
    for index, hit in enumerate(hits):
        slots.setdefault(slot_of(hit.key), []).append(index)
    outcomes: Outcomes = [None] * len(hits)
    missing = set(slots)

    def slot_done(slot: int, slot_outcomes: Outcomes | None) -> None:
        for index, outcome in zip(slots[slot], slot_outcomes or (), strict=False):
            outcomes[index] = outcome
        missing.remove(slot)
        if not missing:
            done(outcomes)

    return [
        Background([[hits[index] for index in indexes]], partial(slot_done, slot), urgency)
        for slot, indexes in slots.items()
    ]


class Resync:
    """What was counted while a server was away and is to be told to it, until that is over."""

    __slots__ = (
        "_missing",
        "_settled",
        "expires_us",
        "finished",
        "indexes",
        "requests",
        "sent",
        "uncounted",
        "urgency",
        "wanted",
        "weight",
    )

    def __init__(
        self,
        requests: Sequence[Sequence[Hit]],
        weight: int,
        expires_us: int,
        settled: Callable[[Resync], None],
    ) -> None:
        """`settled` is called when every request was told or is in `uncounted`.

        From `expires_us` on, by the server's time, these hits no longer matter.
        """
        self.requests = requests
        self.weight = weight
        self.expires_us = expires_us
        self.urgency = _NO_DEADLINE
        """Until when the server may count it. Whoever sends the resync sets it."""
        self.indexes = range(len(requests))
        self.wanted: Wanted = always
        self.finished = False
        self.sent = 0
        self.uncounted: list[Sequence[Hit]] = []
        self._missing = len(requests)
        self._settled = settled

    def dropped(self, indexes: Sequence[int]) -> None:
        """Never: it is always wanted."""

    def answered(
        self, indexes: Sequence[int], answers: Iterator[Outcomes], _at_us: int, _within: bool
    ) -> None:
        """The server has counted these."""
        for _ in indexes:
            next(answers)
        self._less(len(indexes))

    def failed(self, indexes: Sequence[int], reason: str) -> None:
        """The server has not counted these, or has not said so."""
        if reason != "internal":  # a fault of ours would only happen again
            self.uncounted += [self.requests[index] for index in indexes]
        self._less(len(indexes))

    def divided_by_slot(self, _indexes: Sequence[int]) -> list[Batch] | None:
        """What is not told is told later."""
        return None

    def _less(self, count: int) -> None:
        self._missing -= count
        if not self._missing:
            self._settled(self)


class Retry:
    """Some requests of a batch that are sent once more.

    However often they are sent, these know the batch itself: a chain of hundreds would be too deep
    to tell it anything.
    """

    def __init__(self, batch: Batch, indexes: Sequence[int]) -> None:
        if isinstance(batch, Retry):
            indexes = [batch.indexes[index] for index in indexes]
            batch = batch.batch
        self.batch: Batch = batch
        self.indexes: Sequence[int] = indexes
        self.requests = [batch.requests[index] for index in indexes]
        self.urgency = batch.urgency
        self.sent = 0
        self.wanted: Wanted = self._is_wanted

    def _is_wanted(self, index: int) -> bool:
        return self.batch.wanted(self.batch.indexes[index])

    @property
    def finished(self) -> bool:
        """Whether nobody waits for any of it."""
        return self.batch.finished

    def dropped(self, indexes: Sequence[int]) -> None:
        """Tells the batch."""
        self.batch.dropped([self.indexes[index] for index in indexes])

    def answered(
        self, indexes: Sequence[int], answers: Iterator[Outcomes], at_us: int, within: bool
    ) -> None:
        """Tells the batch."""
        batch_indexes = [self.indexes[index] for index in indexes]
        self.batch.answered(batch_indexes, answers, at_us, within)

    def failed(self, indexes: Sequence[int], reason: str) -> None:
        """Tells the batch."""
        self.batch.failed([self.indexes[index] for index in indexes], reason)

    def divided_by_slot(self, indexes: Sequence[int]) -> list[Batch] | None:
        """Asks the batch."""
        return self.batch.divided_by_slot([self.indexes[index] for index in indexes])
